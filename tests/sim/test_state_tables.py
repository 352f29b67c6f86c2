"""State tables of EMP and AM-II against the firmware: each transition has a row, and a missing row is detected.

`test_swarm` and `test_am2_swarm` assert that the swarm takes every row.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest

from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.settings import Settings as ChannelSettings
from protocols.am2.states import AWAITING, ENDPOINT, FREE, NOT_RESIDENT, REFUSED, SEND_CHANNEL
from protocols.am2.transport import SendRow, SendTable
from protocols.core.peers import KNOWN, PEER, UNKNOWN, Peers
from protocols.core.states import Row, StateTable
from protocols.emp.receiver import Receiver
from protocols.emp.states import ACTIVE, ENDED, EXPECTED, PARKED, RECEIVE_MESSAGE, SEND_MESSAGE, STATELESS
from reference import state_diagrams
from reference.__main__ import SYSTEMS
from tests.sim import am2_walks
from tests.sim.am2_residency_watch import watch_residency
from tests.sim.am2_state_watch import watch_channels
from tests.sim.emp_receive_watch import watch_receptions
from tests.sim.emp_state_watch import watch_messages
from tests.sim.peer_state_watch import watch_peers
from tests.sim.state_watch import Watch, coverage, label
from tests.unit.protocols.am2_single_nic import SingleNic
from tests.unit.protocols.emp_dialogue import TIMEOUT, joined_nics

MIN = 100
"""Minimum number of times that random walks take each row."""


@pytest.mark.requires("interpreted")
def test_random_walks_take_every_row_of_am2s_tables() -> None:
    watch = am2_walks.walk()
    assert not watch.unknown
    assert {row: count for row, count in am2_walks.rows(watch).items() if count < MIN} == {}


@pytest.mark.requires("interpreted")
def test_a_channel_transition_missing_in_the_table_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a retransmission does not reset the channel's refusal."""

    def keeps_refused(_table: SendTable[int], now: int, row: SendRow[int], timeout: int) -> None:
        row.due_at = now + timeout

    monkeypatch.setattr(SendTable, "_record_sending", keeps_refused)
    watch = Watch()
    watch_channels(monkeypatch, watch)
    table: SendTable[int] = SendTable(ChannelSettings(channels=1))
    row = table.begin(0, 1)
    assert row is not None
    table.on_refusal(1, 0, 0, 0, row.stamp)
    table.mark_resent(2, row)
    assert list(watch.unknown) == [(SEND_CHANNEL.name, REFUSED, "timeout", REFUSED)]


@pytest.mark.requires("interpreted")
def test_a_receiver_transition_missing_in_the_table_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a receiver does not acknowledge duplicates of a received message."""
    monkeypatch.setattr(Receiver, "_acknowledge_again", lambda *_: None)
    watch = Watch()
    watch_receptions(monkeypatch, watch)
    wires, (sender, receiver) = joined_nics()
    receiver.post_receive(0, 0, bytearray(3))
    sender.post_send(1, 0, b"one")
    (frame,) = wires.take(0)
    wires.deliver(frame)
    wires.deliver(frame)
    assert watch.row_counts[RECEIVE_MESSAGE.row(EXPECTED, "message and receive")] == 1
    assert list(watch.unknown) == [(RECEIVE_MESSAGE.name, ENDED, "frame that raises []", ENDED)]


@pytest.mark.requires("interpreted")
def test_an_endpoint_transition_missing_in_the_table_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a loaded endpoint has no frame."""
    monkeypatch.setattr(NicEndpoint, "load", lambda *_: None)
    watch = Watch()
    watch_residency(monkeypatch, watch)
    SingleNic().create(4)
    assert list(watch.unknown) == [(ENDPOINT.name, AWAITING, "frame", NOT_RESIDENT)]


@pytest.mark.requires("interpreted")
def test_a_peer_transition_missing_in_the_table_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the firmware does not record the incarnations that peers announce."""
    monkeypatch.setattr(Peers, "admit", lambda *_: True)
    watch = Watch()
    watch_peers(monkeypatch, watch)
    SingleNic(peer=7)
    assert list(watch.unknown) == [(PEER.name, UNKNOWN, "incarnation", UNKNOWN)]


def test_a_counter_that_misses_some_of_its_rows_is_detected() -> None:
    counts = Counter({label(PEER, PEER.row(KNOWN, "later incarnation")): 3, "restarts": 3, "frames_received": 7})
    covered = coverage([PEER], STATELESS, counts)
    assert covered["frames_received"] == 7
    assert "restarts" not in covered, "a counter whose row is counted is counted twice"
    with pytest.raises(AssertionError, match="restarts"):
        coverage([PEER], STATELESS, counts - Counter(restarts=1))


@pytest.mark.requires("interpreted")
def test_a_send_posted_by_the_callback_of_a_failed_one_follows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender begins the new message while it handles the peer's restart."""
    watch = Watch()
    watch_messages(monkeypatch, watch)
    wires, (sender, _) = joined_nics()
    sender.post_send(1, 0, b"one").add_callback(lambda _: sender.post_send(1, 0, b"two"))
    wires.exchange()
    wires.restart(1)
    wires.elapse(TIMEOUT)
    assert (
        watch.row_counts[SEND_MESSAGE.row(ACTIVE, "peer restarted")]
        or watch.row_counts[SEND_MESSAGE.row(PARKED, "peer restarted")]
    )
    assert not watch.unknown


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_documentation_has_every_row_and_draws_every_state(system: str) -> None:
    documentation = state_diagrams.of_protocol(system) + state_diagrams.peers()
    for table in import_module(f"protocols.{system}.states").TABLES:
        assert table.format_markdown() in documentation
        assert all(f">{row.state}</text>" in documentation for row in table.rows)


def test_a_table_rejects_two_rows_of_an_event_and_unreachable_states() -> None:
    row = Row(FREE, "answer", "ignore", FREE)
    with pytest.raises(ValueError, match="same state and event"):
        StateTable("twice", FREE, (row, row))
    with pytest.raises(ValueError, match="cannot be reached"):
        StateTable("apart", FREE, (row, Row(REFUSED, "answer", "ignore", FREE)))
