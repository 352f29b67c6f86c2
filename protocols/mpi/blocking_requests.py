"""Requests and matched messages for programs that block, as `blocking_calls` has communicators; and the wrapper of an
awaited object.

There is one implementation. A call here makes the awaited call's coroutine and passes it to `run`, which the
environment of a blocking program provides: it drives the coroutine, and lets everything else run while that waits.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from protocols.mpi import mpi_messages, requests
from protocols.mpi.buffers import Message as Buffer
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import nothing
from protocols.mpi.mpi_errors import ERR_REQUEST, Handle, MPIError
from protocols.mpi.mpi_status import Status

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

Work = Coroutine[Any, None, T]
"""Coroutine of an ``async def`` in this package: it yields what it waits for, and is sent nothing."""


class Run(Protocol):
    """Drives a coroutine to its end, and returns or raises its result."""

    def __call__(self, work: Work[T], /) -> T: ...


class Face(Handle, Generic[A]):
    """Blocking wrapper. awaited: the wrapped object."""

    __slots__ = ("__weakref__", "awaited", "run")

    def __init__(self, awaited: A, run: Run) -> None:
        self.awaited = awaited
        self.run = run

    def __repr__(self) -> str:
        return repr(self.awaited)

    def __reduce__(self) -> NoReturn:
        raise ValueError(f"a {type(self).__name__} cannot be pickled: it belongs to its rank")

    def handle(self, error: MPIError) -> None:
        """Handle an error before it is raised."""


def blocking(method: Callable[Concatenate[A, P], Work[T]]) -> Callable[Concatenate[Face[Any], P], T]:
    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **named: P.kwargs) -> T:
        try:
            return face.run(method(face.awaited, *args, **named))
        except MPIError as error:
            face.handle(error)
            raise

    return call


def begun(
    method: Callable[Concatenate[A, P], Work[requests.Request]],
) -> Callable[Concatenate[Face[Any], P], Request]:
    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **named: P.kwargs) -> Request:
        try:
            return Request(face.run(method(face.awaited, *args, **named)), face.run)
        except MPIError as error:
            face.handle(error)
            raise

    return call


def persistent(
    method: Callable[Concatenate[A, P], Work[requests.Prequest]],
) -> Callable[Concatenate[Face[Any], P], Prequest]:
    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **named: P.kwargs) -> Prequest:
        try:
            return Prequest(face.run(method(face.awaited, *args, **named)), face.run)
        except MPIError as error:
            face.handle(error)
            raise

    return call


def together(
    method: Callable[Concatenate[Sequence[requests.Request], P], Work[T]],
) -> Callable[Concatenate[type[Request], Sequence[Request], P], T]:
    @wraps(method)
    def call(_: type[Request], several: Sequence[Request], /, *args: P.args, **named: P.kwargs) -> T:
        run = next((one.run for one in several if one.awaited.active), at_once)
        return run(method([one.awaited for one in several], *args, **named))

    return call


class Request(Face[requests.Request]):
    """See `requests.Request`. Without an argument it is REQUEST_NULL."""

    __slots__ = ()

    def __init__(self, request: requests.Request | Request | None = None, run: Run | None = None) -> None:
        """request: also another handle of the same request."""
        if request is None:
            request = requests.Request(nothing())
            request.active = False
        if isinstance(request, Request):
            run, request = request.run, request.awaited
        elif not isinstance(request, requests.Request):
            raise TypeError(f"a Request is expected, not {type(request).__name__}")
        super().__init__(request, run or at_once)

    @property
    def active(self) -> bool:
        """Whether it has not been waited for yet."""
        return self.awaited.active

    def __bool__(self) -> bool:
        """Whether it is not REQUEST_NULL, which a completed request becomes."""
        return self.awaited.active

    def __eq__(self, other: object) -> bool:
        """Whether both are one request, or both REQUEST_NULL."""
        return isinstance(other, Request) and (self.awaited is other.awaited or not (self or other))

    __hash__ = object.__hash__

    def Free(self) -> None:
        """Free the request: it becomes REQUEST_NULL, and its transfer goes on. Raises MPIError (ERR_REQUEST) for the
        null request."""
        if not self:
            raise MPIError(ERR_REQUEST, "the null request cannot be freed")
        self.awaited.active = False

    Wait = blocking(requests.Request.Wait)
    wait = blocking(requests.Request.wait)
    Test = blocking(requests.Request.Test)
    test = blocking(requests.Request.test)
    Get_status = blocking(requests.Request.Get_status)
    get_status = Get_status
    Cancel = blocking(requests.Request.Cancel)
    cancel = Cancel

    Waitall = classmethod(together(requests.Request.Waitall))
    waitall = classmethod(together(requests.Request.waitall))
    Testall = classmethod(together(requests.Request.Testall))
    testall = classmethod(together(requests.Request.testall))
    Waitany = classmethod(together(requests.Request.Waitany))
    waitany = classmethod(together(requests.Request.waitany))
    Testany = classmethod(together(requests.Request.Testany))
    testany = classmethod(together(requests.Request.testany))
    Waitsome = classmethod(together(requests.Request.Waitsome))
    waitsome = classmethod(together(requests.Request.waitsome))
    Testsome = classmethod(together(requests.Request.Testsome))
    testsome = classmethod(together(requests.Request.testsome))


class Prequest(Request):
    """See `requests.Prequest`."""

    __slots__ = ("_is_freed", "_persistent")

    def __init__(self, request: requests.Prequest | Request | None = None, run: Run | None = None) -> None:
        super().__init__(request, run)
        self._persistent = self.awaited if isinstance(self.awaited, requests.Prequest) else None
        self._is_freed = self._persistent is None

    def Start(self) -> None:
        """Start the transfer."""
        self.run(self._known().Start())

    @classmethod
    def Startall(cls, several: Sequence[Prequest]) -> None:
        """Start all, in order."""
        for one in several:
            one.Start()

    def Free(self) -> None:
        """Free the request, which cannot be used afterwards: it becomes REQUEST_NULL."""
        self._known().Free()
        self._is_freed = True

    def __bool__(self) -> bool:
        return not self._is_freed

    def _known(self) -> requests.Prequest:
        if self._persistent is None or self._is_freed:
            raise MPIError(ERR_REQUEST, "a persistent request that was freed")
        return self._persistent


class Message(Face[mpi_messages.Message]):
    """See `mpi_messages.Message`. Without an argument it is MESSAGE_NULL, as a message is once it has been received."""

    __slots__ = ()

    def __init__(self, message: mpi_messages.Message | Message | None = None, run: Run | None = None) -> None:
        """message: also another handle of the same message."""
        if message is None:
            message = mpi_messages.Message.null()
        if isinstance(message, Message):
            run, message = message.run, message.awaited
        elif not isinstance(message, mpi_messages.Message):
            raise TypeError(f"a Message is expected, not {type(message).__name__}")
        super().__init__(message, run or at_once)

    def __bool__(self) -> bool:
        """Whether it is not MESSAGE_NULL."""
        return not self.awaited.is_null

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return False
        return self.awaited is other.awaited or (self.awaited.is_null and other.awaited.is_null)

    __hash__ = None  # type: ignore[assignment]  # it changes

    @classmethod
    def Probe(cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """See `comm.Comm.Mprobe`."""
        return comm.Mprobe(source, tag, status)  # type: ignore[no-any-return]

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """See `comm.Comm.Improbe`."""
        return comm.Improbe(source, tag, status)  # type: ignore[no-any-return]

    probe = Probe
    iprobe = Iprobe

    def Recv(self, buf: Buffer, status: Status | None = None) -> None:
        """See `mpi_messages.Message.Recv`."""
        self.run(self._take().Recv(buf, status))

    def recv(self, status: Status | None = None) -> object:
        """See `mpi_messages.Message.recv`."""
        return self.run(self._take().recv(status))

    def Irecv(self, buf: Buffer) -> Request:
        """See `mpi_messages.Message.Irecv`."""
        return Request(self.run(self._take().Irecv(buf)), self.run)

    def irecv(self) -> Request:
        """See `mpi_messages.Message.irecv`."""
        return Request(self.run(self._take().irecv()), self.run)

    def _take(self) -> mpi_messages.Message:
        """Return the message; this handle becomes MESSAGE_NULL, unless it is the constant MESSAGE_NO_PROC."""
        taken = self.awaited
        if self is not MESSAGE_NO_PROC:
            self.awaited = mpi_messages.Message.null()
        return taken


def at_once(work: Work[T], /) -> T:
    """Run a coroutine of completed transfers, which does not wait."""
    while True:
        try:
            work.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


REQUEST_NULL: Final = Request()
"""The null request: it is complete."""

MESSAGE_NULL: Final = Message()
MESSAGE_NO_PROC: Final = Message(mpi_messages.NO_PROC)
"""The message that a matched probe finds at PROC_NULL."""
