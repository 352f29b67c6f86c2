"""Incast on SSAM: the switch or the receiver's input FIFO loses cells, and every message is handled once.

The paper names both causes of loss (section 2.1), and measured neither, as it had two machines. The receiver takes longer
to read a cell (4.61 us) than one takes on the fibre (3.14 us), so the windows of ten senders, 320 cells, overrun 292.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import testbed
from protocols.active_messages.am_interface import ActiveMessages, Token
from protocols.active_messages.endpoint_names import EndpointName
from protocols.ssam.connection import Connection
from protocols.ssam.host import Library
from protocols.ssam.plug import plug
from protocols.ssam.profile import SPARCSTATION_20
from protocols.ssam.settings import MAX_WINDOW, Settings
from testbed import Cluster, TestbedError
from testbed.controller.checkers.runs import recheck
from testbed.fabric.atm.network import FULL
from testbed.observe.recorded import read_run
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description
from testbed.workloads.form import Native, Node

COUNT = 1
REQUESTS = 150
"""Number of requests of each sender."""


@dataclass
class Incast:
    """Senders' requests to node 0. handled: how often each was handled, by sender and number. ended: the time at which each
    sender had all its answers."""

    senders: int
    handled: Counter[tuple[int, int]] = field(default_factory=Counter)
    ended: dict[int, int] = field(default_factory=dict)
    counters: dict[str, Counter[str]] = field(default_factory=dict)
    switch: Mapping[str, int] = field(default_factory=dict)

    def run(self, queue_frames: int, settings: Settings | None = None, timeout: int = 10_000_000_000) -> None:
        cluster = Description.star(
            self.senders + 1, kind="atm", rate="140mbit", overhead=2, queue_frames=queue_frames, seed=self.senders
        )
        with Simulation(cluster, plug(settings), profile=SPARCSTATION_20) as simulation:
            for number, node in enumerate(simulation.nodes.values()):
                simulation.spawn(node.name, self._send if number else self._receive)
            try:
                simulation.run(timeout=timeout)
            finally:
                self.counters = {
                    node.name: Counter(node.agent.firmware.counter_values()) for node in simulation.nodes.values()
                }
                self.switch = simulation.network.switch_counters["s1"]

    async def _send(self, library: Library, node: SimNode) -> None:
        for number in range(REQUESTS):
            await library.request(0, COUNT, bytes((number,)))
        while library.pending_work():
            await library.poll()
        self.ended[node.number] = node.program_time()

    async def _receive(self, library: Library, node: SimNode) -> None:  # noqa: ARG002
        def count(source: int, data: bytes) -> None:
            self.handled[source, data[0]] += 1

        library.set_handler(COUNT, count)
        while len(self.ended) < self.senders:
            await library.poll()

    @property
    def lost(self) -> set[tuple[int, int]]:
        """The requests that have not been handled."""
        return {
            (sender, number) for sender in range(1, self.senders + 1) for number in range(REQUESTS)
        } - self.handled.keys()

    def total(self, counter: str) -> int:
        return sum(counters[counter] for counters in self.counters.values())

    @property
    def fairness(self) -> float:
        """Jain's index of the senders' rates: 1 where all are equal, 1 / senders where one has everything."""
        rates = [REQUESTS / end_time for end_time in self.ended.values()]
        return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def test_messages_are_handled_once_although_the_switch_loses_cells(
    record_property: Callable[[str, object], None],
) -> None:
    incast = Incast(8)
    incast.run(queue_frames=16)
    assert incast.switch[FULL] > 0
    assert incast.total("overruns") == 0, "at most 256 cells are in flight"
    assert incast.total("resent") + incast.total("hurried") > 0
    assert not incast.lost
    assert set(incast.handled.values()) == {1}
    record_property("fairness", incast.fairness)
    assert incast.fairness > 1 / 8


def test_messages_are_handled_once_although_the_input_fifo_loses_cells(
    record_property: Callable[[str, object], None],
) -> None:
    incast = Incast(16)
    incast.run(queue_frames=1_000)
    assert incast.counters["n1"]["overruns"] > 0
    assert incast.total("overruns") == incast.counters["n1"]["overruns"]
    assert incast.switch[FULL] == 0
    assert not incast.lost
    assert set(incast.handled.values()) == {1}
    record_property("fairness", incast.fairness)
    assert incast.fairness > 1 / 16


def test_a_window_that_the_fifo_can_hold_loses_nothing() -> None:
    """16 windows of 16 requests are 256 cells, below 292."""
    incast = Incast(16)
    incast.run(queue_frames=1_000, settings=Settings(window=16))
    assert incast.total("overruns") == incast.switch[FULL] == incast.total("resent") == 0
    assert not incast.lost


# Histories of an incast, by the interface of active messages

TAG, ASK, ANSWER = 77, 1, 2


class HistoryIncast(Native[ActiveMessages]):
    """A window of requests from every rank to rank 0, each with a reply; a program ends when it has all its messages."""

    checked = True

    async def program(self, library: ActiveMessages, node: Node) -> None:
        bundle = library.allocate_bundle()
        endpoint = bundle.allocate_endpoint()
        endpoint.tag = TAG
        arrived: list[int] = []

        def ask(token: Token, number: int) -> None:
            arrived.append(number)
            token.reply(ANSWER, number)

        endpoint.set_handler(ASK, ask)
        endpoint.set_handler(ANSWER, lambda _, number: arrived.append(number))
        endpoint.map(0, EndpointName(0, endpoint.name.endpoint), TAG)
        for number in range(MAX_WINDOW if node.rank else 0):
            await endpoint.request(0, ASK, number)
        while len(arrived) < MAX_WINDOW * (1 if node.rank else len(node.names) - 1):
            await bundle.wait()
            await bundle.poll()


def run_with_history(senders: int, queue_frames: int, folder: Path) -> None:
    """Run `HistoryIncast`, with a time-out beyond the checkers' limit of a pending request."""
    cluster = Cluster.star(senders + 1, kind="atm", rate="140mbit", overhead=2, queue_frames=queue_frames)
    testbed.run(
        cluster, HistoryIncast(), protocol="ssam", mode="sim", profile="sparcstation-20", check=True, timeout=20,
        output=folder,
    )  # fmt: skip


both_causes = pytest.mark.parametrize(("senders", "queue_frames"), [(8, 16), (16, 1_000)], ids=["switch", "FIFO"])


@both_causes
def test_the_history_of_an_incast_is_complete(senders: int, queue_frames: int, tmp_path: Path) -> None:
    run_with_history(senders, queue_frames, tmp_path / "run")
    (report,) = recheck(read_run(tmp_path / "run"))
    assert report.passed, report.to_text()
    assert report.message_count == senders * MAX_WINDOW


@pytest.mark.requires("interpreted")
@both_causes
def test_without_recovery_the_checker_finds_the_lost_messages(
    senders: int, queue_frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "find_overdue", lambda _: None)
    monkeypatch.setattr(Connection, "find_lost", lambda *_: None)
    monkeypatch.setattr(Connection, "recover", lambda _: [])
    with pytest.raises(TestbedError, match="programs have not ended"):
        run_with_history(senders, queue_frames, tmp_path / "run")
    (report,) = recheck(read_run(tmp_path / "run"))
    assert report.failed == ("progress",)
    assert "was neither handled nor returned" in report.to_text()
