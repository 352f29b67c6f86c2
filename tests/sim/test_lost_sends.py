"""Messages whose sends were completed but that are never received, as receivers restart or end, senders crash, or runs are
aborted.

Programs, histories, checkers and the run's notes report them, and no check fails.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

import testbed
from protocols.mpi import ERR_PROC_FAILED
from protocols.mpi.mpi_errors import MPIError
from testbed import Cluster, Scenario
from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.runs import read_reports
from testbed.controller.runs.run_options import Nics
from testbed.observe.recorded import read_run
from testbed.runtime.journal import read
from testbed.runtime.nodes.node_run import ProgramError
from testbed.sim.simulation import StalledError
from testbed.spec.fault_models import Crash, Down, Fault, Reset
from testbed.workloads.form import Comm, Node

BOTH_PROTOCOLS = pytest.mark.parametrize("protocol", ["emp", "am2"])
MICROSECOND, MILLISECOND = 1_000, 1_000_000
LAST = 255
Mode = Literal["sim", "live"]


async def send_at_intervals(comm: Comm, node: Node, *, count: int = 20, gap: int = 700 * MICROSECOND) -> list[int]:
    """Rank 0 starts sends of 40 bytes at intervals, and then waits for them; rank 1 receives until the last one, which is
    repeated until it arrives."""
    if comm.rank == 0:
        requests, failed = [], []
        for number in range(count):
            requests.append(await comm.Isend(bytes([number]) * 40, 1, 7))
            await node.sleep(gap)
        for number, request in enumerate(requests):
            try:
                await request.Wait()
            except MPIError as error:
                failed.append(number if error.Get_error_class() == ERR_PROC_FAILED else -1)
        while True:
            with suppress(MPIError):
                await comm.Ssend(bytes([LAST]) * 40, 1, 7)
                return failed
            await node.sleep(gap)
    buffer, received = bytearray(40), []
    while LAST not in received:
        await comm.Recv(buffer, 0, 7)
        received.append(buffer[0])
    return received


async def send_until_received(comm: Comm, node: Node) -> int:
    """Rank 0 repeats a synchronous send until it succeeds, and returns the number of failures; rank 1's first incarnation
    receives nothing."""
    if comm.rank == 1:
        if node.starts == 1:
            await node.sleep(60_000 * MILLISECOND)
        await comm.Recv(bytearray(40), 0, 7)
        return 0
    failed = 0
    while True:
        with suppress(MPIError):
            await comm.Ssend(bytes(40), 1, 7)
            return failed
        failed += 1
        await node.sleep(MILLISECOND)


async def send_and_return(comm: Comm, node: Node) -> None:
    """Rank 0 returns without a further call after a message whose loss has not been reported yet."""
    if comm.rank == 0:
        for _ in range(2):
            await comm.Isend(b"hello", 1, 7)
            await node.sleep(10 * MILLISECOND)
    elif node.starts < 3:
        if node.starts == 1:
            await comm.Recv(bytearray(5), 0, 7)
        await node.sleep(1_000 * MILLISECOND)


async def stream(comm: Comm, node: Node, *, size: int = 40, gap: int = 0, duration: int = 20 * MILLISECOND) -> None:
    """Send as many messages as fit in `duration`; a restarted node sends none."""
    if comm.rank == 1:
        while True:
            await comm.Recv(bytearray(size), 0)
    while node.starts == 1 and node.now() < duration:
        await comm.Send(bytes(size), 1)
        await node.sleep(gap)


def run_with_faults(
    tmp_path: Path,
    workload: object,
    protocol: str,
    *faults: Fault,
    mode: Mode = "sim",
    nics: Nics = "inline",
    cluster: Cluster | None = None,
    timeout: float = 30,
    **settings: object,
) -> testbed.RunResult:
    return testbed.run(
        cluster or Cluster.star(2), workload, protocol=protocol, mode=mode, nics=nics, timeout=timeout,
        settings=settings, scenario=Scenario(name="storm", faults=faults), output=tmp_path / "run", check=True,
    )  # type: ignore[arg-type]  # fmt: skip


def history_entries(tmp_path: Path, node: str, number: int) -> list[str]:
    """Return a transfer's entries in the history, in order."""
    return [entry["what"] for entry in read(tmp_path / "run" / "history" / f"{node}.jsonl") if entry["n"] == number]


