"""Runs under a profile: reported use of resources, durations of a program's calls, and slow NICs in scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import testbed
from protocols.core.profile import Profile
from protocols.emp.profile import EMP_2001
from testbed.cli.main import testbed as command
from testbed.errors import UnsupportedError
from testbed.observe.recorded import read_run
from testbed.spec.fault_models import Slow
from testbed.spec.scenario import Scenario
from testbed.workloads.form import Comm, Node

PINGPONG = {"sizes": "64", "count": 20}


def test_a_run_reports_its_profile_and_the_use_of_its_resources(tmp_path: Path) -> None:
    result = testbed.run(
        "emp-2001", "pingpong", mode="sim", profile="emp-2001", settings=PINGPONG, output=tmp_path / "run"
    )
    run = read_run(tmp_path / "run")
    assert run.parameters["profile"]["name"] == "emp-2001"
    assert run.parameters["profile"]["receive"] == EMP_2001.receive
    (usage,) = run.result["used"]
    assert usage == result.usage
    assert set(usage["n1"]) == {"core", "processor", "reading DMA engine", "writing DMA engine", "bus"}
    counters, n1 = result.counters["n1"], usage["n1"]
    assert counters["frames_resent"] == 0
    assert n1["processor"]["busy_ns"] == (
        n1["core"]["jobs"] / 2 * EMP_2001.ring  # each operation is posted, and its completion noticed
        + n1["reading DMA engine"]["jobs"] * EMP_2001.fetched
        + n1["writing DMA engine"]["jobs"] * EMP_2001.stored
        + (counters["frames_sent"] + counters["acknowledgements_sent"]) * EMP_2001.sent
        + counters["frames_received"] * EMP_2001.receive
    )
    assert 0 < n1["processor"]["share"] < 1


def test_a_run_without_a_profile_reports_no_use_of_resources(tmp_path: Path) -> None:
    result = testbed.run("emp-2001", "pingpong", mode="sim", settings=PINGPONG, output=tmp_path / "run")
    assert result.usage == {}
    assert read_run(tmp_path / "run").parameters["profile"] == {"name": "ideal"}


@pytest.mark.parametrize(
    ("cluster", "protocol", "workload", "settings", "resent"),
    [
        ("emp-2001", "emp", "bandwidth", {"sizes": "64KiB", "pattern": "one-way", "count": 5}, "frames_resent"),
        ("now-1998-pair", "am2", "am-bulk", {"sizes": "32768", "count": 5}, "packets_resent"),
    ],
)
def test_frames_that_wait_for_a_slow_dma_engine_are_not_resent(
    cluster: str, protocol: str, workload: str, settings: dict[str, object], resent: str
) -> None:
    """The last of the queued frames is sent long after a time-out; each is acknowledged well within one. With the longest
    time-out, only refused packets are resent, and frames to a peer that is not known yet."""
    timeout, longest = 2_000_000, 150_000_000
    profile = Profile("slow to read", fetch=timeout // 2, ahead=1)

    def count(timeout: int) -> int:
        result = testbed.run(
            cluster, workload, protocol=protocol, mode="sim", profile=profile, settings=settings,
            firmware={"timeout": timeout},
        )  # fmt: skip
        assert any(usage["reading DMA engine"]["busy_ns"] > 20_000_000 for usage in result.usage.values())
        return sum(counters[resent] for counters in result.counters.values())

    assert count(timeout) == count(longest)


def test_posting_operations_takes_the_profiles_time() -> None:
    profile = Profile("slow host", post=1_000, translate=500, notice=200)

    async def post(comm: Comm, node: Node) -> list[int]:
        times = [node.now()]
        requests = []
        for number in range(3):
            buffer = bytearray(100)
            peer = 1 - comm.rank
            requests.append(await (comm.Isend(buffer, peer, number) if comm.rank else comm.Irecv(buffer, peer, number)))
            times.append(node.now())
        await node.compute(10_000)
        times.append(node.now())
        await node.sleep(5_000)
        times.append(node.now())
        for request in requests:
            await request.Wait()
        return [time - times[0] for time in times]

    result = testbed.run("emp-2001", post, mode="sim", profile=profile)
    assert result.results["n1"] == [0, 1_500, 3_000, 4_500, 14_500, 19_500]


def test_a_run_is_replayed_under_its_profile(tmp_path: Path) -> None:
    settings = {"messages": 20}
    testbed.run("star-4", "random", mode="sim", profile="emp-2002", settings=settings, output=tmp_path / "run", seed=3)
    replayed = testbed.replay(tmp_path / "run", "sim")
    assert replayed.reproduced
    assert replayed.error == ""


def test_profiles_are_rejected_in_namespaces(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="NICs and hosts have no modelled cost"):
        testbed.run("emp-2001", "pingpong", mode="live", profile="emp-2001")
    result = CliRunner().invoke(command, ["run", "star-4", "--on", "n1", "true", "--profile", "emp-2001"])
    assert result.exit_code == 2
    assert "--profile needs a workload" in result.output
    assert not list(tmp_path.iterdir())


def test_a_slow_nic_delays_messages_and_its_effect_is_recorded(tmp_path: Path) -> None:
    """n2's processor takes five times as long from 10 ms to 20 ms."""
    scenario = Scenario(name="slow", faults=[Slow(on="n2", factor=5.0, from_="10ms", to="20ms")])

    async def ping(comm: Comm, node: Node) -> list[tuple[int, int]]:
        round_trips = []
        for number in range(200):
            start_time = node.now()
            buffer = bytearray(4)
            receive = await comm.Irecv(buffer, 1 - comm.rank, number)
            if comm.rank:
                await receive.Wait()
                await comm.Send(buffer, 0, number)
            else:
                await comm.Send(buffer, 1, number)
                await receive.Wait()
            round_trips.append((start_time, node.now() - start_time))
            if not comm.rank:
                await node.sleep(100_000)  # until then the peer has posted its receive
        return round_trips

    result = testbed.run(
        "emp-2001", ping, mode="sim", profile="emp-2001", scenario=scenario, output=tmp_path / "run", timeout=20
    )
    round_trips = result.results["n1"]
    default_time = max(time for trip_start, time in round_trips if trip_start < 9_000_000)
    slowed = min(time for trip_start, time in round_trips if 10_000_000 < trip_start < 19_000_000)
    after = max(time for trip_start, time in round_trips if trip_start > 21_000_000)
    assert after <= default_time
    # At n2 a round trip takes at least the work for a received frame, a stored one, a descriptor and a sent frame.
    assert slowed > default_time + 4 * (EMP_2001.receive + EMP_2001.stored + EMP_2001.ring + EMP_2001.fetched) - 10_000
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (end,) = [event for event in events if event["event"] == "fault ends"]
    assert end["had_effect"]
    assert end["counted"]["longer_ns"] == round(0.8 * end["counted"]["busy_ns"]) > 1_000_000
    assert not [note for note in result.verdict.notes if "had no effect" in note]


def test_a_nic_that_receives_a_flood_acknowledges_without_duplicates() -> None:
    """Both nodes exchange messages while one of them computes: no frame is late enough to be resent."""
    result = testbed.run(
        "emp-2001", "comb", mode="sim", profile="emp-2001", settings={"steps": 2, "rounds": 2, "work": "10ms"}
    )
    idle_row, working = result.rows
    assert idle_row["wait_ns"] < working["worked_ns"] == 10_000_000
    assert working["wait_ns"] < 100_000
    assert all(counters["duplicates"] == 0 for counters in result.counters.values())
