"""Residency: which endpoints of a NIC's hosts are in its endpoint frames, how an endpoint leaves its frame, and which
endpoint gets a frame next.

The host's kernel does the paging (`host.segment_driver`): it binds an endpoint to a frame before it rings LOAD. If host
processes share the NIC, each has as many frames in its own memory as the NIC has in total, and pages its endpoints as
if it were alone. The NIC limits the number of frames in use, and takes a frame from the process that has the most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.card import Card
from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.nic_memory import NicEndpointFrames
from protocols.am2.sender import Sender

_EMPTY: Final = memoryview(b"")
_MULTIPLIER: Final = 0x9E37_79B1  # from the golden ratio: its multiples are spread evenly
_MASK: Final = 0xFFFF_FFFF
_RELEASE_TIMEOUT: Final = 50_000_000
"""Nanoseconds after which an endpoint leaves its frame although its host process has not released it; the process may
be stopped or uncooperative. The process's later writes stay in its own memory, and are read after the next load."""


class Residency:
    """The residency of all endpoints of one NIC. leaving: endpoints whose `leave_at` is set."""

    __slots__ = (
        "_advanced_at",
        "_awaiting",
        "_card",
        "_counters",
        "_hosts",
        "_loaded_at",
        "_on_privileged_loaded",
        "_resident",
        "_sender",
        "leaving",
    )

    def __init__(self, card: Card, sender: Sender, on_privileged_loaded: Callable[[int, NicEndpoint], object]) -> None:
        """on_privileged_loaded: called with the time and the privileged endpoint after its load, since its entries are
        not messages for the sender."""
        self._on_privileged_loaded = on_privileged_loaded
        self._card = card
        self._counters = card.counters
        self._sender = sender
        self._hosts: dict[int, NicEndpointFrames] = {}
        self._resident: dict[NicEndpoint, None] = {}  # in the order of loading
        self._awaiting: dict[NicEndpoint, None] = {}  # endpoints that wait for a frame
        self._loaded_at = 0  # time of the last load
        self._advanced_at = 0
        self.leaving: Final[dict[NicEndpoint, None]] = {}

    def attach(self, host: int, frames: NicEndpointFrames) -> None:
        """Attach a host process. host: number of its slot. The numbers of its endpoints begin at `host` times
        `Settings.numbers_per_host`."""
        self._hosts[host] = frames

    def detach(self, now: int, host: int) -> None:
        """Detach a host process, which destroys its endpoints."""
        del self._hosts[host]
        for endpoint in list(self._card.endpoints.values()):
            if self._host_of(endpoint.number) == host:
                self._destroy(now, endpoint)
        self._load_waiting(now)

    def _host_of(self, number: int) -> int:
        return number // self._card.settings.numbers_per_host

    def _on_mapping_answer(self, now: int, region: int, is_mapped: bool) -> None:
        """Handle the host kernel's answer to a request for a mapping. is_mapped: False if the region does not exist."""
        endpoint = self._card.endpoints.get(region >> layout.SUBJECT_BITS)
        if endpoint is None:
            self._counters.invalid += 1
            return
        if not is_mapped and region in endpoint.requested_regions:
            endpoint.frames.absent_regions.add(region)
        endpoint.requested_regions.discard(region)
        self._sender.on_regions_mapped(now, endpoint.number)

    def on_doorbell(self, now: int, number: int, subject: int) -> None:
        """Handle a doorbell of the host's kernel about an endpoint or a region."""
        if subject in (layout.MAPPED, layout.ABSENT):
            self._on_mapping_answer(now, number, subject == layout.MAPPED)
            return
        card = self._card
        endpoint = card.endpoints.get(number)
        if subject == layout.CREATE:
            frames = self._hosts.get(self._host_of(number))
            if endpoint is None and frames is not None:
                card.endpoints[number] = NicEndpoint(number, frames)
                return
        elif endpoint is not None:
            if subject == layout.LOAD:
                if endpoint.page is None and endpoint not in self._awaiting and self._has_free_frame(endpoint.frames):
                    self._awaiting[endpoint] = None
                    self._load_waiting(now)
                    return
            elif subject == layout.UNLOAD:
                if endpoint.page is not None and endpoint.leave_at is None:
                    self._unload(now, endpoint)
                    return
                if not endpoint.frames.is_trusted:
                    return  # already leaving, or not resident
            elif subject == layout.RELEASED:
                if endpoint.is_leaving and not endpoint.is_released:
                    endpoint.is_released = True
                    self.advance_unloads(now)
                    return
                if not endpoint.frames.is_trusted:
                    return  # too late
            elif subject == layout.PRIVILEGE:
                if endpoint.frames.is_trusted:
                    card.privileged = endpoint
                    return
            elif subject == layout.DESTROY:
                self._destroy(now, endpoint)
                card.nic.interrupt(number << layout.SUBJECT_BITS | layout.UNLOADED)
                self._load_waiting(now)
                return
        self._counters.invalid += 1

    def _destroy(self, now: int, endpoint: NicEndpoint) -> None:
        """Destroy an endpoint, and notify the NICs that have sent requests to it."""
        for endpoints in (self.leaving, self._awaiting, self._resident):
            endpoints.pop(endpoint, None)
        endpoint.page = None  # the NIC must not write to the page any more
        endpoint.is_leaving = True  # so that packets refused later are withdrawn
        for message in endpoint.messages.values():
            message.data = _EMPTY  # unanswered packets must not keep a reference to host memory
        self._sender.drop_messages(endpoint)
        absent_regions = endpoint.frames.absent_regions
        absent_regions -= {region for region in absent_regions if region >> layout.SUBJECT_BITS == endpoint.number}
        del self._card.endpoints[endpoint.number]
        if self._card.privileged is endpoint:
            self._card.privileged = None
        self._sender.announce_gone(now, endpoint)

    def _min_residence(self) -> int:
        """Return the minimum nanoseconds for which an endpoint keeps its frame: one to two times `Settings.stay`,
        varied pseudo-randomly with each load. With a constant time, two NICs could page in step, and each could forever
        lack the endpoint to which the other sends."""
        stay = self._card.settings.stay
        chance = (self._counters.loaded - 1) * (2 * self._card.number + 1) * _MULTIPLIER
        return stay + stay * (chance >> 24 & 0xFF) // 256

    def _has_free_frame(self, frames: NicEndpointFrames) -> bool:
        """Whether a host has a frame for one more endpoint. frames: the host's."""
        used = sum(
            endpoint.frames is frames for endpoints in (self._resident, self._awaiting) for endpoint in endpoints
        )
        return used < self._card.settings.frames

    def _frames_by_host(self) -> Counter[int]:
        """Return the number of frames of each host. A frame that an endpoint is leaving still counts for the endpoint's
        host, so that a host that releases slowly does not get another frame meanwhile."""
        return Counter(self._host_of(endpoint.number) for endpoint in self._resident)

    def _awaiting_by_priority(self) -> list[NicEndpoint]:
        """Return the endpoints that wait for a frame: fewest frames of the host first, then longest wait first."""
        frames_by_host = self._frames_by_host()
        return sorted(self._awaiting, key=lambda endpoint: frames_by_host[self._host_of(endpoint.number)])

    def _choose_next(self) -> NicEndpoint:
        """Choose the endpoint that gets the next frame: the first by priority, or, half of the time, any one. With
        strict priorities the same endpoints would always be resident together, and two endpoints that communicate with
        each other might never be."""
        chance = self._counters.loaded * _MULTIPLIER & _MASK
        return self._awaiting_by_priority()[0 if chance >> 31 else (chance >> 16) % len(self._awaiting)]

    def _load_waiting(self, now: int) -> None:
        """Load waiting endpoints while the NIC has free frames, and make resident endpoints leave their frames for the
        other waiting ones."""
        awaiting, frames = self._awaiting, self._card.settings.frames
        while awaiting and len(self._resident) < frames:
            endpoint = self._choose_next()
            del awaiting[endpoint]
            page = endpoint.frames.frame_of(endpoint.number)
            if page is None:
                self._counters.invalid += 1
            else:
                self._load(now, endpoint, page)
        while len(awaiting) > len(self.leaving):
            victim = self._choose_victim(self._awaiting_by_priority()[len(self.leaving)])
            if victim is None:
                break
            self._unload(now, victim)

    def _choose_victim(self, waiting: NicEndpoint) -> NicEndpoint | None:
        """Choose the endpoint that leaves its frame for a waiting one: an endpoint of the host that has most frames,
        and at least as many as the waiting endpoint's host; preferably one without packets in flight; of these the one
        that has been resident for longest. Returns None if there is none."""
        frames_by_host = self._frames_by_host()
        min_frames = frames_by_host[self._host_of(waiting.number)]

        def frames_of_host(endpoint: NicEndpoint) -> int:
            return frames_by_host[self._host_of(endpoint.number)]

        candidates = [
            endpoint
            for endpoint in self._resident
            if endpoint.leave_at is None and frames_of_host(endpoint) >= min_frames
        ]
        return min(
            candidates, key=lambda endpoint: (-frames_of_host(endpoint), endpoint.unanswered_count > 0), default=None
        )

    def _load(self, now: int, endpoint: NicEndpoint, page: memoryview) -> None:
        self._counters.loaded += 1
        self._loaded_at = now
        self._resident[endpoint] = None
        endpoint.load(now, page)
        self._card.nic.interrupt(endpoint.number << layout.SUBJECT_BITS | layout.LOADED)
        if endpoint is self._card.privileged:
            self._on_privileged_loaded(now, endpoint)
        else:
            self._sender.on_loaded(now, endpoint, page)

    def _unload(self, now: int, endpoint: NicEndpoint) -> None:
        """Make an endpoint leave its frame, after its minimum residence."""
        endpoint.leave_at = max(now, endpoint.loaded_at + self._min_residence())
        self.leaving[endpoint] = None
        self.advance_unloads(now)

    def _has_enough_leaving(self) -> bool:
        """Whether enough endpoints are leaving for now, although others wait. The limit varies pseudo-randomly;
        endpoints that exceed the time allowed do not count. Without the limit, all endpoints would leave, always for
        the same others, and two that communicate with each other might never be resident together."""
        in_time = sum(endpoint.is_leaving and self._is_in_time(endpoint) for endpoint in self.leaving)
        chance = self._counters.loaded * _MULTIPLIER & _MASK
        return in_time > (chance >> 16) % (self._card.settings.frames + 1 >> 1)

    def _is_in_time(self, endpoint: NicEndpoint) -> bool:
        """Whether an endpoint is still within the time allowed for leaving."""
        return endpoint.leave_at is not None and self._advanced_at < endpoint.leave_at + _RELEASE_TIMEOUT

    def advance_unloads(self, now: int) -> None:
        """Advance the unloading of the endpoints that leave their frames."""
        nic, self._advanced_at = self._card.nic, now
        # The endpoint loaded last gets time together with the other resident ones.
        may_leave_at = self._loaded_at + self._card.settings.stay
        for endpoint in list(self.leaving):
            leave_at, page = endpoint.leave_at, endpoint.page
            if leave_at is None or leave_at > now or page is None:
                continue
            notification = endpoint.number << layout.SUBJECT_BITS
            if not endpoint.is_leaving:
                if self._awaiting and (now < may_leave_at or self._has_enough_leaving()):
                    continue
                endpoint.is_leaving = True
                endpoint.leave_at = leave_at = now  # the time allowed begins now
                self._sender.stop_sending(endpoint)
                nic.interrupt(notification | layout.RELEASE)
            if not endpoint.is_released and not endpoint.frames.is_trusted and now >= leave_at + _RELEASE_TIMEOUT:
                endpoint.is_released = True
                self._counters.forced += 1
            if endpoint.unanswered_count or not endpoint.is_released:
                continue
            del self.leaving[endpoint], self._resident[endpoint]
            self._counters.unloaded += 1
            self._sender.reset_unsent(endpoint, page)
            endpoint.save_ring_positions(page)
            endpoint.page = endpoint.leave_at = None
            endpoint.is_leaving = endpoint.has_faulted = False
            backing = endpoint.frames.backing_page(endpoint.number)
            if backing is not None:
                nic.dma_write(backing, page)
            nic.interrupt(notification | layout.UNLOADED)
        if self._awaiting:
            self._load_waiting(now)

    def deadlines(self) -> Iterable[int]:
        """Yield the times at which `advance_unloads` is due."""
        has_enough_leaving = bool(self._awaiting) and self._has_enough_leaving()
        for endpoint in self.leaving:
            if endpoint.leave_at is None:
                continue
            if endpoint.is_leaving:
                may_be_forced = not endpoint.is_released and not endpoint.frames.is_trusted
                if may_be_forced or (has_enough_leaving and self._is_in_time(endpoint)):
                    yield endpoint.leave_at + _RELEASE_TIMEOUT
            elif not self._awaiting:
                yield endpoint.leave_at
            elif not has_enough_leaving:
                yield max(endpoint.leave_at, self._loaded_at + self._card.settings.stay)

    def pending_work(self) -> Iterable[str]:
        """Yield a sentence for every endpoint that cannot leave its frame, or waits for one."""
        for endpoint in self.leaving:
            yield f"endpoint {endpoint.number} is to leave its frame: {endpoint.unanswered_count} packets are unacknowledged"
        for endpoint in self._awaiting:
            yield f"endpoint {endpoint.number} waits for a frame that other host processes use"
