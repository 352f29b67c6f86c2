"""The segment driver: the part of the host's kernel that binds endpoints to the NIC's endpoint frames on demand, and
pages them.

Endpoints are paged like virtual memory. An endpoint faults if the program sends from it, or a message for it arrives,
while it is not resident. The driver finds a frame for it; if no frame is free, another endpoint must leave its frame.
The NIC asks the host to release that endpoint (RELEASE), waits until none of its packets is in flight, and writes its
page to host memory.

The choice of the endpoint that leaves is ours: by default, the least recently used of the idle ones. The driver maps
host memory that the NIC requests; above the settings' limit, it unmaps the oldest mappings of endpoints that are not
resident.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

from protocols.am2 import page as layout
from protocols.am2.nic_memory import NO_ENDPOINT, HostEndpointFrames
from protocols.am2.settings import Settings
from protocols.core.firmware import HostActions
from protocols.core.memory import PAGE

if TYPE_CHECKING:
    from protocols.am2.host.endpoint import Endpoint
    from protocols.am2.host.library import ActiveMessages

_MULTIPLIER: Final = 0x9E37_79B1  # from the golden ratio: for pseudo-random numbers that are the same in every run
_WORD_SIZE: Final = 4
"""Bytes that the kernel writes for a doorbell."""


class Residence(Enum):
    """Residency of an endpoint, as the host sees it."""

    ON_HOST = "on the host"
    FAULTING = "on the host, and waits for a frame"
    LOADING = "being loaded into a frame"
    RESIDENT = "in the NIC"
    LEAVING = "in the NIC, and about to leave its frame"
    RELEASED = "in the NIC, and released by the host"


class SegmentDriver:
    """The segment driver of one host. fault_count: number of faults."""

    def __init__(
        self, nic: HostActions, memory: HostEndpointFrames, settings: Settings, library: ActiveMessages
    ) -> None:
        self._nic = nic
        self._memory = memory
        self._settings = settings
        self._library = library
        self._states: dict[Endpoint, Residence] = {}  # in order of creation
        self._faulting: deque[Endpoint] = deque()  # endpoints that wait for a frame
        self._resident: list[Endpoint] = []  # resident endpoints, in order of loading
        self._deferred_releases: list[Endpoint] = []  # endpoints to release after the running handler
        self.has_deferred = False
        """Whether an operation waits for the end of the running handler (`run_deferred`)."""
        self._is_serving = False
        self._served_count = 0
        self.fault_count = 0

    def state(self, endpoint: Endpoint) -> Residence:
        """Return the residency of an endpoint."""
        return self._states[endpoint]

    def create(self, endpoint: Endpoint) -> None:
        """Register a new endpoint with the NIC. If endpoints are not virtual, load it and map its receive buffers."""
        self._states[endpoint] = Residence.ON_HOST
        self._memory.register(endpoint.name.endpoint, endpoint.backing)
        self._notify(endpoint, layout.CREATE)
        if not self._settings.virtual:
            self.fault(endpoint)
            self.remap(endpoint, layout.RECEIVE_STAGING)

    def privilege(self, endpoint: Endpoint) -> None:
        """Make a new endpoint privileged, for a mapper daemon."""
        self._notify(endpoint, layout.PRIVILEGE)

    def destroy(self, endpoint: Endpoint) -> None:
        """Remove the mappings of an endpoint, and have the NIC destroy it; then see `on_destroyed`."""
        number, memory = endpoint.name.endpoint, self._memory
        del self._states[endpoint]
        endpoint.set_page(None)
        for endpoints in (self._faulting, self._resident, self._deferred_releases):
            if endpoint in endpoints:
                endpoints.remove(endpoint)
        for region in [region for region in memory.mapped_regions if region >> layout.SUBJECT_BITS == number]:
            del memory.mapped_regions[region]
        self._notify(endpoint, layout.DESTROY)

    def fault(self, endpoint: Endpoint) -> None:
        """Handle a fault: load the endpoint, unless it is resident or about to be."""
        if self._states.get(endpoint) is Residence.ON_HOST:
            self._states[endpoint] = Residence.FAULTING
            self._faulting.append(endpoint)
            self.fault_count += 1
            self._serve_faults()

    def remap(self, endpoint: Endpoint, subject: int) -> None:
        """Replace the mapping of a region whose memory has changed. The new memory is mapped on demand; immediately if
        endpoints are not virtual."""
        region = endpoint.name.endpoint << layout.SUBJECT_BITS | subject
        self._memory.mapped_regions.pop(region, None)
        if not self._settings.virtual and (view := endpoint.region(subject)) is not None:
            self._memory.mapped_regions[region] = view

    def on_interrupt(self, endpoint: Endpoint, subject: int) -> None:
        """Handle the NIC's interrupt about an endpoint. subject: see `page`."""
        if subject == layout.LOADED:
            self._states[endpoint] = Residence.RESIDENT
            self._resident.append(endpoint)
            endpoint.set_page(self._memory.frames[self._memory.bound_endpoints.index(endpoint.name.endpoint)])
            self._serve_faults()
        elif subject == layout.RELEASE:
            if self._states[endpoint] is Residence.RESIDENT:  # another host process needs its frame
                self._states[endpoint] = Residence.LEAVING
                self._resident.remove(endpoint)
            if self._library.handling_endpoint is endpoint:
                self._deferred_releases.append(endpoint)
                self.has_deferred = True
            else:
                self._release(endpoint)
        elif subject == layout.UNLOADED:
            self._on_unloaded(endpoint)
        elif subject == layout.FAULT:
            self.fault(endpoint)

    def run_deferred(self) -> None:
        """Perform the operations that have waited for the end of a handler."""
        self.has_deferred = False
        while self._deferred_releases:
            self._release(self._deferred_releases.pop())
        self._serve_faults()

    def on_destroyed(self, number: int, subject: int) -> None:
        """Handle the NIC's interrupt about a destroyed endpoint. Until UNLOADED, the NIC may use its frame and page."""
        memory = self._memory
        if subject == layout.UNLOADED:
            memory.release(number)
            if number in memory.bound_endpoints:
                memory.bind(memory.bound_endpoints.index(number), NO_ENDPOINT)
            self._serve_faults()

    def pending_work(self) -> list[str]:
        return [
            f"endpoint {endpoint.name.endpoint} is {state.value}"
            for endpoint, state in self._states.items()
            if state not in (Residence.ON_HOST, Residence.RESIDENT)
        ]

    def _serve_faults(self) -> None:
        """Find frames for faulting endpoints. The NIC may answer a doorbell at once, and its interrupt calls this
        method again; then the outer call continues."""
        if self._is_serving:
            return
        self._is_serving = True
        bound = self._memory.bound_endpoints
        try:
            while self._faulting and NO_ENDPOINT in bound:
                self._load(self._choose_next(), bound.index(NO_ENDPOINT))
            vacated = sum(state in (Residence.LEAVING, Residence.RELEASED) for state in self._states.values())
            while len(self._faulting) > vacated and (victim := self._choose_victim()) is not None:
                self._states[victim] = Residence.LEAVING
                self._resident.remove(victim)
                vacated += 1
                self._notify(victim, layout.UNLOAD)
            self.has_deferred |= len(self._faulting) > vacated and self._library.handling_endpoint is not None
        finally:
            self._is_serving = False
        if self._faulting and NO_ENDPOINT in bound:
            self._serve_faults()

    def _choose_next(self) -> Endpoint:
        """Choose the endpoint that gets the next frame: alternately the one that has waited longest, and any one. In
        strict order the same endpoints would always be resident together, and two that communicate with each other
        might never be."""
        self._served_count = count = self._served_count + 1
        faulting = self._faulting
        index = 0 if count % 2 else (count * _MULTIPLIER >> 16) % len(faulting)
        endpoint = faulting[index]
        del faulting[index]
        return endpoint

    def _load(self, endpoint: Endpoint, frame: int) -> None:
        self._states[endpoint] = Residence.LOADING
        self._memory.bind(frame, endpoint.name.endpoint)
        self._memory.frames[frame][:] = endpoint.backing
        self._notify(endpoint, layout.LOAD, layout.SIZE)

    def _choose_victim(self) -> Endpoint | None:
        """Choose the endpoint that leaves its frame; None if none may leave."""
        resident = [endpoint for endpoint in self._resident if endpoint is not self._library.handling_endpoint]
        idle = [endpoint for endpoint in resident if endpoint.is_empty and endpoint.outbox.is_idle]
        candidates = idle or resident
        if self._settings.replacement == "random" and candidates:
            return candidates[(self.fault_count * _MULTIPLIER >> 16) % len(candidates)]
        return min(candidates, key=lambda endpoint: endpoint.last_use, default=None)

    def _release(self, endpoint: Endpoint) -> None:
        if self._states.get(endpoint) is not Residence.LEAVING:
            return
        self._states[endpoint] = Residence.RELEASED
        endpoint.set_page(None)
        self._notify(endpoint, layout.RELEASED)

    def _on_unloaded(self, endpoint: Endpoint) -> None:
        memory = self._memory
        frame = memory.bound_endpoints.index(endpoint.name.endpoint)
        memory.save(frame, endpoint.backing)
        memory.bind(frame, NO_ENDPOINT)
        self._states[endpoint] = Residence.ON_HOST
        backing = endpoint.backing
        has_unsent = any(backing[layout.SLOT_OFFSETS[slot]] == layout.READY for slot in range(2 * layout.RING_SIZE))
        if has_unsent or endpoint.has_doubtful_requests:
            self.fault(endpoint)
        self._serve_faults()
        endpoint.wake()

    def on_unmapped(self, endpoint: Endpoint, subject: int) -> None:
        """Handle the NIC's request for a mapping of a region of the endpoint."""
        region = endpoint.name.endpoint << layout.SUBJECT_BITS | subject
        try:
            view = endpoint.region(subject)
        except MemoryError:  # only receive buffers: the NIC requests them again when the message is resent
            view = None
        if view is None:
            self._nic.ring_doorbell(region << layout.SUBJECT_BITS | layout.ABSENT, _WORD_SIZE, 0)
            return
        self._memory.mapped_regions[region] = view
        self._unmap_excess()
        self._nic.ring_doorbell(region << layout.SUBJECT_BITS | layout.MAPPED, _WORD_SIZE, -(-len(view) // PAGE))

    def _unmap_excess(self) -> None:
        """Remove mappings above the settings' limit: the oldest ones of non-resident endpoints. Mappings of resident
        endpoints are kept, since they are in use or will be when a packet is resent."""
        mapped_regions = self._memory.mapped_regions
        excess = len(mapped_regions) - self._settings.mappings
        if excess > 0:
            bound = set(self._memory.bound_endpoints)
            idle = [region for region in mapped_regions if region >> layout.SUBJECT_BITS not in bound]
            for region in idle[:excess]:
                del mapped_regions[region]

    def _notify(self, endpoint: Endpoint, subject: int, written: int = 0) -> None:
        self._nic.ring_doorbell(endpoint.name.endpoint << layout.SUBJECT_BITS | subject, _WORD_SIZE + written, 0)
