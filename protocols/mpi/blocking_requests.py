"""Requests and matched messages for blocking programs (`blocking_calls` has communicators), and the base class of blocking
wrappers.

A wrapper has no implementation of its own: it calls the wrapped object's method, and passes the coroutine to `run`,
which the environment of a blocking program provides. `run` drives the coroutine to its end; other tasks run while it waits.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from protocols.mpi import mpi_messages, requests
from protocols.mpi.buffers import Message as Buffer
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import null_transfer
from protocols.mpi.mpi_errors import ERR_REQUEST, Handle, MPIError, check_type
from protocols.mpi.mpi_status import Status

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

CallCoroutine = Coroutine[Any, None, T]
"""Coroutine of an ``async def`` in this package: it yields the completions that it awaits, and is sent None."""


class CoroutineRunner(Protocol):
    """A function that drives a coroutine to its end, and returns its result or raises its exception."""

    def __call__(self, coroutine: CallCoroutine[T], /) -> T: ...


class BlockingWrapper(Handle, Generic[A]):
    """Blocking wrapper of an object with coroutines. wrapped: the object. run: drives its coroutines."""

    __slots__ = ("__weakref__", "run", "wrapped")

    def __init__(self, wrapped: A, run: CoroutineRunner) -> None:
        self.wrapped = wrapped
        self.run = run

    def __repr__(self) -> str:
        return repr(self.wrapped)

    def __reduce__(self) -> NoReturn:
        raise ValueError(f"a {type(self).__name__} cannot be pickled: it belongs to its rank")

    def handle_error(self, error: MPIError) -> None:
        """Call the error handler, if the object has one, before an error is raised."""


def blocking(
    method: Callable[Concatenate[A, P], CallCoroutine[T]],
) -> Callable[Concatenate[BlockingWrapper[Any], P], T]:
    """Make a wrapper's blocking method from a coroutine method of the wrapped object."""

    @wraps(method)
    def call(wrapper: BlockingWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return wrapper.run(method(wrapper.wrapped, *args, **kwargs))
        except MPIError as error:
            wrapper.handle_error(error)
            raise

    return call


def nonblocking(
    method: Callable[Concatenate[A, P], CallCoroutine[requests.Request]],
) -> Callable[Concatenate[BlockingWrapper[Any], P], Request]:
    """Make a wrapper's method from a coroutine method that returns a request."""

    @wraps(method)
    def call(wrapper: BlockingWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> Request:
        try:
            return Request(wrapper.run(method(wrapper.wrapped, *args, **kwargs)), wrapper.run)
        except MPIError as error:
            wrapper.handle_error(error)
            raise

    return call


def persistent(
    method: Callable[Concatenate[A, P], CallCoroutine[requests.Prequest]],
) -> Callable[Concatenate[BlockingWrapper[Any], P], Prequest]:
    """Make a wrapper's method from a coroutine method that returns a persistent request."""

    @wraps(method)
    def call(wrapper: BlockingWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> Prequest:
        try:
            return Prequest(wrapper.run(method(wrapper.wrapped, *args, **kwargs)), wrapper.run)
        except MPIError as error:
            wrapper.handle_error(error)
            raise

    return call


def for_requests(
    method: Callable[Concatenate[Sequence[requests.Request], P], CallCoroutine[T]],
) -> Callable[Concatenate[type[Request], Sequence[Request], P], T]:
    """Make a blocking class method for several requests from a coroutine class method of `requests.Request`."""

    @wraps(method)
    def call(_: type[Request], handles: Sequence[Request], /, *args: P.args, **kwargs: P.kwargs) -> T:
        for handle in handles:
            check_type(handle, Request)
        run = next((handle.run for handle in handles if handle.wrapped.active), run_completed)
        return run(method([handle.wrapped for handle in handles], *args, **kwargs))

    return call


class Request(BlockingWrapper[requests.Request]):
    """Blocking wrapper of `requests.Request`. Without an argument it is REQUEST_NULL."""

    __slots__ = ()

    def __init__(self, request: requests.Request | Request | None = None, run: CoroutineRunner | None = None) -> None:
        """request: a request, or a handle to copy."""
        if request is None:
            request = requests.Request(null_transfer())
            request.active = False
        if isinstance(request, Request):
            run, request = request.run, request.wrapped
        elif not isinstance(request, requests.Request):
            raise TypeError(f"a Request is expected, not {type(request).__name__}")
        super().__init__(request, run or run_completed)

    @property
    def active(self) -> bool:
        """Whether the request is started, and no wait or test has completed it."""
        return self.wrapped.active

    def __bool__(self) -> bool:
        """Whether the request is not REQUEST_NULL, which a completed request becomes."""
        return self.wrapped.active

    def __eq__(self, other: object) -> bool:
        """Whether both are handles of one request, or both are REQUEST_NULL."""
        return isinstance(other, Request) and (self.wrapped is other.wrapped or not (self or other))

    __hash__ = None  # type: ignore[assignment]  # as in mpi4py; mutable: a completed request becomes REQUEST_NULL

    def Free(self) -> None:
        """Free the request: it becomes REQUEST_NULL, and its transfer continues. Raises MPIError (ERR_REQUEST) for
        REQUEST_NULL."""
        if not self:
            raise MPIError(ERR_REQUEST, "REQUEST_NULL cannot be freed")
        requests.Request.Free(self.wrapped)

    Wait = blocking(requests.Request.Wait)
    wait = blocking(requests.Request.wait)
    Test = blocking(requests.Request.Test)
    test = blocking(requests.Request.test)
    Get_status = blocking(requests.Request.Get_status)
    get_status = Get_status
    Cancel = blocking(requests.Request.Cancel)
    cancel = Cancel

    Waitall = classmethod(for_requests(requests.Request.Waitall))
    waitall = classmethod(for_requests(requests.Request.waitall))
    Testall = classmethod(for_requests(requests.Request.Testall))
    testall = classmethod(for_requests(requests.Request.testall))
    Waitany = classmethod(for_requests(requests.Request.Waitany))
    waitany = classmethod(for_requests(requests.Request.waitany))
    Testany = classmethod(for_requests(requests.Request.Testany))
    testany = classmethod(for_requests(requests.Request.testany))
    Waitsome = classmethod(for_requests(requests.Request.Waitsome))
    waitsome = classmethod(for_requests(requests.Request.waitsome))
    Testsome = classmethod(for_requests(requests.Request.Testsome))
    testsome = classmethod(for_requests(requests.Request.testsome))
    Get_status_all = classmethod(for_requests(requests.Request.Get_status_all))
    Get_status_any = classmethod(for_requests(requests.Request.Get_status_any))
    Get_status_some = classmethod(for_requests(requests.Request.Get_status_some))
    get_status_all = Get_status_all
    get_status_any = Get_status_any
    get_status_some = Get_status_some


class Prequest(Request):
    """Blocking wrapper of `requests.Prequest`."""

    __slots__ = ("_persistent",)

    def __init__(self, request: requests.Prequest | Request | None = None, run: CoroutineRunner | None = None) -> None:
        super().__init__(request, run)
        self._persistent = self.wrapped if isinstance(self.wrapped, requests.Prequest) else None

    def Start(self) -> None:
        """Start the transfer."""
        self.run(self._persistent_or_error().Start())

    @classmethod
    def Startall(cls, handles: Sequence[Prequest]) -> None:
        """Start all, in order."""
        for handle in handles:
            handle.Start()

    def Free(self) -> None:
        """Free the request, which cannot be started again: all handles of it become REQUEST_NULL."""
        self._persistent_or_error().Free()

    def __bool__(self) -> bool:
        return self._persistent is not None and not self._persistent.is_freed

    def _persistent_or_error(self) -> requests.Prequest:
        if self._persistent is None:
            raise MPIError(ERR_REQUEST, "the persistent request is REQUEST_NULL")
        return self._persistent


class Message(BlockingWrapper[mpi_messages.Message]):
    """Blocking wrapper of `mpi_messages.Message`. Without an argument it is MESSAGE_NULL, which a received message becomes,
    too."""

    __slots__ = ()

    def __init__(
        self, message: mpi_messages.Message | Message | None = None, run: CoroutineRunner | None = None
    ) -> None:
        """message: a message, or a handle to copy."""
        if message is None:
            message = mpi_messages.Message.null()
        if isinstance(message, Message):
            run, message = message.run, message.wrapped
        elif not isinstance(message, mpi_messages.Message):
            raise TypeError(f"a Message is expected, not {type(message).__name__}")
        super().__init__(message, run or run_completed)

    def __bool__(self) -> bool:
        """Whether it is not MESSAGE_NULL."""
        return not self.wrapped.is_null

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return False
        return self.wrapped is other.wrapped or (self.wrapped.is_null and other.wrapped.is_null)

    __hash__ = None  # type: ignore[assignment]  # as in mpi4py; mutable: a received message becomes MESSAGE_NULL

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
        self.run(self.wrapped.Recv(buf, status))
        self._become_null()

    def recv(self, status: Status | None = None) -> object:
        """See `mpi_messages.Message.recv`."""
        obj = self.run(self.wrapped.recv(status))
        self._become_null()
        return obj

    def Irecv(self, buf: Buffer) -> Request:
        """See `mpi_messages.Message.Irecv`."""
        request = Request(self.run(self.wrapped.Irecv(buf)), self.run)
        self._become_null()
        return request

    def irecv(self) -> Request:
        """See `mpi_messages.Message.irecv`."""
        request = Request(self.run(self.wrapped.irecv()), self.run)
        self._become_null()
        return request

    def _become_null(self) -> None:
        """Make this handle MESSAGE_NULL after the message has been taken, unless it is the constant MESSAGE_NO_PROC."""
        if self is not MESSAGE_NO_PROC:
            self.wrapped = mpi_messages.Message.null()


def run_completed(coroutine: CallCoroutine[T], /) -> T:
    """Drive a coroutine that waits only for complete transfers: it is resumed at once each time it yields."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


REQUEST_NULL: Final = Request()
"""The null request: a wait returns at once."""

MESSAGE_NULL: Final = Message()
MESSAGE_NO_PROC: Final = Message(mpi_messages.NO_PROC)
"""Result of a matched probe of PROC_NULL."""
