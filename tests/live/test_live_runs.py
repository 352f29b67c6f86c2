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


async def raise_error(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    await node.barrier()
    if comm.rank == 1:
        raise ZeroDivisionError("injected")
    await comm.recv(source=1)


async def die(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    if comm.rank == 2:
        os._exit(3)
    await node.barrier()


async def wait_forever(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    if comm.rank == 0:
        await comm.recv(source=1, tag=77)


async def print_much(comm: Comm, node: Node) -> int:  # noqa: ARG001
    for _ in range(64):
        print("x" * MEBIBYTE)  # noqa: T201
    return comm.rank


async def many_rows(comm: Comm, node: Node) -> None:
    await node.barrier()
    for number in range(10_000):
        node.row(number=number, text="x" * 100, rank_of=comm.rank)


async def exchange(comm: Comm, node: Node) -> list[object]:
    """Exchange names with all nodes, and messages that exceed a socket's buffer."""
    names = [await comm.sendrecv(node.name, (comm.rank + by) % comm.size, source=(comm.rank - by) % comm.size)
             for by in range(1, comm.size)]  # fmt: skip
    received, sent = bytearray(8 * MEBIBYTE), bytes([comm.rank]) * (8 * MEBIBYTE)
    await comm.Sendrecv(sent, (comm.rank + 1) % comm.size, 1, received, (comm.rank - 1) % comm.size, 1)
    short = await comm.Irecv(bytearray(3), comm.rank, 9)
    await comm.Send(b"own", comm.rank, 9)
    await short.Wait()
    await node.barrier()
    return [sorted(map(str, names)), received[0], received[-1]]


@pytest.fixture
def star() -> Iterator[RunningCluster]:
    with STAR.up() as cluster:
        yield cluster


def test_a_pingpong_run_brings_up_measures_and_takes_down(tmp_path: Path) -> None:
    before = Store().names()
    result = testbed.run("star-4", "pingpong", settings={"count": 50, "sizes": "0,4,20KiB"}, output=tmp_path / "run")
    assert [row["size_bytes"] for row in result.rows] == [0, 4, 20480]
    assert all(0 < row["min_ns"] <= row["p50_ns"] <= row["p999_ns"] and row["cpu_ns"] > 0 for row in result.rows)
    assert Store().names() == before
    run = read_run(tmp_path / "run")
    assert run.status == "done"
    assert {"the cluster is up", "repetition begins", "repetition ends"} <= {event["event"] for event in run.events()}


@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_random_traffic_over_lossy_links_equals_the_simulations(protocol: str) -> None:
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
def test_messages_to_others_to_oneself_and_long_ones_arrive(star: RunningCluster, protocol: str) -> None:
    results = testbed.run(star, exchange, protocol=protocol).results
    assert results == {"n1": [["n2", "n3"], 2, 2], "n2": [["n1", "n3"], 0, 0], "n3": [["n1", "n2"], 1, 1]}


def test_runs_on_tcp_keep_the_offloads_and_runs_on_nics_disable_them(star: RunningCluster) -> None:
    offloads: list[bool | None] = []

    class OffloadProbe:
        def simulated(self, simulation: object, rules: object) -> None:
            raise NotImplementedError

        def live(self, cluster: RunningCluster, run: object) -> object:  # noqa: ARG002
            offloads.append(accepts_gso(cluster, "n1"))
            return contextlib.nullcontext()

    testbed.run(star, "pingpong", settings={"count": 5, "sizes": 4}, companions=[OffloadProbe()])  # type: ignore[list-item]
    testbed.run(star, "pingpong", protocol="tcp", settings={"count": 5, "sizes": 4}, companions=[OffloadProbe()])  # type: ignore[list-item]
    assert offloads == [False, True]


@pytest.mark.parametrize("nics", ["inline", "shared"])
def test_a_third_party_protocol_runs_on_real_frames(nics: Nics, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_exception_and_a_dead_process_are_reported_with_their_node(star: RunningCluster, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"^n2: Traceback(.|\n)*ZeroDivisionError: injected") as crash:
        testbed.run(star, raise_error, output=tmp_path / "crash")
    assert str(crash.value).splitlines()[1].startswith(f'  File "{__file__}", line '), (
        "the traceback starts in the program"
    )
    assert "live_execution.py" in (tmp_path / "crash" / "logs" / "n2.log").read_text(), (
        "the log has the complete traceback"
    )
    with pytest.raises(NodeDiedError, match="n3: its process ended with code 3"):
        testbed.run(star, die, output=tmp_path / "death")
    for name in ("crash", "death"):
        run = read_run(tmp_path / name)
        assert run.status == "failed"
        assert sorted(row["measured"] for row in run.rows()) == [0, 1, 2]
    assert testbed.run(star, "sort", settings={"keys": 100}).rows  # the cluster can be used as before


async def return_a_function(comm: Comm, node: Node) -> object:  # noqa: ARG001
    return (lambda: 1) if comm.rank == 1 else None


def test_a_result_that_is_not_plain_data_is_the_same_error_in_every_mode(star: RunningCluster) -> None:
    messages = []
    for cluster, mode in ((STAR, "sim"), (star, "live")):
        with pytest.raises(ProgramError, match=r"^n2: .*<lambda>.*must be plain data") as caught:
            testbed.run(cluster, return_a_function, mode=mode)  # type: ignore[arg-type]
        messages.append(re.sub("0x[0-9a-f]+", "", str(caught.value)))
    assert messages[0] == messages[1]
    assert "Traceback" not in messages[0]


def test_programs_that_do_not_end_are_reported_with_their_pending_operations(
    star: RunningCluster, tmp_path: Path
) -> None:
    for protocol in ("emp", "tcp"):
        with pytest.raises(StuckError, match=r"n1: the program waits for a receive from rank 1, tag 77"):
            testbed.run(star, wait_forever, protocol=protocol, timeout=1, output=tmp_path / protocol)
        assert len(list(read_run(tmp_path / protocol).rows())) == 3
    with pytest.raises(StuckError, match="no program and no transfer has ended"):
        testbed.run(star, wait_forever, timeout=60, patience=0.5)


def test_a_programs_output_goes_to_its_nodes_log(star: RunningCluster, tmp_path: Path) -> None:
    result = testbed.run(star, print_much, output=tmp_path / "run")
    assert result.results == {"n1": 0, "n2": 1, "n3": 2}
    assert [(tmp_path / "run" / "logs" / f"n{n}.log").stat().st_size for n in (1, 2, 3)] == [64 * (MEBIBYTE + 1)] * 3


def test_a_second_run_on_a_cluster_is_rejected(star: RunningCluster) -> None:
    class SecondRun:
        def simulated(self, simulation: object, rules: object) -> None:
            raise NotImplementedError

        def live(self, cluster: RunningCluster, run: object) -> object:  # noqa: ARG002
            with pytest.raises(ConflictError, match="another run uses cluster"):
                testbed.run(RunningCluster.attach(cluster.name), "pingpong")
            return contextlib.nullcontext()

    testbed.run(star, "sort", settings={"keys": 100}, companions=[SecondRun()])  # type: ignore[list-item]


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


def test_the_verdict_of_a_run_is_recorded(star: RunningCluster, tmp_path: Path) -> None:
    result = testbed.run(star, "sort", settings={"keys": 100}, output=tmp_path / "run")
    assert read_run(tmp_path / "run").result["verdict"]["grade"] == result.verdict.grade.value
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED, Grade.INVALID)
    assert set(result.counters) == {"n1", "n2", "n3"}
