"""Requests: transfers under way. As in MPI one is over for the program once it has been waited for or tested
successfully; what is asked of it then is answered at once, and with nothing."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.constants import UNDEFINED
from protocols.mpi.errors import ERR_ARG, ERR_IN_STATUS, Envelope, MPIError
from protocols.mpi.objects import Incoming
from protocols.mpi.status import Status

_DONE: Final[Completion[None]] = Completion("its turn: it polls")
_DONE.complete(None)


class _Turn:
    """Awaited, it lets everybody else who is ready go first."""

    __slots__ = ()

    def __await__(self) -> Generator[Completion[None], None, None]:
        yield _DONE


class Request:
    """One transfer. Capital letters: of a buffer, as in mpi4py; small ones: of an object, which they return (None of a
    send). Every call is awaited; ``await request`` is ``await request.wait()``.

    What fails raises MPIError where it is waited for, and its status is filled all the same.
    """

    __slots__ = ("_any", "_incoming", "_over", "_received", "_watched", "active")

    def __init__(self, over: Completion[Envelope], incoming: Incoming | None = None, received: bool = False) -> None:
        """incoming: of a receive for an object. received: whether it is a receive, which has something to tell."""
        self._over = over
        self._incoming = incoming
        self._received = received
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
        if not self._over.done:
            await self._end()
        return self._take(status)

    async def Test(self, status: Status | None = None) -> bool:
        """Whether it is over. If not, others get their turn meanwhile."""
        return (await self.test(status))[0]

    async def test(self, status: Status | None = None) -> tuple[bool, object]:
        """Whether it is over, and its object. If not, others get their turn meanwhile.

        Where the clock is a simulation's, a test that finds nothing goes on when something else has happened.
        """
        if self.active and not self._over.done:
            await _Turn()
            if not self._over.done:
                return False, None
        return True, self._take(status)

    @classmethod
    async def Waitall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Wait for all; True. Raises MPIError (ERR_IN_STATUS) when all are over and some have failed."""
        await cls.waitall(requests, statuses)
        return True

    @classmethod
    async def waitall(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> list[object]:
        """Wait for all; their objects. Raises MPIError (ERR_IN_STATUS) when all are over and some have failed."""
        if statuses is not None and len(statuses) < len(requests):
            raise MPIError(ERR_ARG, f"{len(statuses)} statuses for {len(requests)} requests")
        objects: list[object] = []
        failures: list[MPIError] = []
        for place, request in enumerate(requests):
            await request._end()
            try:
                objects.append(request._take(None if statuses is None else statuses[place]))
            except MPIError as error:
                failures.append(error)
        if failures:
            message = f"{len(failures)} of {len(requests)} requests have failed, the first because {failures[0]}"
            raise MPIError(ERR_IN_STATUS, message) from failures[0]
        return objects

    @classmethod
    async def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait for one; its index, or UNDEFINED if none is active."""
        return (await cls.waitany(requests, status))[0]

    @classmethod
    async def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, object]:
        """Wait for one; its index and its object. The index is UNDEFINED if none is active."""
        active = [(place, request) for place, request in enumerate(requests) if request.active]
        if active and not any(request._over.done for _, request in active):
            first: Completion[None] = Completion(f"one of {len(active)} requests, among them {active[0][1]._over.what}")
            for _, request in active:
                request._watch(first)
            await first
        for place, request in active:
            if request._over.done:
                return place, request._take(status)
        if status is not None:
            status.fill(None)
        return UNDEFINED, None

    async def _end(self) -> None:
        with suppress(MPIError):  # raised by who takes the outcome
            await self._over

    def _take(self, status: Status | None) -> object:
        """The outcome of a transfer that is over, which then is for the program, too."""
        if not self.active:
            if status is not None:
                status.fill(None)
            return None
        self.active = False
        try:
            envelope = self._over.result()
        except MPIError as error:
            if status is not None:
                status.fill(error.envelope, error.error_class)
            raise
        if status is not None:
            status.fill(envelope if self._received else None)
        return self._incoming.load() if self._incoming is not None else None

    def _watch(self, first: Completion[None]) -> None:
        """One callback serves all the times that it is among those waited for."""
        self._any = first
        if not self._watched:
            self._watched = True
            self._over.add_callback(self._tell)

    def _tell(self, _: Completion[Envelope]) -> None:
        if self._any is not None and not self._any.done:
            self._any.complete(None)
