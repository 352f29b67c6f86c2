"""The table of peers: a NIC's reaction to the incarnations in received frames; loopback; announcements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.announcements import Announcements
from protocols.core.firmware import FIRST, Adapter
from protocols.core.peers import Loopback, Peer, Peers, Standing
from protocols.emp.host import plug
from tests.unit.protocols.list_wires import ListNic, Wires

ADDRESSES = tuple(bytes([2, 0, 0, 0, 0, number]) for number in range(4))
TIME_AS_INCARNATION = 700_000
WRAP = 1 << 32


class EventLog:
    """Firmware that records the table's events: the event, the peer's number and its incarnation at that time."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []

    def on_peer_introduced(self, _now: int, peer: Peer) -> None:
        self.events.append(("introduced", peer.number, peer.incarnation))

    def on_peer_restarting(self, peer: Peer) -> None:
        self.events.append(("restarting", peer.number, peer.incarnation))

    def on_peer_restarted(self, _now: int, peer: Peer) -> None:
        self.events.append(("restarted", peer.number, peer.incarnation))


@dataclass
class Nic:
    """NIC 0 of four. sent: its frames."""

    peers: Peers[Peer, str]
    log: EventLog
    sent: list[bytes]

    def classify(self, incarnation: int, addressee: int = FIRST) -> Standing:
        """Classify a received frame of peer 1."""
        return self.peers.classify(0, self.peers.peer(1), incarnation, addressee, self.log)


def build_nic(incarnation: int = FIRST, *, presumes_first: bool = False) -> Nic:
    wire, log = ListNic(Wires(plug())), EventLog()

    def make(
        number: int,
        incarnation: int,
        send: Callable[[bytes], object],
        send_later: Callable[[Callable[[], bytes]], object],
    ) -> Peer:
        return Peer(number, ADDRESSES[number], incarnation, send, send_later)

    peers: Peers[Peer, str] = Peers(
        Adapter(0, ADDRESSES, incarnation=incarnation), wire, make, presumes_first=presumes_first
    )
    return Nic(peers, log, wire.sent)


def test_the_first_incarnation_of_a_peer_is_adopted() -> None:
    nic = build_nic()
    assert nic.peers.peer(1).incarnation == 0
    assert nic.classify(7) is Standing.CURRENT
    assert nic.log.events == [("introduced", 1, 7)]
    assert nic.classify(7) is Standing.CURRENT
    assert len(nic.log.events) == 1


def test_a_later_incarnation_of_a_peer_replaces_the_former_one() -> None:
    nic = build_nic()
    nic.classify(7)
    nic.log.events.clear()
    assert nic.classify(9) is Standing.CURRENT
    assert nic.log.events == [("restarting", 1, 7), ("restarted", 1, 9)]


def test_frames_of_an_earlier_incarnation_or_of_none_are_stale_and_change_nothing() -> None:
    nic = build_nic()
    assert nic.classify(0) is Standing.STALE
    nic.classify(7)
    nic.log.events.clear()
    assert [nic.classify(6), nic.classify(0)] == [Standing.STALE, Standing.STALE]
    assert nic.log.events == []
    assert nic.peers.peer(1).incarnation == 7


def test_a_misdirected_frame_updates_its_senders_incarnation() -> None:
    nic = build_nic(incarnation=5)
    assert [nic.classify(7, addressee) for addressee in (0, 4, 6, 5)] == [
        *[Standing.MISDIRECTED] * 3,
        Standing.CURRENT,
    ]
    assert nic.log.events == [("introduced", 1, 7)]


def test_a_stale_and_misdirected_frame_is_stale_and_not_answered() -> None:
    nic = build_nic(incarnation=5)
    nic.classify(7, 5)
    assert nic.classify(6, 4) is Standing.STALE


@pytest.mark.parametrize(
    ("incarnation", "presumes_first", "presumed"),
    [(FIRST, True, FIRST), (2, True, 0), (TIME_AS_INCARNATION, True, 0), (FIRST, False, 0)],
)
def test_only_a_nic_in_its_first_incarnation_presumes_that_its_peers_are_in_theirs(
    incarnation: int, presumes_first: bool, presumed: int
) -> None:
    nic = build_nic(incarnation, presumes_first=presumes_first)
    assert nic.peers.peer(1).incarnation == presumed
    assert nic.peers.peer(0).incarnation == incarnation


def test_a_wrongly_presumed_peer_counts_as_restarted() -> None:
    nic = build_nic(presumes_first=True)
    nic.classify(2)
    assert nic.log.events == [("restarting", 1, FIRST), ("restarted", 1, 2)]


