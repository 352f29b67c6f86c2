"""Requests: handles of transfers in progress.

As in MPI, a request becomes inactive when a wait or a successful test has completed it; further calls return at once,
with an empty result. A persistent request can then be started again.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from protocols.core.completion import Completion, Yield
from protocols.mpi.constants import UNDEFINED
from protocols.mpi.device import Device, FailureRecipient, ObjectReceive, SendCompletion
from protocols.mpi.mpi_errors import CANCELLED, ERR_IN_STATUS, ERR_REQUEST, Envelope, MPIError, check_type
from protocols.mpi.mpi_status import Status


class Request:
    """Request of one transfer. As in mpi4py, lower-case calls return the received object (None for a send). Every call is
    awaited; ``await request`` is ``await request.wait()``.

    The call that completes a failed request raises MPIError, and fills the status nevertheless.
    """

    __slots__ = ("_completion", "_device", "_first_done", "_incoming", "_is_receive", "_is_watched", "_ranks", "active")

    def __init__(
        self,
        completion: Completion[Envelope],
        incoming: ObjectReceive | None = None,
        is_receive: bool = False,
        device: Device | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """incoming: the receive of an object. is_receive: whether the status describes a received message. device: for
        `Cancel`. ranks: the device's ranks by the communicator's; None: equal."""
        self._completion = completion
        self._incoming = incoming
        self._is_receive = is_receive
        self._device = device
        self._ranks = ranks
        self._first_done: Completion[None] | None = None  # awaited by a caller that waits for any of several requests
        self._is_watched = False
        self.active = True
        """Whether it is started, and no wait or test has completed it."""
        if isinstance(completion, SendCompletion):
            completion.report_failures_to(FailureRecipient.REQUEST)

    def __repr__(self) -> str:
        return f"<Request: {self._completion!r}>" if self.active else "<Request: inactive>"

    def __await__(self) -> Generator[Completion[Envelope], None, object]:
        return self.wait().__await__()

    async def Wait(self, status: Status | None = None) -> bool:
        """Wait until it is complete; returns True."""
        await self.wait(status)
        return True

    async def wait(self, status: Status | None = None) -> object:
        """Wait until it is complete; returns its object."""
        if self.active and not self._completion.done:
            await self._wait_quietly()
        return self._take_result(status)

    async def Test(self, status: Status | None = None) -> bool:
        """Whether it is complete. If not, other tasks run first."""
        return (await self.test(status))[0]

    async def test(self, status: Status | None = None) -> tuple[bool, object]:
        """Whether it is complete, and its object. If not, other tasks run first.

        In a simulation, an unsuccessful test returns after the next event.
        """
        if await self._test():
            return True, self._take_result(status)
        return False, None

    async def Get_status(self, status: Status | None = None) -> bool:
        """Test without deactivating the request."""
        if not await self._test():
            return False
        if status is not None:
            self._fill_status(status)
        return True

    get_status = Get_status

    async def Cancel(self) -> None:
        """Cancel the transfer if possible: it completes soon, and the status shows whether it was cancelled. A receive
        cannot be cancelled once a message has matched it, a send once the NIC has it, and the send of an object of more
        than `device.FIRST_SIZE` bytes never. Raises MPIError (ERR_REQUEST) for an inactive request."""
        if not self.active:
            raise MPIError(ERR_REQUEST, "an inactive request cannot be cancelled")
        if self._device is not None:
            self._device.cancel(self._completion if self._incoming is None else self._incoming.first_receive)

    cancel = Cancel

    def Free(self) -> None:
        """Deactivate the request; its transfer continues. If a send fails then, a later call reports it (see `device`).
        Raises MPIError (ERR_REQUEST) for an inactive request."""
        if not self.active:
            raise MPIError(ERR_REQUEST, "an inactive request cannot be freed")
        self.active = False
        self._leave_failures_to_later_calls()

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
                await request._wait_quietly()
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
        if not _are_complete(requests):
            await Yield()
            if not _are_complete(requests):
                return False, None
        return True, _take_all(requests, statuses)

    @classmethod
    async def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait for any request; returns its index, or UNDEFINED if none is active."""
        return (await cls.waitany(requests, status))[0]

    @classmethod
    async def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, object]:
        """Wait for any request; returns its index and its object. The index is UNDEFINED if none is active."""
        await _wait_for_any(requests)
        return _take_any(requests, status)

    @classmethod
    async def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the index of a complete request, and True; UNDEFINED and True if none is active; otherwise UNDEFINED and
        False."""
        return (await cls.testany(requests, status))[:2]

    @classmethod
    async def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, object]:
        """Test as Testany, and also return the object."""
        if not _complete_indices(requests):
            await Yield()
        if not _complete_indices(requests) and any(request.active for request in requests):
            return UNDEFINED, False, None
        index, value = _take_any(requests, status)
        return index, True, value

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
        await _wait_for_any(requests)
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
        if not _complete_indices(requests):
            await Yield()
        return _take_some(requests, statuses)

    @classmethod
    async def Get_status_all(cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Testall without deactivating the requests, and without raising their errors, which are in the statuses."""
        if not _are_complete(requests):
            await Yield()
        if not _are_complete(requests):
            return False
        _fill_statuses(requests, statuses)
        return True

    @classmethod
    async def Get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Testany without deactivating the request, and without raising its error."""
        if not _complete_indices(requests):
            await Yield()
        indices = _complete_indices(requests)
        if not indices and any(request.active for request in requests):
            return UNDEFINED, False
        if status is not None and indices:
            requests[indices[0]]._fill_status(status)
        elif status is not None:
            status.fill(None)
        return (indices[0] if indices else UNDEFINED), True

    @classmethod
    async def Get_status_some(
        cls, requests: Sequence[Request], statuses: Sequence[Status] | None = None
    ) -> list[int] | None:
        """Testsome without deactivating the requests, and without raising their errors."""
        if not _complete_indices(requests):
            await Yield()
        if not any(request.active for request in requests):
            return None
        indices = _complete_indices(requests)
        _fill_statuses([requests[index] for index in indices], statuses)
        return indices

    get_status_all = Get_status_all
    get_status_any = Get_status_any
    get_status_some = Get_status_some

    @property
    def is_complete(self) -> bool:
        """Whether a wait for the request would return at once."""
        return not self.active or self._completion.done

    async def _test(self) -> bool:
        if not self.is_complete:
            await Yield()
        return self.is_complete

    async def _wait_quietly(self) -> None:
        with suppress(MPIError):  # `_take_result` raises it
            await self._completion

    def _fill_status(self, status: Status) -> None:
        """Fill a status, without raising the request's error."""
        check_type(status, Status)
        try:
            envelope = self._completion.result() if self.active else None
        except MPIError as error:
            status.fill(self._in_communicator(error.envelope), error.error_class)
        else:
            status.fill(self._in_communicator(envelope) if self._is_receive or envelope is CANCELLED else None)

    def _take_result(self, status: Status | None) -> object:
        """Return the result of a complete transfer, and deactivate the request."""
        if status is not None:
            self._fill_status(status)
        if not self.active:
            return None
        self.active = False
        if isinstance(self._completion, SendCompletion):
            self._completion.mark_reported()
        envelope = self._completion.result()
        if self._incoming is None or envelope is CANCELLED:
            return None
        try:
            return self._incoming.load()
        except MPIError as error:
            if status is not None:
                status.error = error.error_class
            raise

    def _leave_failures_to_later_calls(self) -> None:
        if isinstance(self._completion, SendCompletion):
            self._completion.report_failures_to(FailureRecipient.NONE)

    def _in_communicator(self, envelope: Envelope | None) -> Envelope | None:
        """Convert the source to a rank of the communicator."""
        if self._ranks is None or envelope is None or envelope.source < 0:
            return envelope
        return envelope._replace(source=self._ranks.index(envelope.source))

    def _watch(self, first: Completion[None]) -> None:
        """Complete `first` when this request completes. Repeated calls register only one callback."""
        self._first_done = first
        if not self._is_watched:
            self._is_watched = True
            self._completion.add_callback(self._on_done)

    def _on_done(self, completion: Completion[Envelope]) -> None:
        if completion is self._completion and self._first_done is not None and not self._first_done.done:
            self._first_done.complete(None)


