"""mpi4py's calls of communicators for programs that block: the names and arguments of `comm`, none awaited. Each returns
when the awaited one would. `blocking_requests` has requests and messages.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from protocols.mpi import comm as awaited
from protocols.mpi.blocking_requests import (
    MESSAGE_NO_PROC,
    MESSAGE_NULL,
    REQUEST_NULL,
    Face,
    Message,
    Prequest,
    Request,
    Run,
    Work,
    at_once,
    begun,
    blocking,
    persistent,
)
from protocols.mpi.collectives.choices import Algorithms
from protocols.mpi.comm_properties import (
    CopyAttribute,
    DeleteAttribute,
    Errhandler,
    Properties,
    create_keyval,
    free_keyval,
)
from protocols.mpi.constants import (
    ANY_SOURCE,
    ANY_TAG,
    CART,
    COMM_TYPE_SHARED,
    TAG_UB,
    UNDEFINED,
    UNIVERSE_SIZE,
)
from protocols.mpi.groups import Group
from protocols.mpi.info import Info
from protocols.mpi.mpi_errors import ERR_ARG, ERR_COMM, MPIError
from protocols.mpi.mpi_status import Status

__all__ = [
    "COMM_NULL", "MESSAGE_NO_PROC", "MESSAGE_NULL", "REQUEST_NULL", "Cartcomm", "Comm", "Message", "Prequest", "Request",
    "Run", "Work",
]  # fmt: skip


class Comm(Face[awaited.Comm]):
    """See `comm.Comm`. Without an argument it is COMM_NULL, as a communicator is once it has been freed."""

    __slots__ = ("properties",)

    def __init__(
        self, comm: awaited.Comm | Comm | None = None, run: Run | None = None, properties: Properties | None = None
    ) -> None:
        """comm: also another handle of the same communicator."""
        if isinstance(comm, Comm):
            run, properties, comm = comm.run, comm.properties, comm.awaited
        elif comm is None:
            comm = awaited.Comm.null()
        elif not isinstance(comm, awaited.Comm):
            raise TypeError(f"a Comm is expected, not {type(comm).__name__}")
        super().__init__(comm, run or at_once)
        self.properties: Properties = properties or Properties()

    def __bool__(self) -> bool:
        """Whether it is not COMM_NULL."""
        return self.awaited.size != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return False
        return self.awaited is other.awaited or not (self or other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def handle(self, error: MPIError) -> None:
        """End the program, if the communicator's error handler says so."""
        if self.properties.errhandler.number > 1:
            raise SystemExit(
                f"rank {self.awaited.rank}: {error}, and errors are fatal here (Set_errhandler)"
            ) from error

    @property
    def rank(self) -> int:
        return self.Get_rank()

    @property
    def size(self) -> int:
        return self.Get_size()

    @property
    def tag_ub(self) -> int:
        """The greatest tag (MPI_TAG_UB)."""
        return self.awaited.tag_ub

    def Get_rank(self) -> int:
        self._check()
        return self.awaited.rank

    def Get_size(self) -> int:
        self._check()
        return self.awaited.size

    def _check(self) -> None:
        if not self.awaited.size:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise MPIError(ERR_COMM, "COMM_NULL, or a communicator that was freed")

    Send = blocking(awaited.Comm.Send)
    Ssend = blocking(awaited.Comm.Ssend)
    Recv = blocking(awaited.Comm.Recv)
    Sendrecv = blocking(awaited.Comm.Sendrecv)
    Bsend = blocking(awaited.Comm.Bsend)
    Ibsend = begun(awaited.Comm.Ibsend)
    Bsend_init = persistent(awaited.Comm.Bsend_init)
    Detach_buffer = blocking(awaited.Comm.Detach_buffer)
    Sendrecv_replace = blocking(awaited.Comm.Sendrecv_replace)
    Isendrecv = begun(awaited.Comm.Isendrecv)
    Isendrecv_replace = begun(awaited.Comm.Isendrecv_replace)
    Rsend = blocking(awaited.Comm.Rsend)
    Irsend = begun(awaited.Comm.Irsend)
    Rsend_init = persistent(awaited.Comm.Rsend_init)
    Isend = begun(awaited.Comm.Isend)
    Issend = begun(awaited.Comm.Issend)
    Irecv = begun(awaited.Comm.Irecv)
    Send_init = persistent(awaited.Comm.Send_init)
    Ssend_init = persistent(awaited.Comm.Ssend_init)
    Recv_init = persistent(awaited.Comm.Recv_init)

    send = blocking(awaited.Comm.send)
    rsend = blocking(awaited.Comm.rsend)
    irsend = begun(awaited.Comm.irsend)
    bsend = blocking(awaited.Comm.bsend)
    ibsend = begun(awaited.Comm.ibsend)
    ssend = blocking(awaited.Comm.ssend)
    recv = blocking(awaited.Comm.recv)
    sendrecv = blocking(awaited.Comm.sendrecv)
    isend = begun(awaited.Comm.isend)
    issend = begun(awaited.Comm.issend)
    irecv = begun(awaited.Comm.irecv)

    Probe = blocking(awaited.Comm.Probe)
    Iprobe = blocking(awaited.Comm.Iprobe)
    probe = Probe
    iprobe = Iprobe

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """See `comm.Comm.Mprobe`."""
        return Message(self.run(self.awaited.Mprobe(source, tag, status)), self.run)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """See `comm.Comm.Improbe`."""
        found = self.run(self.awaited.Improbe(source, tag, status))
        return None if found is None else Message(found, self.run)

    mprobe = Mprobe
    improbe = Improbe

    Barrier = blocking(awaited.Comm.Barrier)
    Bcast = blocking(awaited.Comm.Bcast)
    Gather = blocking(awaited.Comm.Gather)
    Gatherv = blocking(awaited.Comm.Gatherv)
    Scatter = blocking(awaited.Comm.Scatter)
    Scatterv = blocking(awaited.Comm.Scatterv)
    Allgather = blocking(awaited.Comm.Allgather)
    Allgatherv = blocking(awaited.Comm.Allgatherv)
    Alltoall = blocking(awaited.Comm.Alltoall)
    Alltoallv = blocking(awaited.Comm.Alltoallv)
    Alltoallw = blocking(awaited.Comm.Alltoallw)
    Reduce = blocking(awaited.Comm.Reduce)
    Allreduce = blocking(awaited.Comm.Allreduce)
    Reduce_scatter_block = blocking(awaited.Comm.Reduce_scatter_block)
    Reduce_scatter = blocking(awaited.Comm.Reduce_scatter)
    Scan = blocking(awaited.Comm.Scan)
    Exscan = blocking(awaited.Comm.Exscan)

    Ibarrier = begun(awaited.Comm.Ibarrier)
    Ibcast = begun(awaited.Comm.Ibcast)
    Igather = begun(awaited.Comm.Igather)
    Igatherv = begun(awaited.Comm.Igatherv)
    Iscatter = begun(awaited.Comm.Iscatter)
    Iscatterv = begun(awaited.Comm.Iscatterv)
    Iallgather = begun(awaited.Comm.Iallgather)
    Iallgatherv = begun(awaited.Comm.Iallgatherv)
    Ialltoall = begun(awaited.Comm.Ialltoall)
    Ialltoallv = begun(awaited.Comm.Ialltoallv)
    Ialltoallw = begun(awaited.Comm.Ialltoallw)
    Ireduce = begun(awaited.Comm.Ireduce)
    Iallreduce = begun(awaited.Comm.Iallreduce)
    Ireduce_scatter_block = begun(awaited.Comm.Ireduce_scatter_block)
    Ireduce_scatter = begun(awaited.Comm.Ireduce_scatter)
    Iscan = begun(awaited.Comm.Iscan)
    Iexscan = begun(awaited.Comm.Iexscan)

    barrier = Barrier
    bcast = blocking(awaited.Comm.bcast)
    gather = blocking(awaited.Comm.gather)
    scatter = blocking(awaited.Comm.scatter)
    allgather = blocking(awaited.Comm.allgather)
    alltoall = blocking(awaited.Comm.alltoall)
    reduce = blocking(awaited.Comm.reduce)
    allreduce = blocking(awaited.Comm.allreduce)
    scan = blocking(awaited.Comm.scan)
    exscan = blocking(awaited.Comm.exscan)

    @property
    def algorithms(self) -> Algorithms:
        """See `comm.Comm`."""
        return self.awaited.algorithms

    def Attach_buffer(self, buf: bytearray | memoryview) -> None:
        """See `point_to_point.PointToPoint.Attach_buffer`."""
        self.awaited.Attach_buffer(buf)

    def Dup(self, info: Info | None = None) -> Comm:
        """See `comm.Comm.Dup`. The duplicate gets the attributes whose keys say so."""
        copy = self._made(self.run(self.awaited.Dup()))
        self.properties.copy_to(self, copy.properties)
        if info:
            copy.properties.info = info.Dup()
        return copy

    Dup_with_info = Clone = Dup

    def Is_intra(self) -> bool:
        self._check()
        return True

    def Is_inter(self) -> bool:
        self._check()
        return False

    is_intra = property(Is_intra)
    is_inter = property(Is_inter)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """See `comm.Comm.Split`."""
        return self._made(self.run(self.awaited.Split(color, key)))

    def Split_type(self, split_type: int, key: int = 0, info: Info | None = None) -> Comm:  # noqa: ARG002  mpi4py's
        """Make communicators of the ranks that share memory (COMM_TYPE_SHARED): those of one node. UNDEFINED: of none.
        Raises MPIError (ERR_ARG) for other types."""
        if split_type not in (COMM_TYPE_SHARED, UNDEFINED):
            raise MPIError(ERR_ARG, f"a split type of {split_type}: COMM_TYPE_SHARED or UNDEFINED")
        processors = self.run(self.awaited.allgather(self.properties.processor))
        color = processors.index(self.properties.processor) if split_type != UNDEFINED else UNDEFINED
        return self.Split(color, key)

    def Idup(self, info: Info | None = None) -> tuple[Comm, Request]:  # noqa: ARG002  mpi4py's
        """See `comm.Comm.Idup`."""
        made, request = self.run(self.awaited.Idup())
        copy = self._made(made)
        self.properties.copy_to(self, copy.properties)
        return copy, Request(request, self.run)

    def Create(self, group: Group) -> Comm:
        """See `comm.Comm.Create`."""
        return self._made(self.run(self.awaited.Create(group)))

    def Create_group(self, group: Group, tag: int = 0) -> Comm:
        """See `comm.Comm.Create_group`."""
        return self._made(self.run(self.awaited.Create_group(group, tag)))

    def _made(self, made: awaited.Comm | None) -> Comm:
        """Wrap a communicator that was made from this one; None becomes COMM_NULL."""
        return Comm(made, self.run, self._derived(made))

    def _derived(self, made: awaited.Comm | None) -> Properties:
        properties = properties_of(made, self.properties.processor)
        properties.errhandler = self.properties.errhandler
        return properties

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> Comm:
        """See `comm.Comm.Create_cart`."""
        part = self.run(self.awaited.Create_cart(dims, periods, reorder))
        return self._made(None) if part is None else Cartcomm(part, self.run, self._derived(part))

    def Get_group(self) -> Group:
        """See `comm.Comm.Get_group`."""
        return self.awaited.Get_group()

    def Compare(self, comm: Comm) -> int:
        """See `comm.Comm.Compare`."""
        return self.awaited.Compare(comm.awaited)

    @property
    def group(self) -> Group:
        return self.awaited.Get_group()

    def Free(self) -> None:
        """See `comm.Comm.Free`. Its attributes are deleted. Raises MPIError (ERR_COMM) for COMM_WORLD and COMM_SELF."""
        self._check()
        if self.properties.is_predefined:
            raise MPIError(ERR_COMM, f"{self.name} is MPI's own and cannot be freed")
        self.properties.free(self)
        self.awaited.Free()

    Disconnect = Free

    # Properties.

    def Get_name(self) -> str:
        self._check()
        return self.properties.name

    def Set_name(self, name: str) -> None:
        self._check()
        self.properties.name = name

    name = property(Get_name, Set_name)

    def Get_info(self) -> Info:
        """Return a copy of its hints."""
        self._check()
        return self.properties.info.Dup()

    def Set_info(self, info: Info) -> None:
        self._check()
        self.properties.info = info.Dup()

    info = property(Get_info, Set_info)

    def Get_errhandler(self) -> Errhandler:
        self._check()
        return Errhandler(self.properties.errhandler)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Say what an error of its calls does; see `comm_properties`. Raises MPIError (ERR_ARG) for ERRHANDLER_NULL."""
        self._check()
        if not errhandler:
            raise MPIError(ERR_ARG, "ERRHANDLER_NULL handles no errors")
        self.properties.errhandler = Errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Let the error handler handle an error; ERRORS_RETURN does nothing."""
        self._check()
        self.handle(MPIError(errorcode))

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: CopyAttribute = None,
        delete_fn: DeleteAttribute = None,
        nopython: bool = False,  # noqa: ARG003
    ) -> int:
        """Make a key for attributes. copy_fn: whether a duplicate gets them, or a function that says so."""
        return create_keyval(copy_fn, delete_fn)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free a key; returns KEYVAL_INVALID."""
        return free_keyval(keyval)

    def Get_attr(self, keyval: int) -> Any:
        """Return an attribute; None if it was not set."""
        self._check()
        return self.properties.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        self._check()
        self.properties.set(self, keyval, attrval)

    def Delete_attr(self, keyval: int) -> None:
        self._check()
        self.properties.delete(self, keyval)

    def Get_topology(self) -> int:
        """Return CART, or UNDEFINED for a communicator without a topology."""
        self._check()
        return CART if isinstance(self.awaited, awaited.Cartcomm) else UNDEFINED

    topology = property(Get_topology)

    @property
    def is_topo(self) -> bool:
        return self.Get_topology() != UNDEFINED

    def Abort(self, errorcode: int = 1) -> None:
        """End the program, and the run."""
        raise SystemExit(f"rank {self.rank} has called Abort, with error code {errorcode}")


class Cartcomm(Comm):
    """See `comm.Cartcomm`."""

    __slots__ = ("_cartesian",)

    def __init__(self, comm: awaited.Cartcomm, run: Run, properties: Properties | None = None) -> None:
        super().__init__(comm, run, properties)
        self._cartesian = comm

    @property
    def neighbours(self) -> list[int]:
        """The ranks before and behind this one in each dimension."""
        return [rank for dimension in range(self.dim) for rank in self.Shift(dimension, 1)]

    indegree = outdegree = property(lambda self: 2 * self.dim)
    inedges = outedges = neighbours
    inoutedges = property(lambda self: (self.neighbours, self.neighbours))

    @property
    def dim(self) -> int:
        return len(self._cartesian.grid.dims)

    ndim = dim

    @property
    def topo(self) -> tuple[list[int], list[bool], list[int]]:
        return self._cartesian.Get_topo()

    @property
    def dims(self) -> list[int]:
        return list(self._cartesian.grid.dims)

    @property
    def periods(self) -> list[bool]:
        return list(self._cartesian.grid.periods)

    @property
    def coords(self) -> list[int]:
        """This rank's point."""
        return self._cartesian.Get_coords(self.rank)

    def Get_dim(self) -> int:
        """See `comm.Cartcomm.Get_dim`."""
        return self._cartesian.Get_dim()

    def Get_topo(self) -> tuple[list[int], list[bool], list[int]]:
        """See `comm.Cartcomm.Get_topo`."""
        return self._cartesian.Get_topo()

    def Get_coords(self, rank: int) -> list[int]:
        """See `comm.Cartcomm.Get_coords`."""
        return self._cartesian.Get_coords(rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """See `comm.Cartcomm.Get_cart_rank`."""
        return self._cartesian.Get_cart_rank(coords)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """See `comm.Cartcomm.Shift`."""
        return self._cartesian.Shift(direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """See `comm.Cartcomm.Sub`."""
        part = self.run(self._cartesian.Sub(remain_dims))
        return Cartcomm(part, self.run, self._derived(part))


def properties_of(comm: awaited.Comm | None, processor: str, name: str = "") -> Properties:
    """Make the properties of a new communicator. processor: name of the rank's node."""
    if comm is None:
        return Properties(processor=processor)
    fixed: dict[int, object] = {TAG_UB: comm.tag_ub, UNIVERSE_SIZE: comm.size}
    return Properties(name, processor, fixed)


COMM_NULL: Final = Comm()
"""The null communicator: its calls raise MPI.Exception with ERR_COMM."""
