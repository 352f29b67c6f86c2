"""Requests: transfers under way. As in MPI one is over for the program once it has been waited for or tested
successfully; what is asked of it then is answered at once, and with nothing. A persistent one can then be started again."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.constants import UNDEFINED
from protocols.mpi.device import Device
from protocols.mpi.errors import CANCELLED, ERR_ARG, ERR_IN_STATUS, ERR_REQUEST, Envelope, MPIError
from protocols.mpi.objects import Incoming
from protocols.mpi.status import Status

_DONE: Final[Completion[None]] = Completion("its turn: it polls")
_DONE.complete(None)


class Turn:
    """Awaited, it lets everybody else who is ready go first."""

    __slots__ = ()

    def __await__(self) -> Generator[Completion[None], None, None]:
        yield _DONE


class Request:
    """One transfer. Capital letters: of a buffer, as in mpi4py; small ones: of an object, which they return (None of a
    send). Every call is awaited; ``await request`` is ``await request.wait()``.

    What fails raises MPIError where it is waited for, and its status is filled all the same.
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
        """incoming: of a receive for an object. received: whether it is a receive, which has something to tell. device: by
        which it can be cancelled. ranks: the device's, in the order of the communicator's, where they are others."""
        self._over = over
        self._incoming = incoming
        self._received = received
        self._device = device
        self._ranks = ranks
        self._any: Completion[None] | None = None  # who waits for this or another one
        self._watched = False
        self.active = True
        """Whether it has not been waited for yet."""

    def __repr__(self) -> str:
        return f"<Request: {self._over!r}>" if self.active else "<Request: over>"

    def __await__(self) -> Generator[Completion[Envelope], None, object]:
        return self.wait().__await__()

    async def Wait(self, status: Status | None = None) -> bool:
        """Wait until it is over; True."""
        await self.wait(status)
        return True

    async def wait(self, status: Status | None = None) -> object:
        """Wait until it is over; its object."""
        if self.active and not self._over.done:
            await self._end()
        return self._take(status)

    async def Test(self, status: Status | None = None) -> bool:
        """Whether it is over. If not, others get their turn meanwhile."""
        return (await self.test(status))[0]

    async def test(self, status: Status | None = None) -> tuple[bool, object]:
        """Whether it is over, and its object. If not, others get their turn meanwhile.

        Where the clock is a simulation's, a test that finds nothing goes on when something else has happened.
        """
        if await self._is_over():
            return True, self._take(status)
        return False, None

    async def Get_status(self, status: Status | None = None) -> bool:
        """As Test, but it stays to be waited for."""
        if not await self._is_over():
            return False
        if status is not None:
            self._tell(status)
        return True

    async def Cancel(self) -> None:
        """Give it up: it is over soon, with a status that says so, or as if nothing had been said, if that was too late. Too
        late is, for a receive, when it has its message; for a send, when the NIC has it. Raises MPIError (ERR_REQUEST) for
        what has been waited for."""
        if not self.active:
            raise MPIError(ERR_REQUEST, "a request that is over cannot be cancelled")
        if self._device is not None:
            self._device.cancel(self._over if self._incoming is None else self._incoming.first)

    cancel = Cancel

    @classmethod
    async def Waitall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Wait for all; True. Raises MPIError (ERR_IN_STATUS) when all are over and some have failed."""
        await cls.waitall(requests, statuses)
        return True

    @classmethod
    async def waitall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> list[object]:
        """Wait for all; their objects. Raises MPIError (ERR_IN_STATUS) when all are over and some have failed."""
        _check(requests, statuses)
        for request in requests:
            if request.active:
                await request._end()
        return _take_all(requests, statuses)

    @classmethod
    async def Testall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Whether all are over; if not, none is for the program. Raises as Waitall."""
        return (await cls.testall(requests, statuses))[0]

    @classmethod
    async def testall(
        cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[bool, list[object] | None]:
        """Whether all are over, and their objects. Raises as Waitall."""
        _check(requests, statuses)
        if not _are_over(requests):
            await Turn()
            if not _are_over(requests):
                return False, None
        return True, _take_all(requests, statuses)

    @classmethod
    async def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait for one; its index, or UNDEFINED if none is active."""
        return (await cls.waitany(requests, status))[0]

    @classmethod
    async def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, object]:
        """Wait for one; its index and its object. The index is UNDEFINED if none is active."""
        await _end_of_any(requests)
        return _take_any(requests, status)

    @classmethod
    async def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """The index of one that is over, and True; UNDEFINED and True if none is active; UNDEFINED and False else."""
        return (await cls.testany(requests, status))[:2]

    @classmethod
    async def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, object]:
        """As Testany, and the object."""
        if not _some(requests):
            await Turn()
        if not _some(requests) and any(request.active for request in requests):
            return UNDEFINED, False, None
        place, value = _take_any(requests, status)
        return place, True, value

    @classmethod
    async def Waitsome(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> list[int] | None:
        """Wait for at least one; the indices of all that are over, or None if none is active. Statuses are in the order of
        these. Raises MPIError (ERR_IN_STATUS) when some of them have failed."""
        return (await cls.waitsome(requests, statuses))[0]

    @classmethod
    async def waitsome(
        cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[list[int] | None, list[object] | None]:
        """As Waitsome, and the objects."""
        _check(requests, statuses)
        await _end_of_any(requests)
        return _take_some(requests, statuses)

    @classmethod
    async def Testsome(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> list[int] | None:
        """The indices of all that are over, perhaps of none; None if none is active. Raises as Waitsome."""
        return (await cls.testsome(requests, statuses))[0]

    @classmethod
    async def testsome(
        cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[list[int] | None, list[object] | None]:
        """As Testsome, and the objects."""
        _check(requests, statuses)
        if not _some(requests):
            await Turn()
        return _take_some(requests, statuses)

    @property
    def is_over(self) -> bool:
        """Whether waiting for it would take no time."""
        return not self.active or self._over.done

    async def _is_over(self) -> bool:
        if not self.is_over:
            await Turn()
        return self.is_over

    async def _end(self) -> None:
        with suppress(MPIError):  # raised by who takes the outcome
            await self._over

    def _tell(self, status: Status) -> None:
        """Fill a status; nothing is raised."""
        try:
            envelope = self._over.result() if self.active else None
        except MPIError as error:
            status.fill(self._seen(error.envelope), error.error_class)
        else:
            status.fill(self._seen(envelope) if self._received or envelope is CANCELLED else None)

    def _take(self, status: Status | None) -> object:
        """The outcome of a transfer that is over, which then is for the program, too."""
        if status is not None:
            self._tell(status)
        if not self.active:
            return None
        self.active = False
        envelope = self._over.result()
        return self._incoming.load() if self._incoming is not None and envelope is not CANCELLED else None

    def _seen(self, envelope: Envelope | None) -> Envelope | None:
        """With the communicator's rank."""
        if self._ranks is None or envelope is None or envelope.source < 0:
            return envelope
        return envelope._replace(source=self._ranks.index(envelope.source))

    def _watch(self, first: Completion[None]) -> None:
        """One callback serves all the times that it is among those waited for."""
        self._any = first
        if not self._watched:
            self._watched = True
            self._over.add_callback(self._notice)

    def _notice(self, over: Completion[Envelope]) -> None:
        if over is self._over and self._any is not None and not self._any.done:
            self._any.complete(None)


class Prequest(Request):
    """A persistent request: what one transfer is, begun again and again by `Start`. Not active before that, and when it has
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
        """Begin it. Raises MPIError (ERR_REQUEST) while it is active."""
        if self.active:
            raise MPIError(ERR_REQUEST, "a persistent request that is active cannot be started")
        self._over = self._begin()
        self._any = None
        self._watched = False
        self.active = True

    @classmethod
    async def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Begin all, in their order."""
        for request in requests:
            await request.Start()

    def Free(self) -> None:
        """It is not to be used any more."""


def _check(requests: Sequence[Request], statuses: Sequence[Status] | None) -> None:
    if statuses is not None and len(statuses) < len(requests):
        raise MPIError(ERR_ARG, f"{len(statuses)} statuses for {len(requests)} requests")


def _are_over(requests: Sequence[Request]) -> bool:
    return all(request.is_over for request in requests)


def _some(requests: Sequence[Request]) -> list[int]:
    """The places of those that are active and over."""
    return [place for place, request in enumerate(requests) if request.active and request.is_over]


async def _end_of_any(requests: Sequence[Request]) -> None:
    """Wait until one of those that are active is over, if there are any."""
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
    """Of requests that are over. Raises MPIError (ERR_IN_STATUS) where some have failed, when all have been taken."""
    objects: list[object] = []
    failures: list[MPIError] = []
    for place, request in enumerate(requests):
        try:
            objects.append(request._take(None if statuses is None else statuses[place]))
        except MPIError as error:
            failures.append(error)
    if failures:
        message = f"{len(failures)} of {len(requests)} requests have failed, the first because {failures[0]}"
        raise MPIError(ERR_IN_STATUS, message) from failures[0]
    return objects
