"""Exploration whose probes are answered by an oracle, which leaves some unanswered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.explorer import explore
from protocols.myrinet.mapper.network_map import ContradictionError, Port, Topology
from protocols.myrinet.mapper.prober import Answer, HostAnswer, Pacer, Probe, Prober
from protocols.myrinet.mapper.settings import Settings
from tests.unit.protocols.mapper_networks import Cable, Myrinet, address, plug_cables

# Two routes lead to switch d, which has a further neighbour; only a has a host.
DIAMOND = plug_cables([(0, "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e")])


def explore_network(
    cables: list[Cable],
    has_losses: bool = False,
    is_lost: Callable[[Probe], bool] = lambda _: False,
    change_answer: Callable[[Answer], Answer] = lambda answer: answer,
) -> tuple[Topology, list[Probe]]:
    """Return the map of the network, and the requested probes."""
    network = Myrinet(cables, leaders=[])
    exploration = explore(0, 8, lambda: has_losses)
    probes: list[Probe] = []
    try:
        while True:
            batch = next(exploration)
            for probe in batch.probes:
                if not batch.is_wanted(probe):
                    continue
                probes.append(probe)
                end, _ = network.leads_to(0, probe.route)
                if isinstance(end, int) and (probe.is_to_host or end == 0) and not is_lost(probe):
                    batch.on_answer(
                        probe, change_answer(HostAnswer(end, 1, address(end)) if probe.is_to_host else None)
                    )
    except StopIteration as stop:
        return stop.value, probes


def test_a_switch_without_hosts_that_two_routes_reach_is_mapped_once() -> None:
    topology, _ = explore_network(DIAMOND)
    assert len(topology.ends) == 5
    assert not Myrinet(DIAMOND, leaders=[]).differences(topology)


def test_in_a_lossy_network_a_switch_is_recognized_though_one_of_its_ports_is_silent() -> None:
    def is_lost(probe: Probe) -> bool:
        """Return whether the probe takes c to d and then the port of e."""
        return probe.route[:4] == (2, 1, 1, 0)

    assert (1, 1) in explore_network(DIAMOND)[0].routes  # d was first entered from b
    assert any(map(is_lost, explore_network(DIAMOND)[1]))
    assert len(explore_network(DIAMOND, has_losses=True, is_lost=is_lost)[0].ends) == 5
    with pytest.raises(ContradictionError):
        explore_network(DIAMOND, has_losses=False, is_lost=is_lost)


def test_a_host_in_two_places_is_a_contradiction() -> None:
    cables = plug_cables([(number, "s") for number in range(3)])

    def claim_host_1(answer: Answer) -> Answer:
        return HostAnswer(1, 1, address(1)) if answer is not None and answer.number == 2 else answer

    with pytest.raises(ContradictionError, match="host 1 is at two ports"):
        explore_network(cables, change_answer=claim_host_1)


def test_two_cables_at_one_port_are_a_contradiction() -> None:
    topology = Topology(0)
    topology.add(())
    topology.attach(Port(0, 1), 7)
    with pytest.raises(ContradictionError, match="two cables at port 1 of switch 0"):
        topology.attach(Port(0, 1), 8)


def test_only_one_known_host_is_probed_on_a_cable_to_another_switch() -> None:
    """Both ends of the cable between b and c, when b's and c's hosts are known: up to the first host, of 14 ports each."""
    hosts: list[tuple[str | int, str | int]] = [(0, "a"), (1, "b"), (2, "b"), (3, "b"), (4, "c")]
    topology, requested = explore_network(plug_cables([*hosts, ("a", "b"), ("a", "c"), ("b", "c")]))
    assert len(topology.ends) == 3
    assert len([probe for probe in requested if probe.is_to_host and len(probe.route) == 3]) <= 12


class SingleTry:
    """Batch of loopback probes, each with one try, all of them needed."""

    has_retries = False
    is_patient = False

    def __init__(self, count: int) -> None:
        self.probes = [Probe(False, (number, 0, -number)) for number in range(count)]
        self.answered_probes: list[Probe] = []

    def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
        return True

    def on_answer(self, probe: Probe, answer: Answer) -> None:  # noqa: ARG002
        self.answered_probes.append(probe)


def test_an_answer_after_the_last_try_has_expired_is_late() -> None:
    counters, numbers, settings = Counters(), list[int](), Settings()
    prober = Prober(settings, counters, Pacer(1, 10), lambda _, number: numbers.append(number))
    prober.run(0, batch := SingleTry(2))
    prober.on_answer(settings.timeout - 1, numbers[1], None)
    prober.on_timer(settings.timeout)
    assert (counters.silent, prober.is_busy) == (1, False)
    prober.on_answer(settings.timeout + 1, numbers[0], None)
    assert (counters.answers_received, counters.late_answers) == (1, 1)
    assert batch.answered_probes == [batch.probes[1]]


def test_an_answer_to_a_probe_that_the_previous_batch_no_longer_needed_does_not_reach_the_next_batch() -> None:
    class UntilAnswered(SingleTry):
        def is_wanted(self, probe: Probe) -> bool:  # noqa: ARG002
            return not self.answered_probes

    counters, numbers, settings = Counters(), list[int](), Settings()
    prober = Prober(settings, counters, Pacer(1, 10), lambda _, number: numbers.append(number))
    prober.run(0, UntilAnswered(2))
    prober.on_answer(settings.timeout - 1, numbers[0], None)
    prober.on_timer(settings.timeout)
    assert not prober.is_busy
    prober.run(settings.timeout, batch := SingleTry(2))
    prober.on_answer(settings.timeout + 1, numbers[1], None)
    assert (counters.late_answers, batch.answered_probes) == (1, [])
