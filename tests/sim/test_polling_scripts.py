"""MPI programs that poll, in the simulation."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import testbed
from protocols.core.profile import IDEAL, Profile
from protocols.emp.profile import EMP_2001
from testbed import Cluster
from testbed.engine.loop import POLL_TIME
from testbed.runtime.nodes.node_run import ProgramError
from testbed.sim.simulation import StalledError
from tests.sim.mpi_script_files import with_testbed_import, write_script

STAR = Cluster.star(2, delay="10us", seed=5)


def log(folder: Path, node: str = "n1") -> str:
    return (folder / "logs" / f"{node}.log").read_text()


@pytest.mark.parametrize(("protocol", "profile"), [("emp", "ideal"), ("am2", "ideal"), ("am2", "now-1998")])
def test_a_master_and_workers_that_probe_complete_all_tasks(tmp_path: Path, protocol: str, profile: str) -> None:
    script, folder = with_testbed_import("master_worker.py", tmp_path), tmp_path / "run"
    testbed.run(
        Cluster.star(4, delay="5us"),
        script,
        protocol=protocol,
        mode="sim",
        profile=profile,
        settings={"args": "6"},
        output=folder,
    )
    assert log(folder) == "all tasks are done\n"


@pytest.mark.parametrize("protocol", ["emp", "am2"])
@pytest.mark.parametrize("pause", ["0", "0.0001"])
def test_a_pipeline_that_tests_its_requests_passes_all_items(tmp_path: Path, protocol: str, pause: str) -> None:
    script, folder = with_testbed_import("pipeline.py", tmp_path), tmp_path / "run"
    testbed.run(
        Cluster.star(3), script, protocol=protocol, mode="sim", settings={"args": pause}, check=True, output=folder
    )
    assert log(folder, "n3") == "12 items have come through\n"


@pytest.mark.parametrize("polls", [3, 50])
@pytest.mark.parametrize("profile", [IDEAL, EMP_2001], ids=lambda profile: str(profile.name))
def test_a_few_unsuccessful_polls_before_the_first_send_take_model_time(
    tmp_path: Path, polls: int, profile: Profile
) -> None:
    script = write_script(
        tmp_path,
        f"for _ in range({polls}):",
        "    assert not comm.Iprobe()",
        "    assert comm.improbe() is None",
        "print(round(MPI.Wtime() * 1e9))",
        "comm.send('x', 1 - comm.rank)",
        "comm.recv()",
    )
    folder = tmp_path / "run"
    testbed.run(STAR, script, mode="sim", profile=profile, output=folder)
    elapsed = int(log(folder))
    assert 2 * polls * (profile.poll or POLL_TIME) <= elapsed
    assert elapsed == 2 * polls * POLL_TIME if profile is IDEAL else elapsed < 2 * polls * 20_000


@pytest.mark.parametrize("poll_expression", ["comm.Iprobe()", "request.Test()", "MPI.Request.testall([request])"])
def test_a_program_may_poll_until_a_given_time(tmp_path: Path, poll_expression: str) -> None:
    script = write_script(
        tmp_path,
        "request = comm.Irecv(bytearray(4), 1 - comm.rank, 7)",
        "start = MPI.Wtime()",
        "while MPI.Wtime() < start + 2:",
        f"    {poll_expression}",
        "print(MPI.Wtime() - start)",
        "request.Cancel()",
        "request.Wait()",
    )
    folder, start_time = tmp_path / "run", time.monotonic()
    testbed.run(STAR, script, mode="sim", output=folder)
    assert 2 <= float(log(folder)) < 2.01
    assert time.monotonic() - start_time < 20


def test_polling_finds_a_message_at_most_one_poll_later_than_a_blocking_probe(tmp_path: Path) -> None:
    times = []
    for poll_statement in ("comm.Probe()", "while not comm.Iprobe(): pass"):
        script = write_script(
            tmp_path,
            "if comm.rank == 0:",
            "    comm.Recv(bytearray(1), 1)",
            "    comm.Send(b'x', 1)",
            "else:",
            "    request = comm.Isend(b'x', 0)",
            f"    {poll_statement}",
            "    print(round(MPI.Wtime() * 1e9))",
            "    comm.Recv(bytearray(1), 0)",
            "    request.Wait()",
        )
        testbed.run(STAR, script, mode="sim", output=tmp_path / f"run-{len(times)}")
        times.append(int(log(tmp_path / f"run-{len(times)}", "n2")))
    blocking, polling = times
    assert blocking <= polling <= blocking + POLL_TIME


def test_an_endless_poll_is_reported_at_the_runs_timeout(tmp_path: Path) -> None:
    script, start_time = write_script(tmp_path, "while not comm.iprobe(): pass"), time.monotonic()
    with pytest.raises(StalledError, match=r"on n1 polls, at .*script\.py:3"):
        testbed.run(STAR, script, mode="sim", timeout=60)
    assert time.monotonic() - start_time < 30


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # the progress thread ends with the error
def test_a_progress_thread_is_rejected_with_the_alternative(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"only the thread in which the program began may call it .*let that one"):
        testbed.run(STAR, with_testbed_import("progress_thread.py", tmp_path), mode="sim", timeout=20)
    for thread in threading.enumerate():
        if thread.name.endswith("(progress)"):  # its call may fail after the run has ended
            thread.join(20)
            assert not thread.is_alive()
