"""mpi4py's calls of communicators for blocking programs, with the names and arguments of `comm`. Each call returns when the
coroutine of `comm` would. `blocking_requests` has requests and messages.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from protocols.mpi import comm as coroutine_comm
from protocols.mpi.blocking_requests import (
    MESSAGE_NO_PROC,
    MESSAGE_NULL,
    REQUEST_NULL,
    BlockingWrapper,
    Message,
    Prequest,
    Request,
    Run,
    Work,
    blocking,
    nonblocking,
    persistent,
    run_completed,
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


class Comm(BlockingWrapper[coroutine_comm.Comm]):
    """Blocking wrapper of `comm.Comm`. Without an argument it is COMM_NULL, which a freed communicator becomes, too."""

    __slots__ = ("properties",)

    def __init__(
        self,
        comm: coroutine_comm.Comm | Comm | None = None,
        run: Run | None = None,
        properties: Properties | None = None,
    ) -> None:
        """comm: the communicator to wrap; a Comm is wrapped again, as a second handle."""
        if isinstance(comm, Comm):
            run, properties, comm = comm.run, comm.properties, comm.wrapped
        elif comm is None:
            comm = coroutine_comm.Comm.null()
        elif not isinstance(comm, coroutine_comm.Comm):
            raise TypeError(f"a Comm is expected, not {type(comm).__name__}")
        super().__init__(comm, run or run_completed)
        self.properties: Properties = properties or Properties()

    def __bool__(self) -> bool:
        """Whether it is not COMM_NULL."""
        return self.wrapped.size != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return False
        return self.wrapped is other.wrapped or not (self or other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def handle_error(self, error: MPIError) -> None:
        """Call the communicator's error handler: unless it is ERRORS_RETURN, an error ends the program (SystemExit)."""
        if self.properties.errhandler.number > 1:
            raise SystemExit(
                f"rank {self.wrapped.rank}: {error}, and errors are fatal here (Set_errhandler)"
            ) from error

    @property
    def rank(self) -> int:
        return self.Get_rank()

    @property
    def size(self) -> int:
        return self.Get_size()

    @property
    def tag_ub(self) -> int:
        """The largest tag (MPI_TAG_UB)."""
        return self.wrapped.tag_ub

    def Get_rank(self) -> int:
        self._check()
        return self.wrapped.rank

    def Get_size(self) -> int:
        self._check()
        return self.wrapped.size

    def _check(self) -> None:
        if not self.wrapped.size:
            self._raise_comm_null()

    def _raise_comm_null(self) -> NoReturn:
        raise MPIError(ERR_COMM, "the communicator is COMM_NULL, or was freed")

    Send = blocking(coroutine_comm.Comm.Send)
    Ssend = blocking(coroutine_comm.Comm.Ssend)
    Recv = blocking(coroutine_comm.Comm.Recv)
    Sendrecv = blocking(coroutine_comm.Comm.Sendrecv)
    Bsend = blocking(coroutine_comm.Comm.Bsend)
    Ibsend = nonblocking(coroutine_comm.Comm.Ibsend)
    Bsend_init = persistent(coroutine_comm.Comm.Bsend_init)
    Detach_buffer = blocking(coroutine_comm.Comm.Detach_buffer)
    Sendrecv_replace = blocking(coroutine_comm.Comm.Sendrecv_replace)
    Isendrecv = nonblocking(coroutine_comm.Comm.Isendrecv)
    Isendrecv_replace = nonblocking(coroutine_comm.Comm.Isendrecv_replace)
    Rsend = blocking(coroutine_comm.Comm.Rsend)
    Irsend = nonblocking(coroutine_comm.Comm.Irsend)
    Rsend_init = persistent(coroutine_comm.Comm.Rsend_init)
    Isend = nonblocking(coroutine_comm.Comm.Isend)
    Issend = nonblocking(coroutine_comm.Comm.Issend)
    Irecv = nonblocking(coroutine_comm.Comm.Irecv)
    Send_init = persistent(coroutine_comm.Comm.Send_init)
    Ssend_init = persistent(coroutine_comm.Comm.Ssend_init)
    Recv_init = persistent(coroutine_comm.Comm.Recv_init)

    send = blocking(coroutine_comm.Comm.send)
    rsend = blocking(coroutine_comm.Comm.rsend)
    irsend = nonblocking(coroutine_comm.Comm.irsend)
    bsend = blocking(coroutine_comm.Comm.bsend)
    ibsend = nonblocking(coroutine_comm.Comm.ibsend)
    ssend = blocking(coroutine_comm.Comm.ssend)
    recv = blocking(coroutine_comm.Comm.recv)
    sendrecv = blocking(coroutine_comm.Comm.sendrecv)
    isend = nonblocking(coroutine_comm.Comm.isend)
    issend = nonblocking(coroutine_comm.Comm.issend)
    irecv = nonblocking(coroutine_comm.Comm.irecv)

    Probe = blocking(coroutine_comm.Comm.Probe)
    Iprobe = blocking(coroutine_comm.Comm.Iprobe)
    probe = Probe
    iprobe = Iprobe

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """See `comm.Comm.Mprobe`."""
        return Message(self.run(self.wrapped.Mprobe(source, tag, status)), self.run)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """See `comm.Comm.Improbe`."""
        message = self.run(self.wrapped.Improbe(source, tag, status))
        return None if message is None else Message(message, self.run)

    mprobe = Mprobe
    improbe = Improbe

    Barrier = blocking(coroutine_comm.Comm.Barrier)
    Bcast = blocking(coroutine_comm.Comm.Bcast)
    Gather = blocking(coroutine_comm.Comm.Gather)
    Gatherv = blocking(coroutine_comm.Comm.Gatherv)
    Scatter = blocking(coroutine_comm.Comm.Scatter)
    Scatterv = blocking(coroutine_comm.Comm.Scatterv)
    Allgather = blocking(coroutine_comm.Comm.Allgather)
    Allgatherv = blocking(coroutine_comm.Comm.Allgatherv)
    Alltoall = blocking(coroutine_comm.Comm.Alltoall)
    Alltoallv = blocking(coroutine_comm.Comm.Alltoallv)
    Alltoallw = blocking(coroutine_comm.Comm.Alltoallw)
    Reduce = blocking(coroutine_comm.Comm.Reduce)
    Allreduce = blocking(coroutine_comm.Comm.Allreduce)
    Reduce_scatter_block = blocking(coroutine_comm.Comm.Reduce_scatter_block)
    Reduce_scatter = blocking(coroutine_comm.Comm.Reduce_scatter)
    Scan = blocking(coroutine_comm.Comm.Scan)
    Exscan = blocking(coroutine_comm.Comm.Exscan)

    Ibarrier = nonblocking(coroutine_comm.Comm.Ibarrier)
    Ibcast = nonblocking(coroutine_comm.Comm.Ibcast)
    Igather = nonblocking(coroutine_comm.Comm.Igather)
    Igatherv = nonblocking(coroutine_comm.Comm.Igatherv)
    Iscatter = nonblocking(coroutine_comm.Comm.Iscatter)
    Iscatterv = nonblocking(coroutine_comm.Comm.Iscatterv)
    Iallgather = nonblocking(coroutine_comm.Comm.Iallgather)
    Iallgatherv = nonblocking(coroutine_comm.Comm.Iallgatherv)
    Ialltoall = nonblocking(coroutine_comm.Comm.Ialltoall)
    Ialltoallv = nonblocking(coroutine_comm.Comm.Ialltoallv)
    Ialltoallw = nonblocking(coroutine_comm.Comm.Ialltoallw)
    Ireduce = nonblocking(coroutine_comm.Comm.Ireduce)
    Iallreduce = nonblocking(coroutine_comm.Comm.Iallreduce)
    Ireduce_scatter_block = nonblocking(coroutine_comm.Comm.Ireduce_scatter_block)
    Ireduce_scatter = nonblocking(coroutine_comm.Comm.Ireduce_scatter)
    Iscan = nonblocking(coroutine_comm.Comm.Iscan)
    Iexscan = nonblocking(coroutine_comm.Comm.Iexscan)

    barrier = Barrier
    bcast = blocking(coroutine_comm.Comm.bcast)
    gather = blocking(coroutine_comm.Comm.gather)
    scatter = blocking(coroutine_comm.Comm.scatter)
    allgather = blocking(coroutine_comm.Comm.allgather)
    alltoall = blocking(coroutine_comm.Comm.alltoall)
    reduce = blocking(coroutine_comm.Comm.reduce)
    allreduce = blocking(coroutine_comm.Comm.allreduce)
    scan = blocking(coroutine_comm.Comm.scan)
    exscan = blocking(coroutine_comm.Comm.exscan)

    @property
    def algorithms(self) -> Algorithms:
        """See `comm.Comm`."""
        return self.wrapped.algorithms

    def Attach_buffer(self, buf: bytearray | memoryview) -> None:
        """See `point_to_point.PointToPoint.Attach_buffer`."""
        self.wrapped.Attach_buffer(buf)

    def Dup(self, info: Info | None = None) -> Comm:
        """See `comm.Comm.Dup`. Copies attributes as their copy functions determine."""
        copy = self._wrap_derived(self.run(self.wrapped.Dup()))
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
        return self._wrap_derived(self.run(self.wrapped.Split(color, key)))

    def Split_type(self, split_type: int, key: int = 0, info: Info | None = None) -> Comm:  # noqa: ARG002  mpi4py's
        """Make communicators of the ranks that share memory (COMM_TYPE_SHARED), which are those of one node. UNDEFINED:
        return COMM_NULL. Raises MPIError (ERR_ARG) for other types."""
        if split_type not in (COMM_TYPE_SHARED, UNDEFINED):
            raise MPIError(ERR_ARG, f"split_type must be COMM_TYPE_SHARED or UNDEFINED, got {split_type}")
        processors = self.run(self.wrapped.allgather(self.properties.processor))
        color = processors.index(self.properties.processor) if split_type != UNDEFINED else UNDEFINED
        return self.Split(color, key)

    def Idup(self, info: Info | None = None) -> tuple[Comm, Request]:  # noqa: ARG002  mpi4py's
        """See `comm.Comm.Idup`."""
        comm, request = self.run(self.wrapped.Idup())
        copy = self._wrap_derived(comm)
        self.properties.copy_to(self, copy.properties)
        return copy, Request(request, self.run)

    def Create(self, group: Group) -> Comm:
        """See `comm.Comm.Create`."""
        return self._wrap_derived(self.run(self.wrapped.Create(group)))

    def Create_group(self, group: Group, tag: int = 0) -> Comm:
        """See `comm.Comm.Create_group`."""
        return self._wrap_derived(self.run(self.wrapped.Create_group(group, tag)))

    def _wrap_derived(self, comm: coroutine_comm.Comm | None) -> Comm:
        """Wrap a communicator derived from this one; None becomes COMM_NULL."""
        return Comm(comm, self.run, self._derived_properties(comm))

    def _derived_properties(self, comm: coroutine_comm.Comm | None) -> Properties:
        properties = properties_of(comm, self.properties.processor)
        properties.errhandler = self.properties.errhandler
        return properties

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> Comm:
        """See `comm.Comm.Create_cart`."""
        subgrid = self.run(self.wrapped.Create_cart(dims, periods, reorder))
        return (
            self._wrap_derived(None)
            if subgrid is None
            else Cartcomm(subgrid, self.run, self._derived_properties(subgrid))
        )

    def Get_group(self) -> Group:
        """See `comm.Comm.Get_group`."""
        return self.wrapped.Get_group()

    def Compare(self, comm: Comm) -> int:
        """See `comm.Comm.Compare`."""
        return self.wrapped.Compare(comm.wrapped)

    @property
    def group(self) -> Group:
        return self.wrapped.Get_group()

    def Free(self) -> None:
        """See `comm.Comm.Free`. Deletes the attributes. Raises MPIError (ERR_COMM) for COMM_WORLD and COMM_SELF."""
        self._check()
        if self.properties.is_predefined:
            raise MPIError(ERR_COMM, f"the predefined communicator {self.name} cannot be freed")
        self.properties.free(self)
        self.wrapped.Free()

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
        """Return a copy of the communicator's info."""
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
        """Set the error handler; see `comm_properties`. Raises MPIError (ERR_ARG) for ERRHANDLER_NULL."""
        self._check()
        if not errhandler:
            raise MPIError(ERR_ARG, "ERRHANDLER_NULL cannot handle errors")
        self.properties.errhandler = Errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the error handler with an error code; ERRORS_RETURN does nothing."""
        self._check()
        self.handle_error(MPIError(errorcode))

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: CopyAttribute = None,
        delete_fn: DeleteAttribute = None,
        nopython: bool = False,  # noqa: ARG003
    ) -> int:
        """Create an attribute key. copy_fn, delete_fn: see `comm_properties`. nopython: ignored; for mpi4py's signature."""
        return create_keyval(copy_fn, delete_fn)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free an attribute key; returns KEYVAL_INVALID."""
        return free_keyval(keyval)

    def Get_attr(self, keyval: int) -> Any:
        """Return the value of an attribute; None if it was not set."""
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
        return CART if isinstance(self.wrapped, coroutine_comm.Cartcomm) else UNDEFINED

    topology = property(Get_topology)

    @property
    def is_topo(self) -> bool:
        return self.Get_topology() != UNDEFINED

    def Abort(self, errorcode: int = 1) -> None:
        """End the program, and the run."""
        raise SystemExit(f"rank {self.rank} has called Abort, with error code {errorcode}")


class Cartcomm(Comm):
    """Blocking wrapper of `comm.Cartcomm`."""

    __slots__ = ("_cartesian",)

    def __init__(self, comm: coroutine_comm.Cartcomm, run: Run, properties: Properties | None = None) -> None:
        super().__init__(comm, run, properties)
        self._cartesian = comm

    @property
    def neighbours(self) -> list[int]:
        """Ranks of the lower and the upper neighbour in each dimension; PROC_NULL beyond the end of the grid."""
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
        """This rank's coordinates."""
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
        subgrid = self.run(self._cartesian.Sub(remain_dims))
        return Cartcomm(subgrid, self.run, self._derived_properties(subgrid))


def properties_of(comm: coroutine_comm.Comm | None, processor: str, name: str = "") -> Properties:
    """Make the properties of a new communicator. processor: name of the rank's node."""
    if comm is None:
        return Properties(processor=processor)
    fixed: dict[int, object] = {TAG_UB: comm.tag_ub, UNIVERSE_SIZE: comm.size}
    return Properties(name, processor, fixed)


COMM_NULL: Final = Comm()
"""The null communicator: its calls raise MPI.Exception with ERR_COMM."""