class Prequest(Request):
    """A persistent request: a transfer that `Start` can begin repeatedly. It is inactive before `Start`, and after a wait or
    test has completed it. `Start` and `Free` of a freed request raise MPIError (ERR_REQUEST)."""

    __slots__ = ("_begin", "is_freed")

    def __init__(
        self,
        begin: Callable[[], Completion[Envelope]],
        is_receive: bool = False,
        device: Device | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        unstarted: Completion[Envelope] = Completion("a request that was never started")
        super().__init__(unstarted, None, is_receive, device, ranks)
        self._begin = begin
        self.active = False
        self.is_freed = False

    async def Start(self) -> None:
        """Start the transfer. Raises MPIError (ERR_REQUEST) while it is active."""
        self._check_not_freed()
        if self.active:
            raise MPIError(ERR_REQUEST, "the persistent request is active: wait for it before it is started again")
        self._completion = completion = self._begin()
        if isinstance(completion, SendCompletion):
            completion.report_failures_to(FailureRecipient.REQUEST)
        self._first_done = None
        self._is_watched = False
        self.active = True

    @classmethod
    async def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start all, in order."""
        for request in requests:
            await request.Start()

    def Free(self) -> None:
        """Free the request, which cannot be started again; a transfer in progress continues. If a send fails then, a later
        call reports it (see `device`)."""
        self._check_not_freed()
        self.is_freed = True
        if self.active:
            self._leave_failures_to_later_calls()

    def _check_not_freed(self) -> None:
        if self.is_freed:
            raise MPIError(ERR_REQUEST, "the persistent request was freed")


def _are_complete(requests: Sequence[Request]) -> bool:
    return all(request.is_complete for request in requests)


def _complete_indices(requests: Sequence[Request]) -> list[int]:
    """Return the indices of the requests that are active and complete."""
    return [index for index, request in enumerate(requests) if request.active and request.is_complete]


async def _wait_for_any(requests: Sequence[Request]) -> None:
    """Wait until an active request is complete, if any request is active."""
    active = [request for request in requests if request.active]
    if not active or _complete_indices(active):
        return
    first: Completion[None] = Completion(f"one of {len(active)} requests, among them {active[0]._completion.what}")
    for request in active:
        request._watch(first)
    await first


def _take_any(requests: Sequence[Request], status: Status | None) -> tuple[int, object]:
    for index in _complete_indices(requests):
        return index, requests[index]._take_result(status)
    if status is not None:
        status.fill(None)
    return UNDEFINED, None


def _take_some(
    requests: Sequence[Request], statuses: Sequence[Status] | None
) -> tuple[list[int] | None, list[object] | None]:
    if not any(request.active for request in requests):
        return None, None
    indices = _complete_indices(requests)
    return indices, _take_all([requests[index] for index in indices], statuses)


def _take_all(requests: Sequence[Request], statuses: Sequence[Status] | None) -> list[object]:
    """Return the results of complete requests, and deactivate the requests. Raises MPIError (ERR_IN_STATUS) if some
    failed."""
    _extend(statuses, len(requests))
    objects: list[object] = []
    failures: list[MPIError] = []
    for index, request in enumerate(requests):
        try:
            # As in mpi4py, a tuple with too few statuses gets the results of the first requests only.
            has_status = statuses is not None and index < len(statuses)
            objects.append(request._take_result(statuses[index] if statuses is not None and has_status else None))
        except MPIError as error:
            failures.append(error)
    if failures:
        message = f"{len(failures)} of {len(requests)} requests have failed, the first because {failures[0]}"
        raise MPIError(ERR_IN_STATUS, message) from failures[0]
    return objects


def _fill_statuses(requests: Sequence[Request], statuses: Sequence[Status] | None) -> None:
    """Fill the statuses of complete requests; of the first ones only, if a tuple has too few statuses."""
    _extend(statuses, len(requests))
    for request, status in zip(requests, statuses or (), strict=False):
        request._fill_status(status)


def _extend(statuses: Sequence[Status] | None, count: int) -> None:
    """Extend a list of statuses to `count` elements, as mpi4py does; a tuple stays unchanged."""
    if isinstance(statuses, list):
        statuses += [Status() for _ in range(count - len(statuses))]
