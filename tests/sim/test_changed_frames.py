"""Rules that change frames, in complete runs: the changed messages at the receiver, and their replay."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from protocols.active_messages.am_errors import Status
from testbed import Cluster
from testbed.controller.replay.replays import read_repetition, replay_repetition
from testbed.errors import TestbedError
from testbed.runtime.logs import read_log
from testbed.spec.fault_models import Rule
from testbed.spec.layout import Impairment
from testbed.spec.scenario import Scenario
from tests.sim.changed_frames import SET_TAG, SET_TAG_UNMENDED, expected, tags
from tests.sim.changed_frames import TAG as SENT
from tests.sim.test_am2_errors import AWAY, TAG, Pair

FATES = "fates.jsonl"


@pytest.mark.parametrize(("rule", "second"), [(SET_TAG, 7), (SET_TAG_UNMENDED, SENT)], ids=["mended", "kept"])
def test_a_changed_tag_with_a_correct_check_reaches_the_program_and_one_without_is_resent(
    rule: str, second: int, tmp_path: Path
) -> None:
    declared = testbed.run(Cluster.back_to_back(rules=[rule]), tags, mode="sim", output=tmp_path / "run")
    assert declared.results["n2"] == expected(second)
    assert read_log(tmp_path / "run" / FATES)[0].fate.sets == (("emp.tag", 7),)


def test_a_scenario_changes_a_field_of_the_next_message() -> None:
    fault = Rule(on="n1", direction="out", rules=["set emp.tag = 7 emp.type == MESSAGE and nth(2)"], at="1ms")
    scenario = Scenario(name="wrong-tag", faults=[fault])
    result = testbed.run(Cluster.back_to_back(delay="1ms"), tags, mode="sim", scenario=scenario)
    assert result.results["n2"] == expected(7)


def test_a_run_finds_the_message_whose_tag_was_changed_on_the_way_and_its_replay_finds_it_again(
    tmp_path: Path,
) -> None:
    rule = "set emp.tag = 8 emp.type == MESSAGE and emp.tag < 0x1000000 and nth(4)"
    with pytest.raises(TestbedError, match=r"under tag \d+ came before number \d+, or that was lost"):
        testbed.run(
            Cluster.star(3, rules=[rule]), "random", mode="sim", output=tmp_path / "run", timeout=5,
            settings={"messages": 20},
        )  # fmt: skip
    failed = read_repetition(tmp_path / "run")
    replayed = replay_repetition(failed, "sim", output=tmp_path / "again")
    assert failed.failed
    assert (replayed.reproduced, replayed.applied) == (True, replayed.fates)
    assert (tmp_path / "again" / "checks.json").read_text() == (tmp_path / "run" / "checks.json").read_text()


@pytest.mark.parametrize(
    ("protocol", "kind", "rule"),
    [
        ("am2", "myrinet", "corrupt am2.sequence keep-check nth(30)"),
        ("am2", "ethernet", "corrupt 2 in am2.stamp mend-check nth(30)"),
        ("ssam", "atm", "set ssam.handler = 77 keep-check nth(5)"),
        ("via", "ethernet", "set via.message = 9, via.offset = 4 keep-check nth(3)"),
        ("openmx", "ethernet", "set openmx.tiny.length = 3 nth(2)"),
    ],
)
def test_fields_of_every_protocol_are_changed_logged_and_changed_again_by_a_replay(
    protocol: str, kind: str, rule: str, tmp_path: Path
) -> None:
    cluster = Cluster.star(3, kind=kind, rules=[rule])
    testbed.run(
        cluster, "random", protocol=protocol, mode="sim", settings={"messages": 20}, check=True, output=tmp_path / "run"
    )
    changed = [record.fate for record in read_log(tmp_path / "run" / FATES)]
    assert changed
    assert all(fate.sets or fate.flips for fate in changed)
    replayed = replay_repetition(read_repetition(tmp_path / "run"), "sim", output=tmp_path / "again")
    assert (replayed.applied, replayed.fates) == (len(changed), len(changed))
    assert (tmp_path / "again" / "checks.json").read_text() == (tmp_path / "run" / "checks.json").read_text()


def test_a_request_whose_endpoint_is_changed_on_the_way_comes_back_to_its_sender() -> None:
    """AM-II's packets have Myrinet's CRC-8 in addition to AM-II's CRC-32: both are correct afterwards."""
    pair = Pair()
    pair.asker.map(0, AWAY, TAG)
    pair.simulation.network.link_directions[pair.link, "forward"].change(0, Impairment(rules=("set am2.endpoint = 9",)))
    pair.run(lambda asker: asker.try_request(0, 1, 41))
    assert [message.status for message in pair.returned] == [Status.BAD_ENDPOINT]
    assert pair.delivered == []
