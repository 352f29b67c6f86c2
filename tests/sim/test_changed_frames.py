"""Rules that change frames, in complete runs: effects at the receiver, and replays."""

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
from testbed.workloads.form import Comm, Node
from tests.sim.changed_frames import SET_TAG, SET_TAG_KEEP_CHECK, expected, tags
from tests.sim.changed_frames import TAG as SENT
from tests.sim.test_am2_errors import SECOND_NODE, TAG, Pair

FATES = "fates.jsonl"


@pytest.mark.parametrize(("rule", "second"), [(SET_TAG, 7), (SET_TAG_KEEP_CHECK, SENT)], ids=["updated", "kept"])
def test_a_changed_tag_is_delivered_only_if_the_checksum_is_updated(rule: str, second: int, tmp_path: Path) -> None:
    declared = testbed.run(Cluster.back_to_back(rules=[rule]), tags, mode="sim", output=tmp_path / "run")
    assert declared.results["n2"] == expected(second)
    assert read_log(tmp_path / "run" / FATES)[0].fate.sets == (("emp.tag", 7),)


def test_a_rule_of_a_scenario_changes_a_field() -> None:
    fault = Rule(on="n1", direction="out", rules=["set emp.tag = 7 emp.type == MESSAGE and nth(2)"], at="1ms")
    scenario = Scenario(name="wrong-tag", faults=[fault])
    result = testbed.run(Cluster.back_to_back(delay="1ms"), tags, mode="sim", scenario=scenario)
    assert result.results["n2"] == expected(7)


def test_the_checks_report_a_message_with_a_changed_tag_and_a_replay_reproduces_the_report(
    tmp_path: Path,
) -> None:
    rule = "set emp.tag = 8 emp.type == MESSAGE and emp.tag < 0x1000000 and nth(4)"
    with pytest.raises(TestbedError, match=r"under tag \d+ came before number \d+, or that was lost"):
        testbed.run(
            Cluster.star(3, rules=[rule]), "random", mode="sim", output=tmp_path / "run", timeout=5,
            settings={"messages": 20},
        )  # fmt: skip
    failed = read_repetition(tmp_path / "run")
    replayed = replay_repetition(failed, "sim", output=tmp_path / "replay")
    assert failed.failed
    assert (replayed.reproduced, replayed.applied) == (True, replayed.fates)
    assert (tmp_path / "replay" / "checks.json").read_text() == (tmp_path / "run" / "checks.json").read_text()


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
def test_a_replay_repeats_the_changes_of_every_protocols_fields(
    protocol: str, kind: str, rule: str, tmp_path: Path
) -> None:
    cluster = Cluster.star(3, kind=kind, rules=[rule])
    testbed.run(
        cluster, "random", protocol=protocol, mode="sim", settings={"messages": 20}, check=True, output=tmp_path / "run"
    )
    changed = [record.fate for record in read_log(tmp_path / "run" / FATES)]
    assert changed
    assert all(fate.sets or fate.flips for fate in changed)
    replayed = replay_repetition(read_repetition(tmp_path / "run"), "sim", output=tmp_path / "replay")
    assert (replayed.applied, replayed.fates) == (len(changed), len(changed))
    assert (tmp_path / "replay" / "checks.json").read_text() == (tmp_path / "run" / "checks.json").read_text()


def test_a_request_whose_endpoint_is_changed_is_returned_to_its_sender() -> None:
    """The rule updates Myrinet's CRC-8 and AM-II's CRC-32."""
    pair = Pair()
    pair.requester.map(0, SECOND_NODE, TAG)
    pair.simulation.network.link_directions[pair.link, "forward"].change(0, Impairment(rules=("set am2.endpoint = 9",)))
    pair.run(lambda endpoint: endpoint.try_request(0, 1, 41))
    assert [message.status for message in pair.returned] == [Status.BAD_ENDPOINT]
    assert pair.delivered == []


async def pingpong(comm: Comm, node: Node) -> str:  # noqa: ARG001
    """Rank 0 sends a message and receives the reply."""
    buffer = bytearray(4)
    if comm.rank == 0:
        await comm.Send(b"ping", 1, 1)
        await comm.Recv(buffer, 1, 1)
    else:
        await comm.Recv(buffer, 0, 1)
        await comm.Send(b"pong", 0, 1)
    return buffer.decode()


@pytest.mark.parametrize("field", ["vi = 9", "session = 77"])
def test_via_connects_though_the_addressee_of_the_first_request_is_changed(field: str) -> None:
    cluster = Cluster.star(2, delay="10us", rules=[f"set via.{field} via.type == CONNECT and nth(1)"])
    result = testbed.run(cluster, pingpong, protocol="via", mode="sim", timeout=10)
    assert result.results == {"n1": "pong", "n2": "ping"}


@pytest.mark.parametrize("change", ["vi = 9 nth(2)", "session = 77 nth(2)", "from_session = 77 nth(1)"])
def test_via_reports_a_broken_connection_after_a_changed_connect_frame(change: str) -> None:
    field, count = change.rsplit(" ", 1)
    cluster = Cluster.star(2, delay="10us", rules=[f"set via.{field} via.type == CONNECT and {count}"])
    with pytest.raises(TestbedError, match=r"MPIError: rank \d has restarted or ended the connection"):
        testbed.run(cluster, pingpong, protocol="via", mode="sim", timeout=10)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("vi = 9", "has restarted or ended the connection"),
        ("session = 77", "has restarted or ended the connection"),
        ("handle = 9", "and this rank have lost their connection"),
    ],
)
def test_the_report_of_waiting_ranks_has_the_reason_for_vias_lost_connection(field: str, reason: str) -> None:
    """The message is lost with the connection, so that both ranks wait for each other."""
    cluster = Cluster.star(2, delay="10us", rules=[f"set via.{field} via.type == RDMA_WRITE and nth(1)"])
    with pytest.raises(TestbedError) as caught:
        testbed.run(cluster, pingpong, protocol="via", mode="sim", timeout=10)
    first, second = (line for line in str(caught.value).splitlines() if "waits for a receive" in line)
    assert "on n1 waits for a receive from rank 1, tag 1, 4 bytes (meanwhile, rank 1 has restarted or ended" in first
    assert f"on n2 waits for a receive from rank 0, tag 1, 4 bytes (meanwhile, rank 0 {reason} (" in second


@pytest.mark.parametrize(
    ("protocol", "kind", "rule", "change"),
    [
        ("am2", "ethernet", "set am2.handler = 9 nth(1)", "am2.handler set to 0x9"),
        ("ssam", "atm", "set ssam.handler = 0x4d504903 nth(2)", "ssam.handler set to 0x4d504903"),
        ("via", "ethernet", "set via.vi = 9 via.type == RDMA_WRITE and nth(1)", "via.vi set to 0x9"),
    ],
    ids=["am2", "ssam", "via"],
)
def test_a_run_that_fails_after_a_changed_frame_with_valid_checks_reports_the_frame(
    protocol: str, kind: str, rule: str, change: str
) -> None:
    """AM-II's and SSAM's libraries raise an error, VIA's ranks wait; only the run knows the reason."""
    with pytest.raises(TestbedError) as caught:
        testbed.run(
            Cluster.star(2, kind=kind, delay="10us", rules=[rule]), pingpong, protocol=protocol, mode="sim", timeout=5
        )
    last = str(caught.value).splitlines()[-1]
    assert last.startswith("frames have been changed on their way, with valid checks: on n")
    assert f"{change} and its checks mended by rule '{rule}', frame " in last
