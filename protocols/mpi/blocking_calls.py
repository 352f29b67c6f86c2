"""mpi4py's blocking interface: the calls of `comm`, `requests` and `mpi_messages` without an await. Each returns when
the awaited one would.

There is one implementation. A call here makes the awaited call's coroutine and passes it to `run`, which the
environment of a blocking program provides: it drives the coroutine, and lets everything else run while that waits.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from protocols.mpi import comm as awaited
from protocols.mpi import mpi_messages, requests
from protocols.mpi.collectives.choices import Algorithms
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import nothing
from protocols.mpi.groups import Group
from protocols.mpi.mpi_status import Status

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

Work = Coroutine[Any, None, T]
"""Coroutine of an ``async def`` in this package: it yields what it waits for, and is sent nothing."""


class Run(Protocol):
    """Drives a coroutine to its end, and returns or raises its result."""

    def __call__(self, work: Work[T], /) -> T: ...


class _Face(Generic[A]):
    """Blocking wrapper. awaited: the wrapped object."""

    __slots__ = ("awaited", "run")

    def __init__(self, awaited: A, run: Run) -> None:
        self.awaited = awaited
        self.run = run

    def __repr__(self) -> str:
        return repr(self.awaited)


def _blocking(method: Callable[Concatenate[A, P], Work[T]]) -> Callable[Concatenate[_Face[Any], P], T]:
    @wraps(method)
    def call(face: _Face[Any], /, *args: P.args, **named: P.kwargs) -> T:
        return face.run(method(face.awaited, *args, **named))

    return call


def _begun(
    method: Callable[Concatenate[A, P], Work[requests.Request]],
) -> Callable[Concatenate[_Face[Any], P], Request]:
    @wraps(method)
    def call(face: _Face[Any], /, *args: P.args, **named: P.kwargs) -> Request:
        return Request(face.run(method(face.awaited, *args, **named)), face.run)

    return call


def _persistent(
    method: Callable[Concatenate[A, P], Work[requests.Prequest]],
) -> Callable[Concatenate[_Face[Any], P], Prequest]:
    @wraps(method)
    def call(face: _Face[Any], /, *args: P.args, **named: P.kwargs) -> Prequest:
        return Prequest(face.run(method(face.awaited, *args, **named)), face.run)

    return call


def _together(
    method: Callable[Concatenate[Sequence[requests.Request], P], Work[T]],
) -> Callable[Concatenate[type[Request], Sequence[Request], P], T]:
    @wraps(method)
    def call(_: type[Request], several: Sequence[Request], /, *args: P.args, **named: P.kwargs) -> T:
        run = next((one.run for one in several if one.awaited.active), _at_once)
        return run(method([one.awaited for one in several], *args, **named))

    return call


class Request(_Face[requests.Request]):
    """See `requests.Request`."""

    __slots__ = ()

    @property
    def active(self) -> bool:
        """Whether it has not been waited for yet."""
        return self.awaited.active

    def __bool__(self) -> bool:
        """Whether it is not REQUEST_NULL, which a completed request becomes."""
        return self.awaited.active

    def __eq__(self, other: object) -> bool:
        """Whether both are one request, or both REQUEST_NULL."""
        return isinstance(other, Request) and (self is other or not (self or other))

    __hash__ = object.__hash__

    Wait = _blocking(requests.Request.Wait)
    wait = _blocking(requests.Request.wait)
    Test = _blocking(requests.Request.Test)
    test = _blocking(requests.Request.test)
    Get_status = _blocking(requests.Request.Get_status)
    get_status = Get_status
    Cancel = _blocking(requests.Request.Cancel)
    cancel = Cancel

    Waitall = classmethod(_together(requests.Request.Waitall))
    waitall = classmethod(_together(requests.Request.waitall))
    Testall = classmethod(_together(requests.Request.Testall))
    testall = classmethod(_together(requests.Request.testall))
    Waitany = classmethod(_together(requests.Request.Waitany))
    waitany = classmethod(_together(requests.Request.waitany))
    Testany = classmethod(_together(requests.Request.Testany))
    testany = classmethod(_together(requests.Request.testany))
    Waitsome = classmethod(_together(requests.Request.Waitsome))
    waitsome = classmethod(_together(requests.Request.waitsome))
    Testsome = classmethod(_together(requests.Request.Testsome))
    testsome = classmethod(_together(requests.Request.testsome))


class Prequest(Request):
    """See `requests.Prequest`."""

    __slots__ = ("_is_freed", "_persistent")

    def __init__(self, awaited: requests.Prequest, run: Run) -> None:
        super().__init__(awaited, run)
        self._persistent = awaited
        self._is_freed = False

    def Start(self) -> None:
        """Start the transfer."""
        self.run(self._persistent.Start())

    @classmethod
    def Startall(cls, several: Sequence[Prequest]) -> None:
        """Start all, in order."""
        for one in several:
            one.Start()

    def Free(self) -> None:
        """Free the request, which cannot be used afterwards: it becomes REQUEST_NULL."""
        self._persistent.Free()
        self._is_freed = True

    def __bool__(self) -> bool:
        return not self._is_freed


class Message(_Face[mpi_messages.Message]):
    """See `mpi_messages.Message`."""

    __slots__ = ()

    Recv = _blocking(mpi_messages.Message.Recv)
    recv = _blocking(mpi_messages.Message.recv)
    Irecv = _begun(mpi_messages.Message.Irecv)
    irecv = _begun(mpi_messages.Message.irecv)


class Comm(_Face[awaited.Comm]):
    """See `comm.Comm`."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        return self.awaited.rank

    @property
    def size(self) -> int:
        return self.awaited.size

    @property
    def tag_ub(self) -> int:
        """The greatest tag (MPI_TAG_UB)."""
        return self.awaited.tag_ub

    def Get_rank(self) -> int:
        return self.awaited.rank

    def Get_size(self) -> int:
        return self.awaited.size

    Send = _blocking(awaited.Comm.Send)
    Ssend = _blocking(awaited.Comm.Ssend)
    Recv = _blocking(awaited.Comm.Recv)
    Sendrecv = _blocking(awaited.Comm.Sendrecv)
    Bsend = _blocking(awaited.Comm.Bsend)
    Ibsend = _begun(awaited.Comm.Ibsend)
    Bsend_init = _persistent(awaited.Comm.Bsend_init)
    Detach_buffer = _blocking(awaited.Comm.Detach_buffer)
    Sendrecv_replace = _blocking(awaited.Comm.Sendrecv_replace)
    Rsend = _blocking(awaited.Comm.Rsend)
    Irsend = _begun(awaited.Comm.Irsend)
    Rsend_init = _persistent(awaited.Comm.Rsend_init)
    Isend = _begun(awaited.Comm.Isend)
    Issend = _begun(awaited.Comm.Issend)
    Irecv = _begun(awaited.Comm.Irecv)
    Send_init = _persistent(awaited.Comm.Send_init)
    Ssend_init = _persistent(awaited.Comm.Ssend_init)
    Recv_init = _persistent(awaited.Comm.Recv_init)

    send = _blocking(awaited.Comm.send)
    rsend = _blocking(awaited.Comm.rsend)
    irsend = _begun(awaited.Comm.irsend)
    bsend = _blocking(awaited.Comm.bsend)
    ibsend = _begun(awaited.Comm.ibsend)
    ssend = _blocking(awaited.Comm.ssend)
    recv = _blocking(awaited.Comm.recv)
    sendrecv = _blocking(awaited.Comm.sendrecv)
    isend = _begun(awaited.Comm.isend)
    issend = _begun(awaited.Comm.issend)
    irecv = _begun(awaited.Comm.irecv)

    Probe = _blocking(awaited.Comm.Probe)
    Iprobe = _blocking(awaited.Comm.Iprobe)
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

    Barrier = _blocking(awaited.Comm.Barrier)
    Bcast = _blocking(awaited.Comm.Bcast)
    Gather = _blocking(awaited.Comm.Gather)
    Gatherv = _blocking(awaited.Comm.Gatherv)
    Scatter = _blocking(awaited.Comm.Scatter)
    Scatterv = _blocking(awaited.Comm.Scatterv)
    Allgather = _blocking(awaited.Comm.Allgather)
    Allgatherv = _blocking(awaited.Comm.Allgatherv)
    Alltoall = _blocking(awaited.Comm.Alltoall)
    Alltoallv = _blocking(awaited.Comm.Alltoallv)
    Alltoallw = _blocking(awaited.Comm.Alltoallw)
    Reduce = _blocking(awaited.Comm.Reduce)
    Allreduce = _blocking(awaited.Comm.Allreduce)
    Reduce_scatter_block = _blocking(awaited.Comm.Reduce_scatter_block)
    Reduce_scatter = _blocking(awaited.Comm.Reduce_scatter)
    Scan = _blocking(awaited.Comm.Scan)
    Exscan = _blocking(awaited.Comm.Exscan)

    Ibarrier = _begun(awaited.Comm.Ibarrier)
    Ibcast = _begun(awaited.Comm.Ibcast)
    Igather = _begun(awaited.Comm.Igather)
    Igatherv = _begun(awaited.Comm.Igatherv)
    Iscatter = _begun(awaited.Comm.Iscatter)
    Iscatterv = _begun(awaited.Comm.Iscatterv)
    Iallgather = _begun(awaited.Comm.Iallgather)
    Iallgatherv = _begun(awaited.Comm.Iallgatherv)
    Ialltoall = _begun(awaited.Comm.Ialltoall)
    Ialltoallv = _begun(awaited.Comm.Ialltoallv)
    Ialltoallw = _begun(awaited.Comm.Ialltoallw)
    Ireduce = _begun(awaited.Comm.Ireduce)
    Iallreduce = _begun(awaited.Comm.Iallreduce)
    Ireduce_scatter_block = _begun(awaited.Comm.Ireduce_scatter_block)
    Ireduce_scatter = _begun(awaited.Comm.Ireduce_scatter)
    Iscan = _begun(awaited.Comm.Iscan)
    Iexscan = _begun(awaited.Comm.Iexscan)

    barrier = Barrier
    bcast = _blocking(awaited.Comm.bcast)
    gather = _blocking(awaited.Comm.gather)
    scatter = _blocking(awaited.Comm.scatter)
    allgather = _blocking(awaited.Comm.allgather)
    alltoall = _blocking(awaited.Comm.alltoall)
    reduce = _blocking(awaited.Comm.reduce)
    allreduce = _blocking(awaited.Comm.allreduce)
    scan = _blocking(awaited.Comm.scan)
    exscan = _blocking(awaited.Comm.exscan)

    @property
    def algorithms(self) -> Algorithms:
        """See `comm.Comm`."""
        return self.awaited.algorithms

    def Attach_buffer(self, buf: bytearray | memoryview) -> None:
        """See `point_to_point.PointToPoint.Attach_buffer`."""
        self.awaited.Attach_buffer(buf)

    def Dup(self, info: None = None) -> Comm:
        """See `comm.Comm.Dup`."""
        return Comm(self.run(self.awaited.Dup(info)), self.run)

    Clone = Dup

    def Is_intra(self) -> bool:
        return True

    def Is_inter(self) -> bool:
        return False

    is_intra = property(Is_intra)
    is_inter = property(Is_inter)

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """See `comm.Comm.Split`."""
        part = self.run(self.awaited.Split(color, key))
        return None if part is None else Comm(part, self.run)

    def Idup(self) -> tuple[Comm, Request]:
        """See `comm.Comm.Idup`."""
        made, request = self.run(self.awaited.Idup())
        return Comm(made, self.run), Request(request, self.run)

    def Create(self, group: Group) -> Comm | None:
        """See `comm.Comm.Create`."""
        part = self.run(self.awaited.Create(group))
        return None if part is None else Comm(part, self.run)

    def Create_group(self, group: Group, tag: int = 0) -> Comm | None:
        """See `comm.Comm.Create_group`."""
        part = self.run(self.awaited.Create_group(group, tag))
        return None if part is None else Comm(part, self.run)

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> Cartcomm | None:
        """See `comm.Comm.Create_cart`."""
        part = self.run(self.awaited.Create_cart(dims, periods, reorder))
        return None if part is None else Cartcomm(part, self.run)

    def Get_group(self) -> Group:
        """See `comm.Comm.Get_group`."""
        return self.awaited.Get_group()

    @classmethod
    def Compare(cls, comm1: Comm, comm2: Comm) -> int:
        """See `comm.Comm.Compare`."""
        return awaited.Comm.Compare(comm1.awaited, comm2.awaited)

    @property
    def group(self) -> Group:
        return self.awaited.Get_group()

    def Free(self) -> None:
        """See `comm.Comm.Free`."""
        self.awaited.Free()

    def Abort(self, errorcode: int = 1) -> None:
        """End the program, and the run."""
        raise SystemExit(f"rank {self.rank} has called Abort, with error code {errorcode}")


class Cartcomm(Comm):
    """See `comm.Cartcomm`."""

    __slots__ = ("_cartesian",)

    def __init__(self, awaited: awaited.Cartcomm, run: Run) -> None:
        super().__init__(awaited, run)
        self._cartesian = awaited

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
        return Cartcomm(self.run(self._cartesian.Sub(remain_dims)), self.run)


def _at_once(work: Work[T], /) -> T:
    """Run a coroutine of completed transfers, which does not wait."""
    while True:
        try:
            work.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _null() -> Request:
    null = requests.Request(nothing())
    null.active = False
    return Request(null, _at_once)


REQUEST_NULL: Final = _null()
"""The null request: it is complete."""
