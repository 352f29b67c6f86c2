"""Runs in the simulation that fail, and the reports in their folders."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import testbed
from protocols.mpi.mpi_errors import MPIError
from testbed import Cluster
from testbed.controller.runs.execution import RunTimeoutError
from testbed.controller.runs.run_options import Mode
from testbed.errors import ConflictError, NotFoundError, UnsupportedError
from testbed.fates.rules import RuleSet
from testbed.observe.recorded import read_run
from testbed.runtime.journal import read
from testbed.runtime.nodes.node_run import ProgramError
from testbed.sim.simulation import Simulation, StalledError
from testbed.workloads.form import Comm, Node

STAR = Cluster.star(2, delay="10us", seed=5)


async def fail_on_rank_1(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    await node.barrier()
    if comm.rank == 1:
        raise ZeroDivisionError("on purpose")
    await comm.recv(source=1)


async def wait_forever(comm: Comm, node: Node) -> None:
    node.row(measured=comm.rank)
    if comm.rank == 0:
        await comm.recv(source=1, tag=77)


async def compute_forever(comm: Comm, node: Node) -> None:  # noqa: ARG001
    node.row(measured=0)
    while True:
        pass


async def sleep_forever(comm: Comm, node: Node) -> None:  # noqa: ARG001
    while True:
        await node.sleep(1_000_000)


async def exchange_then_stall(comm: Comm, node: Node) -> None:  # noqa: ARG001
    if comm.rank == 0:
        await comm.Send(b"hello", 1, 3)
        await comm.send("x" * 10_000, 1, 4)
    else:
        await comm.Recv(bytearray(8), 0, 3)
        await comm.recv()
        try:
            comm.rank.bit_length()
            await comm.Recv(bytearray(2), 0, 5)
        except MPIError:
            pass


async def send_a_mebibyte(comm: Comm, node: Node) -> None:  # noqa: ARG001
    if comm.rank == 0:
        await comm.Send(bytes(1 << 20), 1)
    else:
        await comm.Recv(bytearray(1 << 20), 0)


async def interrupt(comm: Comm, node: Node) -> None:  # noqa: ARG001
    signal.raise_signal(signal.SIGINT)  # as Ctrl-C does


async def return_unsupported_result(comm: Comm, node: Node) -> object:  # noqa: ARG001
    return (lambda: 1) if comm.rank else bytes(200_000)


def test_a_result_that_a_node_process_could_not_return_is_rejected_in_the_simulation() -> None:
    with pytest.raises(ProgramError) as caught:
        testbed.run(STAR, return_unsupported_result, mode="sim")
    assert "Traceback" not in str(caught.value)
    assert "must be plain data" in str(caught.value) or "is too long; at most" in str(caught.value)


def test_a_crash_is_reported_with_its_traceback_and_node_and_keeps_the_measurements(tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as caught:
        testbed.run(STAR, fail_on_rank_1, mode="sim", output=tmp_path / "run")
    assert str(caught.value).startswith("n2: Traceback")
    assert "ZeroDivisionError: on purpose" in str(caught.value)
    assert str(caught.value).splitlines()[1].startswith(f'  File "{__file__}", line '), (
        "the traceback does not begin with the program"
    )
    assert "simulated_execution.py" in (tmp_path / "run" / "logs" / "n2.log").read_text(), (
        "the node's log lacks the complete traceback"
    )
    run = read_run(tmp_path / "run")
    assert run.status == "failed"
    assert "n2" in run.result["error"]
    assert [row["measured"] for row in run.rows()] == [0, 1]


def test_programs_that_wait_forever_are_named_with_their_pending_operations(tmp_path: Path) -> None:
    with pytest.raises(StalledError, match=r"rank on n1 waits for a receive from rank 1, tag 77"):
        testbed.run(STAR, wait_forever, mode="sim", output=tmp_path / "run")
    assert len(list(read_run(tmp_path / "run").rows())) == 2


def test_a_program_that_never_ends_times_out_and_its_line_is_reported(tmp_path: Path) -> None:
    sentence = r"(?s)within 0.5 s of real time.*rank on n1 runs, at .*test_simulated_runs.py:\d+ in compute_forever"
    with pytest.raises(RunTimeoutError, match=sentence):
        testbed.run(STAR, compute_forever, mode="sim", timeout=0.5, output=tmp_path / "run")
    assert read_run(tmp_path / "run").status == "failed"
    with pytest.raises(StalledError, match="500000000 ns have passed, and 2 programs have not ended"):
        testbed.run(STAR, sleep_forever, mode="sim", timeout=0.5)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        testbed.run(STAR, interrupt, mode="sim", output=tmp_path / "run")
    assert read_run(tmp_path / "run").status == "interrupted"


def test_an_existing_folder_is_not_overwritten_and_a_failed_start_leaves_none(tmp_path: Path) -> None:
    testbed.run(STAR, "pingpong", mode="sim", settings={"count": 1, "sizes": 0}, output=tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConflictError):
        testbed.run(STAR, "pingpong", mode="sim", output=tmp_path / "run")
    with pytest.raises(NotFoundError):
        testbed.run(STAR, "pingpong", protocol="none", mode="sim", output=tmp_path / "other")
    with pytest.raises(UnsupportedError, match="tcp is a kernel protocol, which needs --mode live"):
        testbed.run(STAR, "pingpong", protocol="tcp", mode="sim", output=tmp_path / "other")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_can_be_repeated_from_its_folder(tmp_path: Path) -> None:
    lossy = Cluster.star(2, delay="10us", loss="20%")
    first_result = testbed.run(
        lossy, "pingpong", mode="sim", settings={"count": 20, "sizes": "4"}, seed=9, output=tmp_path / "one"
    )
    run = read_run(tmp_path / "one")
    parameters = run.parameters
    assert parameters["environment"]["kernel"]
    cluster = Cluster.load(tmp_path / "one" / "cluster.toml")
    repeated = testbed.run(
        cluster, parameters["workload"], protocol=parameters["protocol"], mode=parameters["mode"],
        settings=parameters["settings"],
        seed=parameters["seed"], output=tmp_path / "two", capture=True,
    )  # fmt: skip
    assert list(repeated.rows) == list(first_result.rows) == list(run.rows())
    fates = (tmp_path / "one" / "fates.jsonl").read_text()
    assert fates == (tmp_path / "two" / "fates.jsonl").read_text()
    assert len(fates.splitlines()) > 5
    assert (tmp_path / "two" / "capture.pcapng").stat().st_size > 1000
    assert run.result["verdict"]["grade"] == "trusted"
    other_seed = testbed.run(lossy, "pingpong", mode="sim", settings={"count": 20, "sizes": "4"}, seed=10)
    assert other_seed.rows != first_result.rows


def test_a_history_contains_sent_received_and_pending_messages(tmp_path: Path) -> None:
    with pytest.raises(StalledError):
        testbed.run(STAR, exchange_then_stall, mode="sim", history=True, output=tmp_path / "run")
    sender, receiver = (list(read(tmp_path / "run" / "history" / f"{node}.jsonl")) for node in ("n1", "n2"))
    sends = {event["n"]: event for event in sender if event["what"] == "send"}
    assert {event["n"] for event in sender if event["what"] == "sent"} == set(sends)
    receptions = [event for event in receiver if event["what"] == "received"]
    assert [(event["tag"], event["bytes"], event["digest"]) for event in receptions[:2]] == [
        (event["tag"], event["bytes"], event["digest"]) for event in list(sends.values())[:2]
    ]
    receives_started = {event["n"] for event in receiver if event["what"] == "receive"}
    assert len(receives_started - {event["n"] for event in receptions}) == 1
    clock_times = [event["clock_ns"] for event in receiver]
    assert clock_times == sorted(clock_times)


class Cut:
    """Companion of a run that cuts a link for some milliseconds and drops every tenth frame."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:
        rules.add(0, "drop every(10)")
        (link, *_) = simulation.layout.links
        simulation.loop.at(100_000, lambda _: (self.calls.append("cut"), simulation.cut(link.name)))
        simulation.loop.at(9_000_000, lambda _: (self.calls.append("restored"), simulation.restore(link.name)))

    def live(self, cluster: object, run: object) -> object:
        raise NotImplementedError


