"""The segment driver: the part of the host's kernel that binds endpoints to the NIC's endpoint frames on demand, and
pages them.

Networks are virtualised like memory: an endpoint that is written to while it is not resident, or for which a message
arrives, faults. The driver finds a frame for it; if none is free, another endpoint gives up its own. The NIC, which
knows when no packet of that endpoint is in flight any more, asks the host to release it (RELEASE); then its page is
written back.

The choice of that endpoint is ours: the least recently used of the idle ones. The driver maps host memory that the NIC
asks for; if this exceeds the settings, it unmaps the oldest mappings of endpoints that are not resident.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

from protocols.am2 import page as layout
from protocols.am2.nic_memory import NOBODY, Backing
from protocols.am2.settings import Settings
from protocols.core.firmware import HostActions
from protocols.core.memory import PAGE

if TYPE_CHECKING:
    from protocols.am2.host.endpoint import Endpoint
    from protocols.am2.host.library import ActiveMessages

_ODD: Final = 0x9E37_79B1  # from the golden ratio: pseudo-random numbers are equal in every run
_WORD: Final = 4
"""Bytes that the kernel writes to notify the NIC."""


class Residence(Enum):
    """Location of an endpoint."""

    ON_HOST = "on the host"
    FAULTING = "wanted in the NIC, and on the host until there is a frame"
    LOADING = "on its way into a frame"
    RESIDENT = "in the NIC"
    LEAVING = "in the NIC, and asked to leave"
    RELEASED = "in the NIC, and not the host's any more"


class SegmentDriver:
    """The segment driver of one host. faults: number of faults served."""

    def __init__(self, bell: HostActions, memory: Backing, settings: Settings, library: ActiveMessages) -> None:
        self._bell = bell
        self._memory = memory
        self._settings = settings
        self._library = library
        self._states: dict[Endpoint, Residence] = {}  # in order of creation
        self._queue: deque[Endpoint] = deque()  # endpoints with a fault
        self._loaded: list[Endpoint] = []  # in order of loading
        self._releases: list[Endpoint] = []  # endpoints to release when the handler that is running has ended
        self.unsettled = False
        """Whether an operation waits for the end of the running handler (`handled`)."""
        self._is_serving = False
        self._served = 0
        self.faults = 0

    def state(self, endpoint: Endpoint) -> Residence:
        return self._states[endpoint]

    def create(self, endpoint: Endpoint) -> None:
        self._states[endpoint] = Residence.ON_HOST
        self._memory.register(endpoint.name.endpoint, endpoint.backing)
        self._notify(endpoint, layout.CREATE)
        if not self._settings.virtual:
            self.fault(endpoint)
            self.remap(endpoint, layout.STAGING)

    def privilege(self, endpoint: Endpoint) -> None:
        """Make a new endpoint the mapper daemon's."""
        self._notify(endpoint, layout.PRIVILEGE)

    def destroy(self, endpoint: Endpoint) -> None:
        number, memory = endpoint.name.endpoint, self._memory
        del self._states[endpoint]
        endpoint.moved(None)
        for listed in (self._queue, self._loaded, self._releases):
            if endpoint in listed:
                listed.remove(endpoint)
        for region in [region for region in memory.reachable if region >> layout.SUBJECTS == number]:
            del memory.reachable[region]
        self._notify(endpoint, layout.DESTROY)

    def fault(self, endpoint: Endpoint) -> None:
        """Handle a fault: the endpoint must become resident."""
        if self._states.get(endpoint) is Residence.ON_HOST:
            self._states[endpoint] = Residence.FAULTING
            self._queue.append(endpoint)
            self.faults += 1
            self._serve()

    def remap(self, endpoint: Endpoint, subject: int) -> None:
        """Replace memory of an endpoint. The new one is mapped on demand; at once if endpoints are not virtual."""
        region = endpoint.name.endpoint << layout.SUBJECTS | subject
        self._memory.reachable.pop(region, None)
        if not self._settings.virtual and (view := endpoint.region(subject)) is not None:
            self._memory.reachable[region] = view

    def on_interrupt(self, endpoint: Endpoint, subject: int) -> None:
        """Handle the NIC's interrupt about an endpoint."""
        if subject == layout.LOADED:
            self._states[endpoint] = Residence.RESIDENT
            self._loaded.append(endpoint)
            endpoint.moved(self._memory.frames[self._memory.bound.index(endpoint.name.endpoint)])
            self._serve()
        elif subject == layout.RELEASE:
            if self._states[endpoint] is Residence.RESIDENT:  # another host process gets its frame
                self._states[endpoint] = Residence.LEAVING
                self._loaded.remove(endpoint)
            if self._library.handling is endpoint:
                self._releases.append(endpoint)
                self.unsettled = True
            else:
                self._release(endpoint)
        elif subject == layout.UNLOADED:
            self._unloaded(endpoint)
        elif subject == layout.FAULT:
            self.fault(endpoint)

    def handled(self) -> None:
        """Continue what has waited for the end of a handler."""
        self.unsettled = False
        while self._releases:
            self._release(self._releases.pop())
        self._serve()

    def release(self, number: int, subject: int) -> None:
        """Handle the NIC's interrupt about a destroyed endpoint. Until the NIC reports its release, it may write into
        the frame and the page."""
        memory = self._memory
        if subject == layout.UNLOADED:
            memory.release(number)
            if number in memory.bound:
                memory.bind(memory.bound.index(number), NOBODY)
            self._serve()

    def waiting(self) -> list[str]:
        return [
            f"endpoint {endpoint.name.endpoint} is {state.value}"
            for endpoint, state in self._states.items()
            if state not in (Residence.ON_HOST, Residence.RESIDENT)
        ]

    def _serve(self) -> None:
        """Find frames for endpoints with a fault. The NIC may answer one doorbell before the next is rung."""
        if self._is_serving:
            return
        self._is_serving = True
        bound = self._memory.bound
        try:
            while self._queue and NOBODY in bound:
                self._load(self._next(), bound.index(NOBODY))
            vacated = sum(state in (Residence.LEAVING, Residence.RELEASED) for state in self._states.values())
            while len(self._queue) > vacated and (victim := self._victim()) is not None:
                self._states[victim] = Residence.LEAVING
                self._loaded.remove(victim)
                vacated += 1
                self._notify(victim, layout.UNLOAD)
            self.unsettled |= len(self._queue) > vacated and self._library.handling is not None
        finally:
            self._is_serving = False
        if self._queue and NOBODY in bound:
            self._serve()

    def _next(self) -> Endpoint:
        """Choose the endpoint that gets the next frame: the one that has waited longest, or, half of the time, any.
        Strict order would always have the same endpoints resident together; others that talk to each other would never
        be."""
        self._served = turn = self._served + 1
        queue = self._queue
        place = 0 if turn % 2 else (turn * _ODD >> 16) % len(queue)
        endpoint = queue[place]
        del queue[place]
        return endpoint

    def _load(self, endpoint: Endpoint, frame: int) -> None:
        self._states[endpoint] = Residence.LOADING
        self._memory.bind(frame, endpoint.name.endpoint)
        self._memory.frames[frame][:] = endpoint.backing
        self._notify(endpoint, layout.LOAD, layout.SIZE)

    def _victim(self) -> Endpoint | None:
        """Choose the endpoint that gives up its frame."""
        loaded = [endpoint for endpoint in self._loaded if endpoint is not self._library.handling]
        idle = [endpoint for endpoint in loaded if endpoint.is_empty and endpoint.outbox.is_idle]
        candidates = idle or loaded
        if self._settings.replacement == "random" and candidates:
            return candidates[(self.faults * _ODD >> 16) % len(candidates)]
        return min(candidates, key=lambda endpoint: endpoint.used, default=None)

    def _release(self, endpoint: Endpoint) -> None:
        if self._states.get(endpoint) is not Residence.LEAVING:
            return
        self._states[endpoint] = Residence.RELEASED
        endpoint.moved(None)
        self._notify(endpoint, layout.RELEASED)

    def _unloaded(self, endpoint: Endpoint) -> None:
        memory = self._memory
        frame = memory.bound.index(endpoint.name.endpoint)
        memory.save(frame, endpoint.backing)
        memory.bind(frame, NOBODY)
        self._states[endpoint] = Residence.ON_HOST
        backing = endpoint.backing
        if any(backing[layout.PLACES[slot]] == layout.READY for slot in range(2 * layout.ENTRIES)):
            self.fault(endpoint)  # it has unsent messages
        self._serve()
        endpoint.changed()

    def map(self, endpoint: Endpoint, subject: int) -> None:
        """Handle the NIC's interrupt for memory: let it reach a region of the endpoint's."""
        region = endpoint.name.endpoint << layout.SUBJECTS | subject
        try:
            view = endpoint.region(subject)
        except MemoryError:  # the NIC asks again when the message arrives again
            view = None
        if view is None:
            self._bell.ring_doorbell(region << layout.SUBJECTS | layout.ABSENT, _WORD, 0)
            return
        self._memory.reachable[region] = view
        self._unmap()
        self._bell.ring_doorbell(region << layout.SUBJECTS | layout.MAPPED, _WORD, -(-len(view) // PAGE))

    def _unmap(self) -> None:
        """Remove the oldest mappings above the settings' limit, among those of non-resident endpoints. Mappings of
        resident endpoints stay, since they are in use or will be when a packet is resent."""
        reachable = self._memory.reachable
        excess = len(reachable) - self._settings.mappings
        if excess > 0:
            bound = set(self._memory.bound)
            idle = [region for region in reachable if region >> layout.SUBJECTS not in bound]
            for region in idle[:excess]:
                del reachable[region]

    def _notify(self, endpoint: Endpoint, subject: int, written: int = 0) -> None:
        self._bell.ring_doorbell(endpoint.name.endpoint << layout.SUBJECTS | subject, _WORD + written, 0)