@given(st.integers(1, WRAP - 1), st.integers(1, WRAP - 1))
def test_incarnations_are_serial_numbers(known: int, received: int) -> None:
    nic = build_nic()
    nic.classify(known)
    is_later = 0 < (received - known) % WRAP < WRAP // 2
    assert nic.classify(received) is (Standing.CURRENT if is_later or received == known else Standing.STALE)
    assert nic.peers.peer(1).incarnation == (received if is_later else known)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=60))
def test_the_last_incarnation_of_a_peer_is_the_greatest_in_its_frames(
    frames: list[tuple[int, int]],
) -> None:
    nic = build_nic()
    for number, incarnation in frames:
        nic.peers.classify(0, nic.peers.peer(number), incarnation, FIRST, nic.log)
    for number, peer in nic.peers.known.items():
        incarnations = [incarnation for source, incarnation in frames if source == number]
        assert peer.incarnation == max(incarnations, default=FIRST)
    changes = [(number, incarnation) for event, number, incarnation in nic.log.events if event != "restarting"]
    assert changes == sorted(set(changes), key=changes.index), "no incarnation is adopted twice"


def test_cached_headers_are_kept_until_a_peer_restarts() -> None:
    nic = build_nic()
    nic.classify(7)
    nic.peers.cache_header(b"from 1", "header")
    nic.peers.classify(0, nic.peers.peer(2), 3, FIRST, nic.log)
    nic.classify(6)
    assert nic.peers.cached_headers == {b"from 1": "header"}
    nic.classify(8)
    assert nic.peers.cached_headers == {}


def test_the_cache_of_headers_is_limited() -> None:
    nic = build_nic()
    for number in range(10_000):
        nic.peers.cache_header(number.to_bytes(4, "big"), "header")
        assert nic.peers.cached_headers[number.to_bytes(4, "big")] == "header"
    assert len(nic.peers.cached_headers) <= 256


def test_peers_by_node_number_and_by_address() -> None:
    nic = build_nic()
    assert list(nic.peers.known) == [0]
    peer = nic.peers.peer(2)
    assert nic.peers.by_address(ADDRESSES[2]) is peer
    assert nic.peers.peer(2) is peer
    assert nic.peers.by_address(b"\xff" * 6) is None
    assert list(nic.peers.known) == [0, 2]


def test_frames_to_the_nic_itself_are_looped_back() -> None:
    nic = build_nic()
    for number in (0, 1):
        nic.peers.peer(number).send(b"now %d" % number)
        nic.peers.peer(number).send_later(lambda number=number: b"later %d" % number)  # type: ignore[misc]
    assert nic.sent == [b"now 1", b"later 1"]
    assert list(nic.peers.loopback.frames) == [b"now 0", b"later 0"]


def test_frames_looped_back_during_a_receive_are_received_after_it() -> None:
    loopback, received = Loopback(), []

    def receive(now: int, frame: bytes) -> None:
        if len(frame) < 3:
            loopback.frames.append(frame + b"1")
            loopback.frames.append(frame + b"2")
        loopback.run(now, receive)
        assert loopback.is_running
        received.append((now, frame))

    loopback.frames.append(b"")
    loopback.run(5, receive)
    assert [frame for _, frame in received][:7] == [b"", b"1", b"2", b"11", b"12", b"21", b"22"]
    assert len(received) == 15
    assert {now for now, _ in received} == {5}
    assert not loopback.is_running


def test_the_loopback_continues_after_an_error_of_the_firmware() -> None:
    loopback = Loopback()
    loopback.frames.extend((b"bad", b"good"))
    with pytest.raises(ZeroDivisionError):
        loopback.run(0, lambda now, _: now // 0)
    received: list[bytes] = []
    loopback.run(0, lambda _, frame: received.append(frame))
    assert received == [b"good"]


def test_announcements_are_repeated_with_doubled_intervals_until_the_peer_uses_the_incarnation() -> None:
    restarts: list[tuple[int, int]] = []
    announcements = Announcements[int](lambda number, incarnation: restarts.append((number, incarnation)))
    announcements.begin(1, 7)
    announcements.begin(2, 3)
    announcement_times = []
    while (now := announcements.timers.deadline) is not None:
        announcement_times.append(now)
        announcements.on_timer(now, 10, 50)
        announcements.stop(2)
        assert announcements.pending() == ({1: 7} if announcements.timers.deadline is not None else {})
    assert restarts == [(1, 7), (2, 3), *[(1, 7)] * 8]
    assert announcement_times == [0, 10, 30, 70, 120, 170, 220, 270, 320, 370]