def test_a_companion_runs_together_with_the_programs(tmp_path: Path) -> None:
    cut = Cut()
    result = testbed.run(
        STAR,
        "pingpong",
        mode="sim",
        settings={"count": 50, "sizes": "4"},
        companions=[cut],  # type: ignore[list-item]  # only these methods are called
        output=tmp_path / "run",
    )
    assert cut.calls == ["cut", "restored"]
    assert all(counters["collections_resent"] for counters in result.counters.values())
    causes: Mapping[str, int] = {}
    for line in (tmp_path / "run" / "fates.jsonl").read_text().splitlines():
        cause = json.loads(line)["cause"]
        causes = {**causes, cause: causes.get(cause, 0) + 1}
    assert causes.get("rule", 0) > 5


def test_nics_without_a_path_are_rejected_before_anything_starts(tmp_path: Path) -> None:
    ring = Cluster(
        name="ring",
        node=[{"name": name} for name in "abc"],
        link=[{"ends": ends} for ends in (["a", "b"], ["b", "c"], ["c", "a"])],
    )
    with pytest.raises(UnsupportedError, match="no frame gets from a:eth0 to c:eth0"):
        testbed.run(ring, wait_forever, mode="sim", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("protocol", "mode"), [("via", "sim"), ("via", "live"), ("tcp", "live")])
