"""Requests: transfers in progress.

As in MPI, a request is inactive once it has been waited for or tested successfully; further calls return at once, with
an empty result. A persistent request can then be started again.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from protocols.core.completion import Completion, Yield
from protocols.mpi.constants import UNDEFINED
from protocols.mpi.device import Device, Dispatch, Incoming, Observer
from protocols.mpi.mpi_errors import CANCELLED, ERR_IN_STATUS, ERR_REQUEST, Envelope, MPIError
from protocols.mpi.mpi_status import Status


class Request:
    """One transfer. Upper-case calls are about buffers, as in mpi4py; lower-case ones about objects, which they return
    (None for a send). Every call is awaited; ``await request`` is ``await request.wait()``.

    A failure raises MPIError in the call that waits for it, and still fills the status.
    """

    __slots__ = ("_any", "_device", "_incoming", "_over", "_ranks", "_received", "_watched", "active")

    def __init__(
        self,
        over: Completion[Envelope],
        incoming: Incoming | None = None,
        received: bool = False,
        device: Device | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """incoming: of a receive for an object. received: whether it is a receive, whose status has values. device: for
        cancelling. ranks: the device's, in the order of the communicator's, if they differ."""
        self._over = over
        self._incoming = incoming
        self._received = received
        self._device = device
        self._ranks = ranks
        self._any: Completion[None] | None = None  # completed for a caller that waits for any of several
        self._watched = False
        self.active = True
        """Whether it has not been waited for yet."""
        if isinstance(over, Dispatch):
            over.leave_to(Observer.REQUEST)

    def __repr__(self) -> str:
        return f"<Request: {self._over!r}>" if self.active else "<Request: over>"

    def __await__(self) -> Generator[Completion[Envelope], None, object]:
        return self.wait().__await__()

    async def Wait(self, status: Status | None = None) -> bool:
        """Wait until it is complete; returns True."""
        await self.wait(status)
        return True

    async def wait(self, status: Status | None = None) -> object:
        """Wait until it is complete; returns its object."""
        if self.active and not self._over.done:
            await self._end()
        return self._take(status)

    async def Test(self, status: Status | None = None) -> bool:
        """Whether it is complete. If not, other tasks run first."""
        return (await self.test(status))[0]

    async def test(self, status: Status | None = None) -> tuple[bool, object]:
        """Whether it is complete, and its object. If not, other tasks run first.

        In a simulation, a test without success continues when something else has happened.
        """
        if await self._is_over():
            return True, self._take(status)
        return False, None

    async def Get_status(self, status: Status | None = None) -> bool:
        """Test without deactivating the request."""
        if not await self._is_over():
            return False
        if status is not None:
            self._tell(status)
        return True

    get_status = Get_status

    async def Cancel(self) -> None:
        """Cancel it if possible: it completes soon, with a status that tells whether it was cancelled. A receive cannot
        be cancelled once it has its message, nor a send once the NIC has it. Raises MPIError (ERR_REQUEST) for an
        inactive request."""
        if not self.active:
            raise MPIError(ERR_REQUEST, "a request that is over cannot be cancelled")
        if self._device is not None:
            self._device.cancel(self._over if self._incoming is None else self._incoming.first)

    cancel = Cancel

    @classmethod
    async def Waitall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Wait for all; returns True. Raises MPIError (ERR_IN_STATUS) when all are complete and some have failed."""
        await cls.waitall(requests, statuses)
        return True

    @classmethod
    async def waitall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> list[object]:
        """Wait for all; returns their objects. Raises MPIError (ERR_IN_STATUS) when all are complete and some have
        failed."""
        for request in requests:
            if request.active:
                await request._end()
        return _take_all(requests, statuses)

    @classmethod
    async def Testall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Whether all are complete; if not, all stay active. Raises as Waitall."""
        return (await cls.testall(requests, statuses))[0]

    @classmethod
    async def testall(
        cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[bool, list[object] | None]:
        """Whether all are complete, and their objects. Raises as Waitall."""
        if not _are_over(requests):
            await Yield()
            if not _are_over(requests):
                return False, None
        return True, _take_all(requests, statuses)

    @classmethod
    async def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait for one; returns its index, or UNDEFINED if none is active."""
        return (await cls.waitany(requests, status))[0]

    @classmethod
    async def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, object]:
        """Wait for one; returns its index and its object. The index is UNDEFINED if none is active."""
        await _end_of_any(requests)
        return _take_any(requests, status)

    @classmethod
    async def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the index of a complete one, and True; UNDEFINED and True if none is active; otherwise UNDEFINED and
        False."""
        return (await cls.testany(requests, status))[:2]

    @classmethod
    async def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, object]:
        """Test as Testany, and also return the object."""
        if not _some(requests):
            await Yield()
        if not _some(requests) and any(request.active for request in requests):
            return UNDEFINED, False, None
        place, value = _take_any(requests, status)
        return place, True, value

    @classmethod
    async def Waitsome(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> list[int] | None:
        """Wait for at least one; returns the indices of all that are complete, or None if none is active. Statuses are
        in the order of the indices. Raises MPIError (ERR_IN_STATUS) if some of them have failed."""
        return (await cls.waitsome(requests, statuses))[0]

    @classmethod
    async def waitsome(
        cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[list[int] | None, list[object] | None]:
        """Wait as Waitsome, and also return the objects."""
        await _end_of_any(requests)
        return _take_some(requests, statuses)

    @classmethod
    async def Testsome(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> list[int] | None:
        """Return the indices of all that are complete, possibly none; None if none is active. Raises as Waitsome."""
        return (await cls.testsome(requests, statuses))[0]

    @classmethod
    async def testsome(
        cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[list[int] | None, list[object] | None]:
        """Test as Testsome, and also return the objects."""
        if not _some(requests):
            await Yield()
        return _take_some(requests, statuses)

    @property
    def is_over(self) -> bool:
        """Whether waiting for it would return at once."""
        return not self.active or self._over.done

    async def _is_over(self) -> bool:
        if not self.is_over:
            await Yield()
        return self.is_over

    async def _end(self) -> None:
        with suppress(MPIError):  # raised by whoever takes the outcome
            await self._over

    def _tell(self, status: Status) -> None:
        """Fill a status, without raising."""
        try:
            envelope = self._over.result() if self.active else None
        except MPIError as error:
            status.fill(self._seen(error.envelope), error.error_class)
        else:
            status.fill(self._seen(envelope) if self._received or envelope is CANCELLED else None)

    def _take(self, status: Status | None) -> object:
        """Return the outcome of a complete transfer, and deactivate the request."""
        if status is not None:
            self._tell(status)
        if not self.active:
            return None
        self.active = False
        if isinstance(self._over, Dispatch):
            self._over.taken()
        envelope = self._over.result()
        if self._incoming is None or envelope is CANCELLED:
            return None
        try:
            return self._incoming.load()
        except MPIError as error:
            if status is not None:
                status.error = error.error_class
            raise

    def _seen(self, envelope: Envelope | None) -> Envelope | None:
        """Convert to the communicator's rank."""
        if self._ranks is None or envelope is None or envelope.source < 0:
            return envelope
        return envelope._replace(source=self._ranks.index(envelope.source))

    def _watch(self, first: Completion[None]) -> None:
        """Complete `first` when this request completes. Only one callback is registered, however often this is
        called."""
        self._any = first
        if not self._watched:
            self._watched = True
            self._over.add_callback(self._notice)

    def _notice(self, over: Completion[Envelope]) -> None:
        if over is self._over and self._any is not None and not self._any.done:
            self._any.complete(None)