def report(tmp_path: Path) -> Report:
    (result,) = read_reports(read_run(tmp_path / "run"))
    assert result.passed, result.to_text()
    return result


def check_lost_messages(tmp_path: Path, protocol: str, mode: Mode = "sim", nics: Nics = "inline") -> None:
    """Messages are in flight or wait for the restarted peer when the receiver loses its state: a cut has delayed them, or,
    with EMP in the simulation, their sender does not know of the restart yet. In the simulation it is message nine."""
    faults: list[Fault] = [Down(on="n2", at="5500us", for_="150us"), Reset(on="n2", at="5660us")]
    count, gap = 20, 700 * MICROSECOND
    if mode == "live":  # a process takes longer to start again, and a busy machine wakes a program late
        faults = [Down(on="n2", at="700ms", for_="300ms"), Reset(on="n2", at="900ms")]
        count, gap = 100, 20 * MILLISECOND
    elif protocol == "emp":
        faults = [Reset(on="n2", at="5ms")]
    result = run_with_faults(tmp_path, send_at_intervals, protocol, *faults, mode=mode, nics=nics, count=count, gap=gap)
    failed, received = result.results["n1"], result.results["n2"]
    *numbers, last = received
    assert last == LAST
    assert numbers == sorted(set(numbers)), "messages are out of order or duplicate"
    assert {*range(numbers[0], count)} - {*failed} <= {*numbers}, (
        "a message was neither received nor reported as failed"
    )
    for number in range(count):
        ends = history_entries(tmp_path, "n1", number + 1)[1:]
        if number in failed:
            assert ends == (["failed"] if ends[0] == "failed" else ["buffered", "undelivered"])
        else:
            assert ends == (["sent"] if protocol == "emp" else ["buffered", "sent"])
    ambiguous = {ambiguity.message.split(" of ")[0] for ambiguity in report(tmp_path).ambiguities}
    assert ambiguous >= {f"message {number + 1}" for number in failed}
    assert failed
    if mode == "sim":
        assert failed == [8]
        assert 8 not in numbers
        delivery = "not delivered" if protocol == "emp" else "unknown"  # it was sent before the restart
        assert {ambiguity.outcome for ambiguity in report(tmp_path).ambiguities} == {delivery}


@BOTH_PROTOCOLS
def test_a_send_that_fails_after_its_completion_is_reported_by_request_history_and_checks(
    tmp_path: Path, protocol: str
) -> None:
    check_lost_messages(tmp_path, protocol)


def check_unmatched_send(tmp_path: Path, protocol: str, mode: Mode = "sim", nics: Nics = "inline") -> None:
    """A message that has arrived unmatched is lost with its receiver, and its sender is notified without a further send."""
    reset = Reset(on="n2", at="5ms" if mode == "sim" else "105ms")
    assert run_with_faults(tmp_path, send_until_received, protocol, reset, mode=mode, nics=nics).results["n1"] >= 1


@pytest.mark.parametrize("protocol", ["emp", "am2", "ssam", "via", "openmx"])
def test_a_synchronous_send_fails_if_the_receiver_restarts(tmp_path: Path, protocol: str) -> None:
    check_unmatched_send(tmp_path, protocol)


@BOTH_PROTOCOLS
def test_a_failed_send_that_no_call_reports_is_a_note_of_the_verdict(tmp_path: Path, protocol: str) -> None:
    cut = Down(on="n2", at="9ms", for_="3ms")
    result = run_with_faults(
        tmp_path, send_and_return, protocol, Reset(on="n2", at="5ms"), cut, Reset(on="n2", at="11ms")
    )
    (line,) = [note for note in result.verdict.notes if "reported done" in note]
    assert line.startswith("n1: a send to rank 1, tag 7, 5 bytes, was reported done, and has failed since: node 1 has ")
    assert report(tmp_path).ambiguities