def test_a_protocol_without_routes_is_rejected_on_myrinet_before_a_folder_is_made(
    protocol: str, mode: Mode, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="is Myrinet, which forwards by source routes"):
        testbed.run("now-1998", "pingpong", protocol=protocol, mode=mode, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_program_that_calls_exit_is_an_error_with_its_node() -> None:
    async def call_exit(comm: Comm, node: Node) -> None:  # noqa: ARG001
        sys.exit(3)

    with pytest.raises(ProgramError, match=r"(?s)n1: .*SystemExit: 3"):
        testbed.run(STAR, call_exit, mode="sim")


def test_a_task_that_calls_exit_or_fails_is_an_error_of_its_program() -> None:
    async def call_exit() -> None:
        sys.exit(3)

    async def spawn(comm: Comm, node: Node) -> None:  # noqa: ARG001
        await node.spawn(call_exit(), "inner")

    async def spawn_twice(comm: Comm, node: Node) -> None:
        await node.spawn(spawn(comm, node), "outer")

    for program in (spawn, spawn_twice):
        with pytest.raises(ProgramError, match=r"(?s)n1: .*SystemExit: 3") as caught:
            testbed.run(STAR, program, mode="sim")
        assert str(caught.value).count("Traceback") == 1


class _Printer:
    """Companion that prints while no program runs."""

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:  # noqa: ARG002
        for microseconds in range(100):
            simulation.loop.at(microseconds * 1000, self._print)

    def live(self, cluster: object, run: object) -> contextlib.AbstractContextManager[object]:
        raise NotImplementedError

    def _print(self, _now: int) -> None:
        print("of the companion")  # noqa: T201
        print("an error of the companion", file=sys.stderr)  # noqa: T201


def test_logs_have_the_output_of_their_programs_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def print_at_the_end(comm: Comm, node: Node) -> None:
        print(f"begin {node.name}")  # noqa: T201
        try:
            if comm.rank == 1:
                await node.sleep(50_000)
                raise ValueError("on purpose")
            await comm.recv(source=1)
        finally:
            print(f"end {node.name}")  # noqa: T201

    with pytest.raises(ProgramError):
        testbed.run(STAR, print_at_the_end, mode="sim", output=tmp_path / "run", companions=[_Printer()])
    logs = {name: (tmp_path / "run" / "logs" / f"{name}.log").read_text() for name in ("n1", "n2")}
    assert logs["n1"] == "begin n1\nend n1\n"
    assert logs["n2"].startswith("begin n2\nend n2\nTraceback")
    assert "companion" not in logs["n2"]
    output = capsys.readouterr()
    assert set(output.out.splitlines()) == {"of the companion"}
    assert set(output.err.splitlines()) == {"an error of the companion"}


@pytest.mark.parametrize(("queue", "is_full"), [(None, True), ("256kb", False)])
def test_frames_that_find_a_full_queue_are_noted(queue: str | None, is_full: bool) -> None:
    # A pull of Open-MX has 128 replies in flight, 190 KB: more than the default queue has room for.
    star = Cluster.star(2, rate="1gbit", delay="5us", **({} if queue is None else {"queue": queue}))
    result = testbed.run(star, send_a_mebibyte, mode="sim", protocol="openmx")
    notes = [note for note in result.verdict.notes if "queue" in note]
    if not is_full:
        assert notes == []
        return
    (note,) = notes
    assert re.fullmatch(
        r"\d+ frames were dropped because the queue of their link was full; the most \(\d+\) on n1:eth0--s1:1 forward",
        note,
    )
