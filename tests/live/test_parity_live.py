"""Parity of EMP and AM-II on Ethernet and Myrinet: live and dilated runs have the simulation's messages and fates.

Messages are equal up to the order that MPI leaves undefined (`parity.received_messages`). Another seed must differ.
`test_dilated` compares times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import testbed
from testbed import Cluster, RunResult
from testbed.controller.conformance.parity import FlowOfLink, differing_flows, fates_by_flow, received_messages
from testbed.controller.runs.run_options import Mode, Nics
from testbed.fates.records import Fate
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

LONG: Final = bool(os.environ.get("TESTBED_LONG"))
SEED, OTHER_SEED = 7, 8
MESSAGES: Final = 60 if LONG else 20
"""Number of messages that each node sends."""


class Network(NamedTuple):
    """kind: kind of its switches. dilate: factor of dilated runs; on Myrinet mappers send 50,000 probes in a second of the
    model."""

    kind: str
    dilate: int

    def cluster(self, seed: int) -> Cluster:
        """Return nodes whose links lose frames: on Myrinet four switches in a ring with a node at each."""
        if self.kind == "ethernet":
            return Cluster.star(3, rate="1gbit", delay="100us", loss="4%", seed=seed)
        return Cluster.ring(4, kind=self.kind, loss="4%", seed=seed)


ETHERNET, MYRINET = Network("ethernet", 10), Network("myrinet", 20)


class Case(NamedTuple):
    """A protocol on a network in a mode."""

    protocol: str
    network: Network
    mode: Mode
    nics: Nics = "inline"

    def __str__(self) -> str:
        return "-".join((self.protocol, self.network.kind, self.mode, self.nics))


MODES: Final[tuple[tuple[Mode, Nics], ...]] = (("live", "inline"), ("live", "shared"), ("dilated", "inline"))
ALL_CASES: Final = [
    Case(protocol, network, mode, nics)
    for protocol in ("emp", "am2")
    for network in (ETHERNET, MYRINET)
    for mode, nics in MODES
]
# Fates of EMP and AM-II on Ethernet are compared in CI by `test_emp_everywhere`, `test_am2_everywhere` and `test_dilated`.
# EMP's first messages wait for the network map and their retransmissions: 0.7 s of model time.
QUICK: Final = [
    case
    for case in ALL_CASES
    if (case.network is MYRINET and (case.protocol, case.mode) != ("emp", "dilated"))
    or (case.protocol, case.mode) == ("am2", "dilated")
]

Simulated = Callable[[str, Network, int], Path]


def random_traffic(case: Case, folder: Path, seed: int = SEED) -> RunResult:
    """Run random traffic between all nodes with a checked history and logged fates."""
    dilate = case.network.dilate if case.mode == "dilated" else None
    return testbed.run(
        case.network.cluster(seed), "random", protocol=case.protocol, mode=case.mode, nics=case.nics, dilate=dilate,
        settings={"messages": MESSAGES}, check=True, fates=True, output=folder, timeout=90,
    )  # fmt: skip


def fates(folder: Path) -> Mapping[FlowOfLink, Mapping[int, Fate]]:
    return fates_by_flow(read_log(folder / FATES))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """Return a function that gives the folder of a protocol's simulation on a network with a seed; each runs once."""
    folders: dict[tuple[str, Network, int], Path] = {}

    def folder_of(protocol: str, network: Network, seed: int) -> Path:
        key = protocol, network, seed
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("simulated") / "run"
            random_traffic(Case(protocol, network, "sim"), folders[key], seed)
        return folders[key]

    return folder_of


@pytest.mark.parametrize("case", ALL_CASES if LONG else QUICK, ids=str)
def test_messages_and_fates_equal_the_simulations_with_the_same_seed_only(
    case: Case, simulated: Simulated, tmp_path: Path
) -> None:
    run_folder = tmp_path / "run"
    result = random_traffic(case, run_folder)
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    simulation, other_simulation = (simulated(case.protocol, case.network, seed) for seed in (SEED, OTHER_SEED))
    nodes = list(result.results)
    assert len(nodes) >= 3
    for node in nodes:
        assert received_messages(run_folder, node) == received_messages(simulation, node) != {}
    differing, compared = differing_flows(fates(simulation), fates(run_folder))
    assert not differing
    assert compared >= 20
    assert any(received_messages(run_folder, node) != received_messages(other_simulation, node) for node in nodes)
    assert differing_flows(fates(other_simulation), fates(run_folder))[0]
