"""Residency: which endpoints of a NIC's hosts are in its endpoint frames, how an endpoint leaves its frame, and which
endpoint gets a frame next.

The kernel does the paging (`host.segment_driver`): a single host has a frame for an endpoint before it asks to load it.
If host processes share the NIC, each has as many frames in its own memory as the NIC has in total, and pages its
endpoints as if it were alone. The NIC limits the number in use, and takes a frame from the process that has most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.card import Card
from protocols.am2.endpoint_frames import Resident
from protocols.am2.nic_memory import Frames
from protocols.am2.sender import Sender

_NOTHING: Final = memoryview(b"")
_ODD: Final = 0x9E37_79B1  # from the golden ratio: its multiples spread evenly
_WORD: Final = 0xFFFF_FFFF
_TIMEOUT: Final = 50_000_000
"""Nanoseconds for a host process to release an endpoint whose frame another one wants; the process may be stopped or
uncooperative. After that, its writes stay in its own memory, where it finds them."""


class Residency:
    """The residency of all endpoints of one NIC. leaving: endpoints that are to leave their frames."""

    __slots__ = (
        "_advanced_at",
        "_awaiting",
        "_card",
        "_counters",
        "_hosts",
        "_loaded_at",
        "_resident",
        "_sender",
        "leaving",
    )

    def __init__(self, card: Card, sender: Sender) -> None:
        self._card = card
        self._counters = card.counters
        self._sender = sender
        self._hosts: dict[int, Frames] = {}
        self._resident: dict[Resident, None] = {}  # in the order of loading
        self._awaiting: dict[Resident, None] = {}  # endpoints that wait for a frame
        self._loaded_at = 0  # time of the last load
        self._advanced_at = 0
        self.leaving: Final[dict[Resident, None]] = {}

    def attach(self, host: int, frames: Frames) -> None:
        """Attach a host process. The numbers of its endpoints begin at `host` times `Settings.numbers`."""
        self._hosts[host] = frames

    def detach(self, now: int, host: int) -> None:
        """Detach a host process, which destroys its endpoints."""
        del self._hosts[host]
        for endpoint in list(self._card.endpoints.values()):
            if self._host_of(endpoint.number) == host:
                self._destroy(now, endpoint)
        self._load_waiting(now)

    def _host_of(self, number: int) -> int:
        return number // self._card.settings.numbers

    def _answered(self, now: int, region: int, mapped: bool) -> None:
        """Handle the kernel's answer to a request for memory."""
        endpoint = self._card.endpoints.get(region >> layout.SUBJECTS)
        if endpoint is None:
            self._counters.invalid += 1
            return
        if not mapped and region in endpoint.requested:
            endpoint.frames.absent.add(region)
        endpoint.requested.discard(region)
        self._sender.mapped(now, endpoint.number)

    def on_doorbell(self, now: int, number: int, subject: int) -> None:
        """Handle a doorbell of the host's kernel about an endpoint or a region."""
        if subject in (layout.MAPPED, layout.ABSENT):
            self._answered(now, number, subject == layout.MAPPED)
            return
        card = self._card
        endpoint = card.endpoints.get(number)
        if subject == layout.CREATE:
            frames = self._hosts.get(self._host_of(number))
            if endpoint is None and frames is not None:
                card.endpoints[number] = Resident(number, frames)
                return
        elif endpoint is not None:
            if subject == layout.LOAD:
                if endpoint.page is None and endpoint not in self._awaiting and self._has_frames(endpoint.frames):
                    self._awaiting[endpoint] = None
                    self._load_waiting(now)
                    return
            elif subject == layout.UNLOAD:
                if endpoint.page is not None and endpoint.leave_at is None:
                    self._unload(now, endpoint)
                    return
                if not endpoint.frames.trusted:
                    return  # already asked to leave, or gone
            elif subject == layout.RELEASED:
                if endpoint.is_leaving and not endpoint.is_released:
                    endpoint.is_released = True
                    self.advance_unloads(now)
                    return
                if not endpoint.frames.trusted:
                    return  # too late
            elif subject == layout.PRIVILEGE:
                if endpoint.frames.trusted:
                    card.privileged = endpoint
                    return
            elif subject == layout.DESTROY:
                self._destroy(now, endpoint)
                card.nic.interrupt(number << layout.SUBJECTS | layout.UNLOADED)
                self._load_waiting(now)
                return
        self._counters.invalid += 1

    def _destroy(self, now: int, endpoint: Resident) -> None:
        """Destroy an endpoint."""
        for listed in (self.leaving, self._awaiting, self._resident):
            listed.pop(endpoint, None)
        endpoint.page = None  # nothing is written there from now on
        endpoint.is_leaving = True  # so that packets refused later are not sent again
        for message in endpoint.messages.values():
            message.data = _NOTHING  # its unanswered packets must not keep the host's memory
        self._sender.gone(endpoint)
        absent = endpoint.frames.absent
        absent -= {region for region in absent if region >> layout.SUBJECTS == endpoint.number}
        del self._card.endpoints[endpoint.number]
        if self._card.privileged is endpoint:
            self._card.privileged = None
        self._sender.announce(now, endpoint)

    def _stay(self) -> int:
        """Return the minimum nanoseconds for which an endpoint keeps its frame: one to two times `Settings.stay`,
        varied with each load. NICs that page in step could otherwise each lack, for ever, the endpoint that the other
        sends to."""
        stay = self._card.settings.stay
        turn = (self._counters.loaded - 1) * (2 * self._card.number + 1) * _ODD
        return stay + stay * (turn >> 24 & 0xFF) // 256

    def _has_frames(self, frames: Frames) -> bool:
        """Whether a host has a frame left for one more endpoint."""
        used = sum(resident.frames is frames for listed in (self._resident, self._awaiting) for resident in listed)
        return used < self._card.settings.frames

    def _shares(self) -> Counter[int]:
        """Count the frames of each host. A frame that is being vacated counts for its present host: a host that
        releases slowly does not get another's frame meanwhile."""
        return Counter(self._host_of(resident.number) for resident in self._resident)

    def _by_priority(self) -> list[Resident]:
        """Return the endpoints that wait for a frame, sorted by the number of their host's frames, then by waiting time."""
        shares = self._shares()
        return sorted(self._awaiting, key=lambda resident: shares[self._host_of(resident.number)])

    def _next(self) -> Resident:
        """Choose the endpoint that gets the next frame: the first in turn, or, half of the time, any. Strict order
        would always have the same endpoints in the NIC together; two endpoints of a host with one frame could never
        talk to each other."""
        chance = self._counters.loaded * _ODD & _WORD
        return self._by_priority()[0 if chance >> 31 else (chance >> 16) % len(self._awaiting)]

    def _load_waiting(self, now: int) -> None:
        """Load waiting endpoints while the NIC has free frames; let others leave for the rest. A single host has as many
        frames as the NIC. If several share the NIC, each has that many, and the NIC limits the total in use."""
        awaiting, frames = self._awaiting, self._card.settings.frames
        while awaiting and len(self._resident) < frames:
            endpoint = self._next()
            del awaiting[endpoint]
            page = endpoint.frames.frame_of(endpoint.number)
            if page is None:
                self._counters.invalid += 1
            else:
                self._load(now, endpoint, page)
        while len(awaiting) > len(self.leaving):
            victim = self._victim(self._by_priority()[len(self.leaving)])
            if victim is None:
                break
            self._unload(now, victim)

    def _victim(self, wanted: Resident) -> Resident | None:
        """Choose the endpoint that gives up its frame: from the host that has most of them, at least as many as the
        wanted endpoint's host, an endpoint without packets in flight, and of these the one resident for longest."""
        shares = self._shares()
        least = shares[self._host_of(wanted.number)]

        def share(endpoint: Resident) -> int:
            return shares[self._host_of(endpoint.number)]

        candidates = [resident for resident in self._resident if resident.leave_at is None and share(resident) >= least]
        return min(candidates, key=lambda resident: (-share(resident), resident.open > 0), default=None)

    def _load(self, now: int, endpoint: Resident, page: memoryview) -> None:
        self._counters.loaded += 1
        self._loaded_at = now
        self._resident[endpoint] = None
        endpoint.load(now, page)
        self._card.nic.interrupt(endpoint.number << layout.SUBJECTS | layout.LOADED)
        self._sender.loaded(now, endpoint, page)

    def _unload(self, now: int, endpoint: Resident) -> None:
        """Make an endpoint leave its frame, at the earliest when its stay is over."""
        endpoint.leave_at = max(now, endpoint.loaded_at + self._stay())
        self.leaving[endpoint] = None
        self.advance_unloads(now)

    def _are_enough(self) -> bool:
        """Whether enough endpoints are leaving for now, although others wait. The limit, which does not count slow
        ones, varies randomly. Otherwise all would leave, always in favour of the same others, and two that talk to each
        other might never be resident together."""
        prompt = sum(resident.is_leaving and self._is_prompt(resident) for resident in self.leaving)
        chance = self._counters.loaded * _ODD & _WORD
        return prompt > (chance >> 16) % (self._card.settings.frames + 1 >> 1)

    def _is_prompt(self, endpoint: Resident) -> bool:
        """Whether an endpoint is still within the time allowed for leaving."""
        return endpoint.leave_at is not None and self._advanced_at < endpoint.leave_at + _TIMEOUT

    def advance_unloads(self, now: int) -> None:
        """Let endpoints leave their frames if they may."""
        nic, self._advanced_at = self._card.nic, now
        may_leave = self._loaded_at + self._card.settings.stay  # the endpoint loaded last gets time with those present
        for endpoint in list(self.leaving):
            leave_at, page = endpoint.leave_at, endpoint.page
            if leave_at is None or leave_at > now or page is None:
                continue
            number = endpoint.number << layout.SUBJECTS
            if not endpoint.is_leaving:
                if self._awaiting and (now < may_leave or self._are_enough()):
                    continue
                endpoint.is_leaving = True
                endpoint.leave_at = leave_at = now  # the time allowed begins now
                self._sender.leaves(endpoint)
                nic.interrupt(number | layout.RELEASE)
            if not endpoint.is_released and not endpoint.frames.trusted and now >= leave_at + _TIMEOUT:
                endpoint.is_released = True
                self._counters.forced += 1
            if endpoint.open or not endpoint.is_released:
                continue
            del self.leaving[endpoint], self._resident[endpoint]
            self._counters.unloaded += 1
            self._sender.left(endpoint, page)
            endpoint.note(page)
            endpoint.page = endpoint.leave_at = None
            endpoint.is_leaving = endpoint.faulted = False
            backing = endpoint.frames.page_of(endpoint.number)
            if backing is not None:
                nic.dma_write(backing, page)
            nic.interrupt(number | layout.UNLOADED)
        if self._awaiting:
            self._load_waiting(now)

    def deadlines(self) -> Iterable[int]:
        """Yield the times at which `advance_unloads` has something to do."""
        are_enough = bool(self._awaiting) and self._are_enough()
        for endpoint in self.leaving:
            if endpoint.leave_at is None:
                continue
            if endpoint.is_leaving:
                is_awaited = not endpoint.is_released and not endpoint.frames.trusted
                if is_awaited or (are_enough and self._is_prompt(endpoint)):
                    yield endpoint.leave_at + _TIMEOUT
            elif not self._awaiting:
                yield endpoint.leave_at
            elif not are_enough:
                yield max(endpoint.leave_at, self._loaded_at + self._card.settings.stay)

    def waiting(self) -> Iterable[str]:
        """Yield a sentence for every endpoint that cannot leave its frame, or waits for one."""
        for endpoint in self.leaving:
            yield f"endpoint {endpoint.number} is to leave its frame: {endpoint.open} packets are unacknowledged"
        for endpoint in self._awaiting:
            yield f"endpoint {endpoint.number} waits for a frame that other host processes have"
