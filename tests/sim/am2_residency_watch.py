"""Compare each residency transition of AM-II's endpoints in the firmware with the state table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from protocols.am2 import page as layout
from protocols.am2.card import Card
from protocols.am2.codec import FORM_BULK, REASON_NOT_RESIDENT
from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.peers import Peer
from protocols.am2.receiver import Receiver
from protocols.am2.residency import Residency
from protocols.am2.sender import Sender
from protocols.am2.states import (
    ABSENT,
    AWAITING,
    DRAINING,
    ENDPOINT,
    EVICTION_PENDING,
    NOT_RESIDENT,
    RELEASING,
    RESIDENT,
)
from protocols.am2.transport import unpack_message
from tests.sim.state_watch import Watch


def state_of(residency: Residency, endpoint: NicEndpoint) -> str:
    if residency._card.endpoints.get(endpoint.number) is not endpoint:
        return ABSENT
    if endpoint.page is None:
        return AWAITING if endpoint in residency._awaiting else NOT_RESIDENT
    if endpoint.leave_at is None:
        return RESIDENT
    if not endpoint.is_leaving:
        return EVICTION_PENDING
    return DRAINING if endpoint.is_released else RELEASING


@dataclass
class _Change:
    """Event in progress at an endpoint, until the firmware handles another event."""

    residency: Residency
    endpoint: NicEndpoint
    state: str
    event: str


class _ResidencyWatch:
    """Wrappers of the firmware's methods. change: event in progress. releasing: endpoints whose release by their hosts the
    NIC waits for while it advances unloads."""

    def __init__(self, patch: pytest.MonkeyPatch, watch: Watch) -> None:
        self._patch = patch
        self._watch = watch
        self._change: _Change | None = None
        self._residencies: dict[Card, Residency] = {}
        self._releasing: dict[NicEndpoint, None] = {}
        self._watch_hosts()
        self._watch_frames()
        self._watch_messages()

    def _settle(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            after = state_of(change.residency, change.endpoint)
            self._watch.record(ENDPOINT, change.state, change.event, after)

    def _begin(self, residency: Residency, endpoint: NicEndpoint, event: str, state: str = "") -> None:
        self._settle()
        self._change = _Change(residency, endpoint, state or state_of(residency, endpoint), event)

    def _settle_around(self, owner: type, name: str) -> None:
        """Make a method the boundary of an event: settle a change in progress before and after it."""
        method: Callable[..., object] = getattr(owner, name)

        def observed(*arguments: object) -> object:
            self._settle()
            result = method(*arguments)
            self._settle()
            return result

        self._patch.setattr(owner, name, observed)

    def _watch_hosts(self) -> None:
        on_doorbell, destroy = Residency.on_doorbell, Residency._destroy
        events = {layout.LOAD: "host loads it", layout.RELEASED: "host releases it"}

        def watched_on_doorbell(residency: Residency, now: int, number: int, subject: int) -> None:
            self._settle()
            self._residencies[residency._card] = residency
            endpoints = residency._card.endpoints
            endpoint, invalid = endpoints.get(number), residency._counters.invalid
            if subject == layout.CREATE and endpoint is None:
                on_doorbell(residency, now, number, subject)
                if (created := endpoints.get(number)) is not None:
                    self._watch.record(ENDPOINT, ABSENT, "host creates it", state_of(residency, created))
                return
            if endpoint is not None and subject in events and self._is_effective(residency, endpoint, subject):
                self._begin(residency, endpoint, events[subject])
                self._releasing.pop(endpoint, None)
            on_doorbell(residency, now, number, subject)
            assert self._change is None or residency._counters.invalid == invalid
            self._settle()

        def watched_destroy(residency: Residency, now: int, endpoint: NicEndpoint) -> None:
            self._begin(residency, endpoint, "host destroys it")
            destroy(residency, now, endpoint)
            self._settle()

        self._patch.setattr(Residency, "on_doorbell", watched_on_doorbell)
        self._patch.setattr(Residency, "_destroy", watched_destroy)

    @staticmethod
    def _is_effective(residency: Residency, endpoint: NicEndpoint, subject: int) -> bool:
        """Return whether the firmware acts on a host's doorbell; it ignores a late or invalid one."""
        if subject == layout.LOAD:
            return state_of(residency, endpoint) == NOT_RESIDENT and residency._has_free_frame(endpoint.frames)
        return endpoint.is_leaving and not endpoint.is_released

    def _watch_frames(self) -> None:
        unload, advance = Residency._unload, Residency.advance_unloads
        load, save = NicEndpoint.load, NicEndpoint.save_ring_positions
        stop_sending = Sender.stop_sending

        def watched_unload(residency: Residency, now: int, endpoint: NicEndpoint) -> None:
            self._begin(residency, endpoint, "frame needed")
            unload(residency, now, endpoint)

        def watched_advance(residency: Residency, now: int) -> None:
            self._settle()
            self._residencies[residency._card] = residency
            for endpoint in residency.leaving:
                if state_of(residency, endpoint) == RELEASING:
                    self._releasing[endpoint] = None
            advance(residency, now)
            self._settle()
            for endpoint in residency.leaving:
                self._check_forced(endpoint)
            self._releasing.clear()

        def watched_load(endpoint: NicEndpoint, now: int, page: memoryview) -> None:
            residency = self._residency_of(endpoint)
            self._begin(residency, endpoint, "frame", AWAITING)
            load(endpoint, now, page)
            self._settle()

        def watched_stop_sending(sender: Sender, endpoint: NicEndpoint) -> None:
            if endpoint.page is not None:
                self._settle()
                residency = self._residencies[sender._card]
                self._watch.record(ENDPOINT, EVICTION_PENDING, "time to leave", state_of(residency, endpoint))
            stop_sending(sender, endpoint)

        def watched_save(endpoint: NicEndpoint, page: memoryview) -> None:
            self._check_forced(endpoint)
            self._begin(self._residency_of(endpoint), endpoint, "all packets answered")
            save(endpoint, page)

        self._patch.setattr(Residency, "_unload", watched_unload)
        self._patch.setattr(Residency, "advance_unloads", watched_advance)
        self._patch.setattr(NicEndpoint, "load", watched_load)
        self._patch.setattr(NicEndpoint, "save_ring_positions", watched_save)
        self._patch.setattr(Sender, "stop_sending", watched_stop_sending)
        self._settle_around(Residency, "_load_waiting")
        self._settle_around(Sender, "announce_gone")

    def _check_forced(self, endpoint: NicEndpoint) -> None:
        """Record that the NIC has stopped waiting for a host's release, for which it calls no method."""
        if endpoint in self._releasing and endpoint.is_released:
            del self._releasing[endpoint]
            self._watch.record(ENDPOINT, RELEASING, "host takes too long", DRAINING)

    def _residency_of(self, endpoint: NicEndpoint) -> Residency:
        return next(
            residency
            for residency in self._residencies.values()
            if residency._card.endpoints.get(endpoint.number) is endpoint
        )

    def _watch_messages(self) -> None:
        deliver = Receiver.deliver

        def watched_deliver(receiver: Receiver, peer: Peer, body: bytes) -> int:
            card = receiver._card
            form, _, _, _, _, number, *_ = unpack_message(body)
            endpoint, residency = card.endpoints.get(number), self._residencies.get(card)
            if endpoint is None or residency is None or form > FORM_BULK:
                return deliver(receiver, peer, body)
            self._settle()
            before = state_of(residency, endpoint)
            reason = deliver(receiver, peer, body)
            is_refused = reason == REASON_NOT_RESIDENT
            assert is_refused != (before in (RESIDENT, EVICTION_PENDING)), f"{endpoint.number} is {before}: {reason}"
            self._watch.record(ENDPOINT, before, "message", before)
            return reason

        self._patch.setattr(Receiver, "deliver", watched_deliver)


def watch_residency(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every endpoint of this process until the patch is undone."""
    _ResidencyWatch(patch, watch)
