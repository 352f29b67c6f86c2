"""Runs in namespaces: workloads on EMP, kernel TCP and a third-party protocol, and their failures."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, Grade, RunningCluster
from testbed.cluster.records.state import Store
from testbed.controller.runs.run_options import Nics
from testbed.errors import ConflictError
from testbed.fields import known_fields
from testbed.kernel import syscalls
from testbed.observe.recorded import read_run
from testbed.runtime.journal import UnwritableError
from testbed.runtime.nodes.node_run import NodeDiedError, ProgramError, StuckError
from testbed.workloads.form import Comm, Node
from tests.live.node_sockets import accepts_gso

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

OUTSIDE = Path(__file__).parents[1] / "sim" / "outside"
STAR = Cluster.star(3, seed=2)
MEBIBYTE = 1 << 20


async def crashing(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    await node.barrier()
    if comm.rank == 1:
        raise ZeroDivisionError("on purpose")
    await comm.recv(source=1)


async def dying(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    if comm.rank == 2:
        os._exit(3)
    await node.barrier()


async def waiting(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    if comm.rank == 0:
        await comm.recv(source=1, tag=77)


async def shouting(comm: Comm, node: Node) -> int:  # noqa: ARG001
    for _ in range(64):
        print("x" * MEBIBYTE)  # noqa: T201
    return comm.rank


async def many_rows(comm: Comm, node: Node) -> None:
    await node.barrier()
    for number in range(10_000):
        node.row(number=number, text="x" * 100, rank_of=comm.rank)


async def exchange(comm: Comm, node: Node) -> list[object]:
    """Send each name to every node, and a message longer than a socket's buffer."""
    names = [await comm.sendrecv(node.name, (comm.rank + by) % comm.size, source=(comm.rank - by) % comm.size)
             for by in range(1, comm.size)]  # fmt: skip
    big, mine = bytearray(8 * MEBIBYTE), bytes([comm.rank]) * (8 * MEBIBYTE)
    await comm.Sendrecv(mine, (comm.rank + 1) % comm.size, 1, big, (comm.rank - 1) % comm.size, 1)
    short = await comm.Irecv(bytearray(3), comm.rank, 9)
    await comm.Send(b"own", comm.rank, 9)
    await short.Wait()
    await node.barrier()
    return [sorted(map(str, names)), big[0], big[-1]]


@pytest.fixture
def star() -> Iterator[RunningCluster]:
    with STAR.up() as cluster:
        yield cluster


def test_pingpong_is_brought_up_measured_and_taken_down(tmp_path: Path) -> None:
    before = Store().names()
    result = testbed.run("star-4", "pingpong", settings={"count": 50, "sizes": "0,4,20KiB"}, output=tmp_path / "run")
    assert [row["size_bytes"] for row in result.rows] == [0, 4, 20480]
    assert all(0 < row["min_ns"] <= row["p50_ns"] <= row["p999_ns"] and row["cpu_ns"] > 0 for row in result.rows)
    assert Store().names() == before
    run = read_run(tmp_path / "run")
    assert run.status == "done"
    assert {"the cluster is up", "repetition begins", "repetition ends"} <= {event["event"] for event in run.events()}


@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_random_traffic_over_loss_is_complete_and_the_same_messages_as_in_the_simulation(protocol: str) -> None:
    lossy = Cluster.star(3, loss="3%", delay="200us", seed=8)
    settings = {"messages": 60, "largest": "8KiB"}
    result = testbed.run(lossy, "random", protocol=protocol, settings=settings)
    simulated = testbed.run(lossy, "random", mode="sim", settings=settings)
    assert result.results == simulated.results


@pytest.mark.parametrize("name", ["bandwidth", "contention", "sort", "service", "permutation"])
@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_workloads_run_on_nics_and_on_sockets(star: RunningCluster, protocol: str, name: str) -> None:
    small = {
        "bandwidth": {"count": 20, "sizes": "1,64KiB"}, "contention": {"time": "20ms"}, "sort": {"keys": 1000},
        "service": {"requests": 100}, "permutation": {"count": 5},
    }  # fmt: skip
    assert testbed.run(star, name, protocol=protocol, settings=small[name]).rows


@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_names_circulate_and_self_sends_and_long_messages_arrive(star: RunningCluster, protocol: str) -> None:
    results = testbed.run(star, exchange, protocol=protocol).results
    assert results == {"n1": [["n2", "n3"], 2, 2], "n2": [["n1", "n3"], 0, 0], "n3": [["n1", "n2"], 1, 1]}


def test_tcp_keeps_its_offloads_and_needs_no_frames_of_the_testbed(star: RunningCluster) -> None:
    taken: list[bool | None] = []

    class Look:
        def simulated(self, simulation: object, rules: object) -> None:
            raise NotImplementedError

        def live(self, cluster: RunningCluster, run: object) -> object:  # noqa: ARG002
            taken.append(accepts_gso(cluster, "n1"))
            return contextlib.nullcontext()

    testbed.run(star, "pingpong", settings={"count": 5, "sizes": 4}, companions=[Look()])  # type: ignore[list-item]
    testbed.run(star, "pingpong", protocol="tcp", settings={"count": 5, "sizes": 4}, companions=[Look()])  # type: ignore[list-item]
    assert taken == [False, True]


