"""Statistical assertions on a relayed link: correct, and with one value off by a fifth."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from testbed import Cluster, RunningCluster
from testbed.controller.assertions.sample_quantiles import assert_delay, assert_jitter, assert_rate
from testbed.controller.assertions.sequential import delay_test, loss_test, until_sure
from testbed.controller.assertions.shares import assert_duplicates, assert_loss, assert_order, out_of_order
from testbed.errors import NotFoundError
from tests.live import node_sockets
from tests.live.traffic import RECEIVE_BYTES

pytestmark = [pytest.mark.requires("root", "ping"), pytest.mark.usefixtures("machine")]

MS = 10**6
MAX_LATENESS = "8ms"
"""Tolerated lateness of a busy machine; a fifth of the delay of 60 ms is 12 ms."""


@dataclass(slots=True)
class LinkUnderTest:
    """A link from n1 to n2: the test sends numbered frames at n1 and records arrivals at n2."""

    cluster: RunningCluster
    nics: dict[str, socket.socket]
    sent: dict[int, int] = field(default_factory=dict)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    """(CLOCK_REALTIME in ns, frame number)."""

    def send(self, count: int, gap: int = 0) -> None:
        """Send frames at intervals of `gap` nanoseconds, and receive until none has arrived for a while."""
        macs = node_sockets.mac(self.cluster, "n2"), node_sockets.mac(self.cluster, "n1")
        due = time.monotonic_ns()
        for _ in range(count):
            while (rest := due - time.monotonic_ns()) > 0:
                self.receive(rest)
            number = len(self.sent)
            self.sent[number] = time.time_ns()
            self.nics["n1"].send(node_sockets.numbered_frame(*macs, number))
            due += gap
        while self.receive(300 * MS):
            pass

    def receive(self, wait: int) -> bool:
        """Record frames that arrive within `wait` ns; return whether there was one."""
        if not select.select([self.nics["n2"]], [], [], wait / 1e9)[0]:
            return False
        for when, frame in node_sockets.received_with_times(self.nics["n2"]):
            self.arrivals += [(when, number) for number in node_sockets.frame_numbers([frame])]
        return True

    def numbers(self) -> list[int]:
        return [number for _, number in self.arrivals]

    def delays(self) -> list[int]:
        return [when - self.sent[number] for when, number in self.arrivals]

    def fates(self) -> Iterator[bool]:
        """Yield for each frame in order whether it was lost; send a hundred more whenever needed."""
        known = 0
        while True:
            self.send(100)
            arrived = set(self.numbers())
            yield from (number not in arrived for number in range(known, len(self.sent)))
            known = len(self.sent)


@pytest.fixture
def link_under_test() -> Iterator[Callable[..., LinkUnderTest]]:
    """Bring up a link with impairments from n1 to n2."""
    with ExitStack() as stack:

        def bring_up(**impairments: object) -> LinkUnderTest:
            cluster = stack.enter_context(Cluster.back_to_back().up(datapath="relay"))
            stack.enter_context(cluster.inject("n1", direction="out", **impairments))  # type: ignore[arg-type]
            nics = stack.enter_context(node_sockets.nic_sockets(cluster))
            nics["n2"].setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE
            node_sockets.enable_timestamps(nics["n2"])
            return LinkUnderTest(cluster, nics)

        yield bring_up


def test_a_link_that_loses_and_duplicates_as_configured_passes_and_one_off_by_a_fifth_is_detected(
    link_under_test: Callable[..., LinkUnderTest],
) -> None:
    for loss, duplicate in (("50%", "40%"), ("60%", "48%")):
        link = link_under_test(loss=loss, duplicate=duplicate)
        for _ in range(6):
            link.send(1000)
        arrived = len(set(link.numbers()))
        assert_order(0, out_of_order(link.numbers()), arrived)
        if loss == "50%":
            assert_loss("50%", len(link.sent) - arrived, len(link.sent))
            assert_duplicates("40%", len(link.arrivals) - arrived, arrived)
        else:
            with pytest.raises(AssertionError, match=r"were lost, 0\.\d+; expected 0\.5"):
                assert_loss("50%", len(link.sent) - arrived, len(link.sent))
            with pytest.raises(AssertionError, match="were duplicated"):
                assert_duplicates("40%", len(link.arrivals) - arrived, arrived)


def test_frames_overtake_at_the_configured_rate_and_a_fifth_more_is_detected(
    link_under_test: Callable[..., LinkUnderTest],
) -> None:
    for reorder in ("50%", "60%"):
        link = link_under_test(delay="60ms", reorder=reorder)
        for _ in range(2):
            link.send(700)
        arrived = link.numbers()
        assert len(arrived) == len(link.sent)
        if reorder == "50%":
            assert_order("50%", out_of_order(arrived), len(arrived))
        else:
            with pytest.raises(AssertionError, match=r"were out of order, 0\.\d+; expected 0\.5"):
                assert_order("50%", out_of_order(arrived), len(arrived))


def test_a_sequential_test_stops_sending_when_it_has_decided(link_under_test: Callable[..., LinkUnderTest]) -> None:
    link = link_under_test(loss="50%")
    samples = until_sure(loss_test("50%"), link.fates())
    assert samples <= len(link.sent) < samples + 100
    with pytest.raises(AssertionError, match=r"expected 0\.4 .*decided at the level 1e-06"):
        until_sure(loss_test("40%"), link.fates())


def test_a_delay_passes_and_one_off_by_a_fifth_or_varying_is_detected(
    link_under_test: Callable[..., LinkUnderTest],
) -> None:
    link = link_under_test(delay="60ms")
    link.send(200, gap=2 * MS)
    assert_delay("60ms", link.delays(), late=MAX_LATENESS)
    assert until_sure(delay_test("60ms", late=MAX_LATENESS), link.delays()) <= 200
    wrong = link_under_test(delay="72ms")
    wrong.send(200, gap=2 * MS)
    with pytest.raises(AssertionError, match="expected 60ms, or up to 8ms more"):
        assert_delay("60ms", wrong.delays(), late=MAX_LATENESS)
    jittery = link_under_test(delay="60ms", jitter="40ms")
    jittery.send(1200, gap=MS)
    with pytest.raises(AssertionError, match="quantile of the delay"):
        assert_jitter("10ms", jittery.delays(), delay="60ms", late="500us")


@pytest.mark.alone  # the relay needs a core
def test_a_rate_passes_and_one_off_by_a_fifth_is_detected(link_under_test: Callable[..., LinkUnderTest]) -> None:
    for rate in ("1mbit", "1.2mbit"):
        link = link_under_test(rate=rate, queue="1MiB")
        link.send(2_000, gap=300_000)  # faster than the rate: all frames but the first are queued
        sizes = [(when, 64) for when, _ in link.arrivals]
        if rate == "1mbit":
            assert_rate("1mbit", sizes)
        else:
            with pytest.raises(AssertionError, match=r"the median rate is .*; expected 1mbit"):
                assert_rate("1mbit", sizes)


@pytest.mark.cluster("star-3")
def test_nodes_are_reachable_until_the_cluster_is_cut_in_two(cluster) -> None:  # type: ignore[no-untyped-def]
    cluster.assert_reachable("n1", "n2")
    with cluster.live.partition(["n1"], ["n2", "n3"]):
        cluster.assert_unreachable("n1", "n2")
        cluster.assert_reachable("n3", "n2")
        with pytest.raises(AssertionError, match=r"^n1 to n2: none of 1 probes was answered$"):
            cluster.assert_reachable("n1", "n2")
    with pytest.raises(AssertionError, match=r"^n1 to n2: probe 1 was answered, expected no answer$"):
        cluster.assert_unreachable("n1", "n2", loss="10%")
    with pytest.raises(NotFoundError, match="no node is called 'n22' — did you mean 'n2'"):
        cluster.assert_unreachable("n1", "n22")
    with pytest.raises(ValueError, match="a loss of 1 cannot be distinguished"):
        cluster.assert_unreachable("n1", "n2", loss="100%")


@pytest.mark.cluster("star-2")
def test_a_fault_without_a_block_is_in_force_at_once_until_it_is_lifted(cluster) -> None:  # type: ignore[no-untyped-def]
    fault = cluster.inject("n1", loss="100%")
    cluster.assert_unreachable("n1", "n2")
    fault.lift()
    cluster.assert_reachable(
        "n1", "n2", loss="10%"
    )  # the first probe may be lost with the pending neighbour resolution
