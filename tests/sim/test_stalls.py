"""Reports of simulated runs that stall or whose firmware fails: program, line and time."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import testbed
from protocols.core.profile import IDEAL
from protocols.emp.profile import EMP_2001
from testbed import Cluster
from testbed.controller.runs.execution import RunTimeoutError
from testbed.engine.failures import MAX_TIMER_CALLS, DeadlineError, TimerCallCounter, failure
from testbed.errors import FirmwareError
from testbed.runtime.journal import UnwritableError
from testbed.sim.simulation import StalledError
from tests.sim import stalled_programs
from tests.sim.mpi_script_files import write_script

STAR = Cluster.star(2, delay="10us")


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        *[(name, "emp") for name in stalled_programs.SCRIPTS if name not in stalled_programs.BUSY],
        ("another tag", "am2"),
        ("test", "am2"),
    ],
)
def test_a_stalled_script_is_reported_with_its_line_and_output(name: str, protocol: str, tmp_path: Path) -> None:
    script, sentence = stalled_programs.stalled_scripts(tmp_path, name)
    with pytest.raises((StalledError, RunTimeoutError)) as raised:  # polls may take more of this machine's time
        testbed.run(STAR, script, protocol=protocol, mode="sim", timeout=1)
    message = str(raised.value)
    if isinstance(raised.value, RunTimeoutError):
        assert "it polled last at" in message
        sentence = sentence.replace("polls,", "(polls|runs),")
    assert re.search("rank on " + sentence, message), message
    assert re.search(r"not ended; (no transfer has ended|the last transfer ended at \d+ ns, on n[12])\n", message)
    assert message.endswith("\nthe last output of the programs:\n  n1: rank 0 begins\n  n2: rank 1 begins")
    assert "<string>" not in message
    assert "lambda" not in message


@pytest.mark.parametrize("name", stalled_programs.BUSY)
def test_a_script_without_progress_of_time_is_abandoned_and_named(name: str, tmp_path: Path) -> None:
    script, sentence = stalled_programs.stalled_scripts(tmp_path, name)
    with pytest.raises(RunTimeoutError) as raised:
        testbed.run(STAR, script, mode="sim", timeout=0.3)
    message = str(raised.value)
    assert re.search("rank on " + sentence, message), message
    assert "has not ended within 0.3 s of real time" in message
    assert "\nthe last output of the programs:\n  n1: rank 0 begins" in message


@pytest.mark.filterwarnings("ignore:coroutine 'CollectiveCalls.Barrier' was never awaited")  # it ends between both
@pytest.mark.parametrize(("delay", "stands_still"), [("0us", True), ("10us", False)])
def test_a_program_that_waits_for_a_time_which_does_not_come_is_told_why(
    delay: str, stands_still: bool, tmp_path: Path
) -> None:
    script = write_script(tmp_path, "while MPI.Wtime() < 1e9:", "    comm.Barrier()")
    with pytest.raises(RunTimeoutError) as raised:
        testbed.run(Cluster.star(2, delay=delay), script, mode="sim", timeout=0.5)
    assert ("virtual time has not advanced for 0." in str(raised.value)) == stands_still


@pytest.mark.parametrize("timeout", [1e-300, 1e-6])
def test_a_timeout_that_expires_before_the_programs_begin_is_reported(timeout: float) -> None:
    program, _ = stalled_programs.AWAITED["waits"]
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(RunTimeoutError, match=f"has not ended within {timeout:g} s of real time"):
        testbed.run(STAR, program, mode="sim", timeout=timeout)
    assert signal.getsignal(signal.SIGALRM) == handler


@pytest.mark.parametrize("name", stalled_programs.AWAITED)
def test_a_stalled_coroutine_is_reported_with_its_line(name: str) -> None:
    program, sentence = stalled_programs.AWAITED[name]
    with pytest.raises(StalledError, match=rf"rank on n2 {sentence}"):
        testbed.run(STAR, program, mode="sim", timeout=1)


def test_the_time_and_the_node_of_the_last_transfer_are_reported(tmp_path: Path) -> None:
    script = tmp_path / "stalls.py"
    script.write_text(
        "from testbed.mpi import MPI\ncomm = MPI.COMM_WORLD\n"
        "if comm.rank == 0:\n    comm.Send(b'x', 1)\nelse:\n    comm.Recv(bytearray(1), 0)\n"
        "comm.recv()\n"
    )
    with pytest.raises(StalledError) as raised:
        testbed.run(STAR, str(script), mode="sim", timeout=1)
    match = re.search(r"the last transfer ended at (\d+) ns, on n1", str(raised.value))
    assert match, "the last transfer is not the acknowledged send of rank 0"
    assert int(match[1]) == 40_000, "not the time of a frame and its acknowledgement over two links of 10 us"


@pytest.mark.parametrize("profile", ["ideal", "priced"])
@pytest.mark.parametrize("tag", stalled_programs.FAULTS)
def test_errors_of_firmware_end_the_run_with_node_and_time(
    tag: int, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(stalled_programs.OUTSIDE)
    node, sentence = stalled_programs.FAULTS[tag]
    prices = IDEAL if profile == "ideal" else EMP_2001
    with pytest.raises(FirmwareError, match=rf"^{node}: at (\d+) ns: (.|\n)*{sentence}") as raised:
        testbed.run(
            STAR,
            stalled_programs.send_a_letter,
            protocol="unruly",
            mode="sim",
            settings={"tag": tag},
            profile=prices,
            timeout=0.5,
        )
    if node == "n2" and profile == "ideal":
        assert raised.value.when == 20_000, "not the time at which the message arrives"


def test_an_error_of_the_testbed_is_not_attributed_to_host_library_or_firmware() -> None:
    class Host:
        def on_completion(self, _index: int) -> None:
            raise UnwritableError("n1.jsonl cannot be written: No space left on device")

    host = Host()
    with pytest.raises(UnwritableError) as raised:
        host.on_completion(0)
    error = failure(raised.value, None, host, 5, "n1")
    assert str(error) == "n1: at 5 ns: n1.jsonl cannot be written: No space left on device"


def test_timer_calls_at_one_time_are_limited_and_a_past_deadline_is_an_error() -> None:
    class Timers:
        deadline: int | None = 5

    count, timers = TimerCallCounter(), Timers()
    for _ in range(MAX_TIMER_CALLS - 1):
        count.check(timers, 5)  # type: ignore[arg-type]
    timers.deadline = 6
    count.check(timers, 5)  # type: ignore[arg-type]
    timers.deadline = 5
    for _ in range(MAX_TIMER_CALLS - 1):
        count.check(timers, 6)  # type: ignore[arg-type]
    with pytest.raises(DeadlineError, match="in the past, 1 ns before now"):
        count.check(timers, 6)  # type: ignore[arg-type]