@pytest.mark.parametrize("nics", ["inline", "shared"])
def test_a_protocol_of_another_package_runs_on_real_frames(nics: Nics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(OUTSIDE)
    known_fields.cache_clear()
    try:
        settings = {"messages": 30, "largest": 10_000}
        result = testbed.run(
            Cluster.star(3, loss="3%", seed=1), "random", protocol="postcard", nics=nics, settings=settings, check=True
        )
        assert result.checks is not None
        assert result.checks.passed
        assert sum(row["received"] for row in result.results.values()) == 3 * 30
        assert sum(counters["resent"] for counters in result.counters.values()) > 0
    finally:
        known_fields.cache_clear()


def test_a_crash_and_a_death_in_the_barrier_are_reported_with_their_node(star: RunningCluster, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"^n2: Traceback(.|\n)*ZeroDivisionError: on purpose") as crash:
        testbed.run(star, crashing, output=tmp_path / "crash")
    assert str(crash.value).splitlines()[1].startswith(f'  File "{__file__}", line '), "it begins with the program"
    assert "live_execution.py" in (tmp_path / "crash" / "logs" / "n2.log").read_text(), "its log has all"
    with pytest.raises(NodeDiedError, match="n3: its process ended with code 3"):
        testbed.run(star, dying, output=tmp_path / "death")
    for name in ("crash", "death"):
        run = read_run(tmp_path / name)
        assert run.status == "failed"
        assert sorted(row["measured"] for row in run.rows()) == [0, 1, 2]
    assert testbed.run(star, "sort", settings={"keys": 100}).rows  # the cluster can be used as before


async def returning_a_function(comm: Comm, node: Node) -> object:  # noqa: ARG001
    return (lambda: 1) if comm.rank == 1 else None


def test_a_result_that_only_its_process_knows_is_refused_with_one_sentence_in_every_mode(star: RunningCluster) -> None:
    log = []
    for cluster, mode in ((STAR, "sim"), (star, "live")):
        with pytest.raises(ProgramError, match=r"^n2: .*<lambda>.*must be plain data") as caught:
            testbed.run(cluster, returning_a_function, mode=mode)  # type: ignore[arg-type]  # two of them
        log.append(re.sub("0x[0-9a-f]+", "", str(caught.value)))
    assert log[0] == log[1]
    assert "Traceback" not in log[0]


def test_programs_that_do_not_end_are_reported_with_their_pending_operations(
    star: RunningCluster, tmp_path: Path
) -> None:
    for protocol in ("emp", "tcp"):
        with pytest.raises(StuckError, match=r"n1: the program waits for a receive from rank 1, tag 77"):
            testbed.run(star, waiting, protocol=protocol, timeout=1, output=tmp_path / protocol)
        assert len(list(read_run(tmp_path / protocol).rows())) == 3
    with pytest.raises(StuckError, match="no program and no transfer has ended"):
        testbed.run(star, waiting, timeout=60, patience=0.5)


def test_output_of_a_program_goes_to_its_nodes_file(star: RunningCluster, tmp_path: Path) -> None:
    result = testbed.run(star, shouting, output=tmp_path / "run")
    assert result.results == {"n1": 0, "n2": 1, "n3": 2}
    assert [(tmp_path / "run" / "logs" / f"n{n}.log").stat().st_size for n in (1, 2, 3)] == [64 * (MEBIBYTE + 1)] * 3


def test_two_runs_on_one_cluster_do_not_meet(star: RunningCluster) -> None:
    class Again:
        def simulated(self, simulation: object, rules: object) -> None:
            raise NotImplementedError

        def live(self, cluster: RunningCluster, run: object) -> object:  # noqa: ARG002
            with pytest.raises(ConflictError, match="another run uses cluster"):
                testbed.run(RunningCluster.attach(cluster.name), "pingpong")
            return contextlib.nullcontext()

    testbed.run(star, "sort", settings={"keys": 100}, companions=[Again()])  # type: ignore[list-item]


def test_on_a_full_disk_the_run_fails_and_the_written_rows_are_readable(star: RunningCluster, tmp_path: Path) -> None:
    syscalls.mount("none", str(tmp_path), "tmpfs", options="size=256k")
    try:
        with pytest.raises((ProgramError, UnwritableError), match="No space left on device"):
            testbed.run(star, many_rows, output=tmp_path / "run")
        rows = list(read_run(tmp_path / "run").rows())
        assert len(rows) > 300
        assert all(len(row["text"]) == 100 for row in rows)
        assert read_run(tmp_path / "run").status in ("failed", "unfinished")
    finally:
        syscalls.umount(str(tmp_path))


def test_the_verdict_of_a_run_is_kept(star: RunningCluster, tmp_path: Path) -> None:
    result = testbed.run(star, "sort", settings={"keys": 100}, output=tmp_path / "run")
    assert read_run(tmp_path / "run").result["verdict"]["grade"] == result.verdict.grade.value
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED, Grade.INVALID)
    assert set(result.counters) == {"n1", "n2", "n3"}
