"""The segment driver: the host's kernel, which binds endpoints to the NIC's endpoint frames on demand and pages them.

"Virtualising the network" as virtual memory is: an endpoint that is written while it is not resident, or for which a
message comes, faults; the driver finds it a frame, and if there is none, another endpoint gives up its own. It is asked
to by the NIC (RELEASE), which knows when nothing of it is under way any more; then its page is written back.

Which endpoint that is, is our choice: of those with nothing to do the one that was used least recently. What the NIC
asks to reach of host memory, the driver maps; where that is more than the settings have, it unmaps what has been mapped
for longest of endpoints that are not resident.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

from protocols.am2 import page as layout
from protocols.am2.nic_memory import NOBODY, Backing
from protocols.am2.settings import Settings
from protocols.core.firmware import Bell
from protocols.core.memory import PAGE

if TYPE_CHECKING:
    from protocols.am2.host.endpoint import Endpoint
    from protocols.am2.host.library import ActiveMessages

_ODD: Final = 0x9E37_79B1  # bits of the golden ratio: what is random is the same in every run
_WORD: Final = 4
"""Bytes that the kernel writes to tell the NIC something."""


class Residence(Enum):
    """Where an endpoint is."""

    ON_HOST = "on the host"
    FAULTING = "wanted in the NIC, and on the host until there is a frame"
    LOADING = "on its way into a frame"
    RESIDENT = "in the NIC"
    LEAVING = "in the NIC, and asked to leave"
    RELEASED = "in the NIC, and not the host's any more"


class SegmentDriver:
    """faults: that it has served."""

    def __init__(self, bell: Bell, memory: Backing, settings: Settings, library: ActiveMessages) -> None:
        self._bell = bell
        self._memory = memory
        self._settings = settings
        self._library = library
        self._states: dict[Endpoint, Residence] = {}  # in the order in which they were created
        self._queue: deque[Endpoint] = deque()  # faulting
        self._loaded: list[Endpoint] = []  # in the order in which they came into their frames
        self._releases: list[Endpoint] = []  # whose handler runs, and which are to be released then
        self.unsettled = False
        """Something waits for the end of the handler that runs (`handled`)."""
        self._is_serving = False
        self._served = 0
        self.faults = 0

    def state(self, endpoint: Endpoint) -> Residence:
        return self._states[endpoint]

    def create(self, endpoint: Endpoint) -> None:
        self._states[endpoint] = Residence.ON_HOST
        self._memory.begin(endpoint.name.endpoint, endpoint.backing)
        self._tell(endpoint, layout.CREATE)
        if not self._settings.virtual:
            self.fault(endpoint)
            self.remap(endpoint, layout.STAGING)

    def destroy(self, endpoint: Endpoint) -> None:
        number, memory = endpoint.name.endpoint, self._memory
        del self._states[endpoint]
        endpoint.moved(None)
        for listed in (self._queue, self._loaded, self._releases):
            if endpoint in listed:
                listed.remove(endpoint)
        for region in [one for one in memory.reachable if one >> layout.SUBJECTS == number]:
            del memory.reachable[region]
        self._tell(endpoint, layout.DESTROY)

    def fault(self, endpoint: Endpoint) -> None:
        """It is wanted in the NIC."""
        if self._states.get(endpoint) is Residence.ON_HOST:
            self._states[endpoint] = Residence.FAULTING
            self._queue.append(endpoint)
            self.faults += 1
            self._serve()

    def remap(self, endpoint: Endpoint, subject: int) -> None:
        """That memory of its is another one now. It is mapped when it is needed; at once where nothing is virtual."""
        region = endpoint.name.endpoint << layout.SUBJECTS | subject
        self._memory.reachable.pop(region, None)
        if not self._settings.virtual and (view := endpoint.region(subject)) is not None:
            self._memory.reachable[region] = view

    def told(self, endpoint: Endpoint, subject: int) -> None:
        """The NIC interrupts."""
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
        """No handler runs any more."""
        self.unsettled = False
        while self._releases:
            self._release(self._releases.pop())
        self._serve()

    def gone(self, number: int, subject: int) -> None:
        """The NIC interrupts about an endpoint that there is not any more. Until it says that it has let go, it may write
        into its frame and its page."""
        memory = self._memory
        if subject == layout.UNLOADED:
            memory.gone(number)
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
        """Find frames for those that are wanted. The NIC may answer before it is told the next thing."""
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
                self._tell(victim, layout.UNLOAD)
            self.unsettled |= len(self._queue) > vacated and self._library.handling is not None
        finally:
            self._is_serving = False
        if self._queue and NOBODY in bound:
            self._serve()

    def _next(self) -> Endpoint:
        """Who gets the next frame: who has waited for longest, or, every other time, any. Always the former would have the
        same endpoints in the NIC at the same time, and others that talk to each other never."""
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
        self._tell(endpoint, layout.LOAD, layout.SIZE)

    def _victim(self) -> Endpoint | None:
        """Who gives up its frame."""
        there = [one for one in self._loaded if one is not self._library.handling]
        idle = [one for one in there if one.is_empty and one.outbox.is_idle]
        candidates = idle or there
        if self._settings.replacement == "random" and candidates:
            return candidates[(self.faults * _ODD >> 16) % len(candidates)]
        return min(candidates, key=lambda one: one.used, default=None)

    def _release(self, endpoint: Endpoint) -> None:
        if self._states.get(endpoint) is not Residence.LEAVING:
            return
        self._states[endpoint] = Residence.RELEASED
        endpoint.moved(None)
        self._tell(endpoint, layout.RELEASED)

    def _unloaded(self, endpoint: Endpoint) -> None:
        memory = self._memory
        frame = memory.bound.index(endpoint.name.endpoint)
        memory.unloaded(frame, endpoint.backing)
        memory.bind(frame, NOBODY)
        self._states[endpoint] = Residence.ON_HOST
        backing = endpoint.backing
        if any(backing[layout.PLACES[slot]] == layout.READY for slot in range(2 * layout.ENTRIES)):
            self.fault(endpoint)  # it has not sent all
        self._serve()
        endpoint.changed()

    def map(self, endpoint: Endpoint, subject: int) -> None:
        """The NIC interrupts: let it reach that of the endpoint's memory."""
        region = endpoint.name.endpoint << layout.SUBJECTS | subject
        try:
            view = endpoint.region(subject)
        except MemoryError:  # the NIC asks again when the message comes again
            view = None
        if view is None:
            self._bell.doorbell(region << layout.SUBJECTS | layout.ABSENT, _WORD, 0)
            return
        self._memory.reachable[region] = view
        self._unmap()
        self._bell.doorbell(region << layout.SUBJECTS | layout.MAPPED, _WORD, -(-len(view) // PAGE))

    def _unmap(self) -> None:
        """Have no more mappings than the settings say, as long as endpoints have some that are not resident. What those in
        the NIC use, now or when a packet comes again, stays."""
        reachable = self._memory.reachable
        excess = len(reachable) - self._settings.mappings
        if excess > 0:
            bound = set(self._memory.bound)
            idle = [region for region in reachable if region >> layout.SUBJECTS not in bound]
            for region in idle[:excess]:
                del reachable[region]

    def _tell(self, endpoint: Endpoint, subject: int, written: int = 0) -> None:
        self._bell.doorbell(endpoint.name.endpoint << layout.SUBJECTS | subject, _WORD + written, 0)
