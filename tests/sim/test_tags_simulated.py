"""Scenarios by tags in the simulation: faults of the tagged elements, and random choices by seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import testbed
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Crash, Impair, Incast, Partition, Pause
from testbed.workloads.form import Comm, Node

SECOND = 1_000_000_000
RACKS = Cluster.star(5, delay="100us", tags={"rack1": ["n1", "n2", "n3"], "server": ["n5"], "slow": ["n4--s1"]})


async def chat(comm: Comm, node: Node) -> None:
    """Send to the next rank a hundred times a second, for a second, without waiting for completion."""
    receives = [await comm.Irecv(bytearray(1)) for _ in range(50)]
    for _ in range(50):
        await comm.Isend(b"!", (comm.rank + 1) % comm.size)
        await node.sleep(SECOND // 50)
    assert receives


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == event]


def play(folder: Path, scenario: Scenario, seed: int = 1) -> testbed.RunResult:
    return testbed.run(
        RACKS, chat, mode="sim", seed=seed, scenario=scenario, output=folder / "run", check=False, timeout=20
    )


def test_a_fault_of_a_tag_applies_to_its_elements(tmp_path: Path) -> None:
    faults = (
        Impair(on="@slow", at="100ms", for_="300ms", loss="50%"),
        Pause(on="@rack1", at="100ms", for_="50ms"),
        Incast(receiver="@server", rate="1mbit", at="200ms", for_="100ms"),
        Partition(groups=[["@rack1"], ["@server", "n4"]], at="500ms", for_="200ms"),
    )
    play(tmp_path, Scenario(name="racks", faults=faults))
    ends = {event["kind"]: event for event in events(tmp_path, "fault ends")}
    assert [kind for kind, end in ends.items() if not end["had_effect"]] == []
    assert ends["pause"]["counted"]["nodes"] == 3
    assert ends["impair"]["what"] == "loss 50% on @slow"


def test_one_element_of_a_tag_is_drawn_each_time_by_the_seed(tmp_path: Path) -> None:
    storm = Scenario(name="storm", faults=(Pause(on="@rack1", pick=1, at=0, for_="10ms", every="20ms", to="900ms"),))
    targets = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        play(folder, storm, seed)
        targets.append([event["what"] for event in events(folder, "fault begins")])
    assert targets[0] == targets[1] != targets[2]
    assert set(targets[0]) == {"pause on n1", "pause on n2", "pause on n3"}


def test_a_crash_picks_one_of_the_tagged_nodes(tmp_path: Path) -> None:
    result = play(tmp_path, Scenario(name="one", faults=(Crash(on="@rack1", pick=1, at="100ms"),)))
    (begins,) = events(tmp_path, "fault begins")
    crashed = begins["what"].removeprefix("crash on ")
    assert set(result.results) == {f"n{number}" for number in range(1, 6)} - {crashed}
    assert crashed in ("n1", "n2", "n3")