@BOTH_PROTOCOLS
@pytest.mark.parametrize("downtime", ["0s", "30ms"], ids=["forever", "restarted"])
def test_sends_lost_with_their_crashed_sender_are_not_violations(tmp_path: Path, protocol: str, downtime: str) -> None:
    cut = Down(on="n1", at="8ms", for_="7ms")  # so that its NIC has unsent messages
    crash = Crash(on="n1", at="10ms") if downtime == "0s" else Crash(on="n1", at="10ms", for_=downtime)
    with pytest.raises(StalledError):
        run_with_faults(tmp_path, stream, protocol, cut, crash, gap=300 * MICROSECOND)
    ambiguities = report(tmp_path).ambiguities
    assert ambiguities
    if protocol == "am2":
        assert any(
            ambiguity.notification.startswith("complete, and without a known delivery when")
            for ambiguity in ambiguities
        )
        assert {ambiguity.outcome for ambiguity in ambiguities if ambiguity.notification.startswith("complete")} == {
            "not delivered"
        }


@BOTH_PROTOCOLS
def test_a_send_to_a_crashed_node_is_reported_when_the_protocol_gives_up(tmp_path: Path, protocol: str) -> None:
    if protocol == "am2":  # by default EMP never gives up
        with pytest.raises(ProgramError, match=r"a send to rank 1, tag 0, 40 bytes, was reported done|acknowledged"):
            run_with_faults(
                tmp_path,
                stream,
                protocol,
                Crash(on="n2", at="5ms"),
                gap=10 * MILLISECOND,
                duration=10_000 * MILLISECOND,
            )
        assert history_entries(tmp_path, "n1", 2) == ["send", "buffered", "undelivered"]
    else:
        with pytest.raises(StalledError):
            run_with_faults(tmp_path, stream, protocol, Crash(on="n2", at="5ms"), gap=10 * MILLISECOND)
        assert history_entries(tmp_path, "n1", 2) == ["send"]
    assert report(tmp_path).ambiguities


@BOTH_PROTOCOLS
def test_a_run_aborted_during_a_long_message_reports_it(tmp_path: Path, protocol: str) -> None:
    slow_cluster = Cluster.star(2, rate="200kbit")
    with pytest.raises(StalledError):
        run_with_faults(
            tmp_path, stream, protocol, cluster=slow_cluster, size=20_000, duration=10_000 * MILLISECOND, timeout=5
        )  # each takes 0.8 s
    sends = [entry["n"] for entry in read(tmp_path / "run" / "history" / "n1.jsonl") if entry["what"] == "send"]
    ambiguities = report(tmp_path).ambiguities  # AM-II's sender may have started one more message
    assert ambiguities[-1].message.startswith(f"message {sends[-1]} of n1 to n2")
    assert len(ambiguities) <= (2 if protocol == "am2" else 1)
    assert {entry.outcome for entry in ambiguities} == {"not delivered"}


SCRIPT = """
import sys
from testbed.mpi import MPI

comm = MPI.COMM_WORLD


def pass_time():
    comm.send(None, 2)
    comm.recv(source=2)


if comm.rank == 0:
    while MPI.Wtime() < 0.0085:
        comm.send("work", 1)
        pass_time()
    comm.send("the last", 1, 9)
    for _ in range(5):
        pass_time()
    comm.send("stop", 2)
    if sys.argv[1] == "Finalize":
        try:
            MPI.Finalize()
        except MPI.Exception as error:
            print("reported:", error)
elif comm.rank == 1 and MPI.Wtime() < 0.01:
    while True:
        comm.recv()
elif comm.rank == 2:
    while comm.recv() != "stop":
        comm.send(None, 0)
"""


@BOTH_PROTOCOLS
@pytest.mark.parametrize("end", ["its end", "Finalize"])
def test_lost_sends_are_reported_by_finalize_or_at_the_end_of_a_script(tmp_path: Path, protocol: str, end: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    cluster, reset = Cluster.star(3, delay="500us"), Reset(on="n2", at="10ms")
    if end == "Finalize":
        run_with_faults(tmp_path, str(tmp_path / "script.py"), protocol, reset, cluster=cluster, args=end)
        text = (tmp_path / "run" / "logs" / "n1.log").read_text()
        assert text.startswith("reported: a send to rank 1, tag 9, ")
    else:
        with pytest.raises(
            ProgramError, match=r"(?s)n1: .*a send to rank 1, tag 9, .* was reported done, and has failed"
        ):
            run_with_faults(tmp_path, str(tmp_path / "script.py"), protocol, reset, cluster=cluster, args="'its end'")