class Prequest(Request):
    """A persistent request: a transfer that `Start` begins repeatedly. It is inactive before that, and after it has
    been waited for."""

    __slots__ = ("_begin",)

    def __init__(
        self,
        begin: Callable[[], Completion[Envelope]],
        received: bool = False,
        device: Device | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        nothing: Completion[Envelope] = Completion("a request that was never started")
        super().__init__(nothing, None, received, device, ranks)
        self._begin = begin
        self.active = False

    async def Start(self) -> None:
        """Start the transfer. Raises MPIError (ERR_REQUEST) while it is active."""
        if self.active:
            raise MPIError(ERR_REQUEST, "a persistent request that is active cannot be started")
        self._over = over = self._begin()
        if isinstance(over, Dispatch):
            over.leave_to(Observer.REQUEST)
        self._any = None
        self._watched = False
        self.active = True

    @classmethod
    async def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start all, in order."""
        for request in requests:
            await request.Start()

    def Free(self) -> None:
        """Free the request, which cannot be used afterwards."""


def _are_over(requests: Sequence[Request]) -> bool:
    return all(request.is_over for request in requests)


def _some(requests: Sequence[Request]) -> list[int]:
    """Return the indices of the requests that are active and complete."""
    return [place for place, request in enumerate(requests) if request.active and request.is_over]


async def _end_of_any(requests: Sequence[Request]) -> None:
    """Wait until one of the active requests is complete, if there are any."""
    active = [request for request in requests if request.active]
    if not active or _some(active):
        return
    first: Completion[None] = Completion(f"one of {len(active)} requests, among them {active[0]._over.what}")
    for request in active:
        request._watch(first)
    await first


def _take_any(requests: Sequence[Request], status: Status | None) -> tuple[int, object]:
    for place in _some(requests):
        return place, requests[place]._take(status)
    if status is not None:
        status.fill(None)
    return UNDEFINED, None


def _take_some(
    requests: Sequence[Request], statuses: Sequence[Status] | None
) -> tuple[list[int] | None, list[object] | None]:
    if not any(request.active for request in requests):
        return None, None
    places = _some(requests)
    return places, _take_all([requests[place] for place in places], statuses)


def _take_all(requests: Sequence[Request], statuses: Sequence[Status] | None) -> list[object]:
    """Return the outcomes of complete requests. Raises MPIError (ERR_IN_STATUS) if some have failed, after all have
    been taken."""
    if isinstance(statuses, list):  # it grows as needed
        statuses += [Status() for _ in range(len(requests) - len(statuses))]
    objects: list[object] = []
    failures: list[MPIError] = []
    for place, request in enumerate(requests):
        try:
            # A tuple that is too short gets what it has room for, as in mpi4py.
            has_place = statuses is not None and place < len(statuses)
            objects.append(request._take(statuses[place] if statuses is not None and has_place else None))
        except MPIError as error:
            failures.append(error)
    if failures:
        message = f"{len(failures)} of {len(requests)} requests have failed, the first because {failures[0]}"
        raise MPIError(ERR_IN_STATUS, message) from failures[0]
    return objects
