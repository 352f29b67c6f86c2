"""mpi4py scripts in namespaces, with one changed import."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, RunningCluster
from testbed.runtime.nodes.node_run import NodeDiedError, ProgramError, StuckError
from tests.live.testbed_command import testbed as command
from tests.sim.mpi_script_files import POOL, USAGE_ERROR, with_testbed_import, write_script

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


@pytest.fixture(scope="module")
def star() -> Iterator[RunningCluster]:
    with Cluster.star(2).up() as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_a_pingpong_script_measures_wall_clock_time(star: RunningCluster, tmp_path: Path, protocol: str) -> None:
    script, start = with_testbed_import("pingpong.py", tmp_path), time.monotonic()
    testbed.run(star, script, protocol=protocol, settings={"args": "30"}, output=tmp_path / "run")
    duration = time.monotonic() - start
    table = [line.split() for line in (tmp_path / "run" / "logs" / "n1.log").read_text().splitlines()]
    assert [int(length) for length, _ in table] == [1, 16, 256, 4096, 65536]
    # Each round trip takes more than 1 us, and all of them less than the run.
    assert all(float(latency) > 1 for _, latency in table)
    assert sum(float(latency) * 2 * 30 / 1e6 for _, latency in table) < duration


@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_a_script_with_requests_probes_and_communicators_passes_all_checks(tmp_path: Path, protocol: str) -> None:
    script, folder = with_testbed_import("neighbours.py", tmp_path), tmp_path / "run"
    with Cluster.star(4).up() as cluster:
        result = testbed.run(cluster, script, protocol=protocol, check=True, output=folder)
    assert result.checks is not None
    for rank in range(4):
        log = (folder / "logs" / f"n{rank + 1}.log").read_text()
        assert log == f"[0, 1, 2, 3] Word(said_by={(rank // 2 + 1) % 2})\n"


@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_a_script_sends_matrix_columns_with_derived_datatypes(
    star: RunningCluster, tmp_path: Path, protocol: str
) -> None:
    testbed.run(star, with_testbed_import("columns.py", tmp_path), protocol=protocol)


@pytest.mark.parametrize("protocol", ["openmx", "tcp"])
def test_the_tutorials_examples_with_arrays_run_with_one_changed_import(
    star: RunningCluster, tmp_path: Path, protocol: str
) -> None:
    testbed.run(star, with_testbed_import("arrays.py", tmp_path), protocol=protocol, output=tmp_path / "run")
    for node in ("n1", "n2"):
        assert (tmp_path / "run" / "logs" / f"{node}.log").read_text() == "done\n"


def test_a_function_registered_with_atexit_calls_mpi_at_its_ranks_end(star: RunningCluster, tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    testbed.run(star, write_script(tmp_path, "import pool", "pool.start(comm)"), output=tmp_path / "run")
    assert [(tmp_path / f"run/logs/n{rank}.log").read_text() for rank in (1, 2)] == ["release\n", "released\n"]


def test_a_synchronous_send_over_tcp_waits_for_its_receive(star: RunningCluster, tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        "if comm.rank == 0:",
        "    request = comm.Issend(b'x', 1, 1)",
        "    comm.Send(b'', 1, 2)",
        "    comm.recv(source=1)",
        "    assert not request.Test()",
        "    comm.send('now', 1, 3)",
        "    request.Wait()",
        "else:",
        "    comm.Recv(None, 0, 2)",
        "    comm.Probe(0, 1)",
        "    comm.send('arrived', 0)",
        "    comm.recv(source=0, tag=3)",
        "    comm.Recv(bytearray(1), 0, 1)",
    )
    testbed.run(star, script, protocol="tcp")


def test_an_exception_in_a_script_is_reported_with_its_node_and_traceback(star: RunningCluster, tmp_path: Path) -> None:
    script = write_script(tmp_path, "if comm.rank == 1:", "    1 / 0", "comm.recv(source=1)")
    with pytest.raises(ProgramError, match="n2: ") as raised:
        testbed.run(star, script)
    assert 'script.py", line 4, in <module>' in str(raised.value)
    assert "ZeroDivisionError" in str(raised.value)


def test_a_script_that_raises_keyboard_interrupt_fails_the_run(star: RunningCluster, tmp_path: Path) -> None:
    script = write_script(tmp_path, "if comm.rank == 1: raise KeyboardInterrupt", "comm.Recv(bytearray(4), 1)")
    with pytest.raises(ProgramError, match=r"^n2: (.|\n)*script.py\", line 3(.|\n)*\nKeyboardInterrupt"):
        testbed.run(star, script, output=tmp_path / "run")


def test_the_error_of_a_script_that_exits_has_what_it_printed_before(star: RunningCluster, tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as raised:
        testbed.run(star, write_script(tmp_path, *USAGE_ERROR))
    assert str(raised.value) == (
        "n2: the script has exited: 2\nthe last output of the programs:\n  n2: begins\n  n2: usage: script.py [-h] --n N"
        "\n  n2: script.py: error: the following arguments are required: --n"
    )


def test_the_error_of_a_script_that_crashes_has_its_line(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import ctypes", "comm.rank and ctypes.string_at(0)", "comm.Barrier()")
    message = r'n2: its process was ended by signal 11:(?s:.)*script.py", line 4'
    with Cluster.star(2).up() as cluster, pytest.raises(NodeDiedError, match=message):
        testbed.run(cluster, script)


def test_a_stalled_script_is_reported_with_each_ranks_operation_and_line(star: RunningCluster, tmp_path: Path) -> None:
    script = write_script(tmp_path, "def wait():", "    comm.Recv(bytearray(4), 1 - comm.rank, 3)", "wait()")
    with pytest.raises(StuckError) as raised:
        testbed.run(star, script, patience=2)
    for rank in (0, 1):
        sentences = raised.value.waiting[f"n{rank + 1}"]
        assert (
            f"the program waits for a receive from rank {1 - rank}, tag 3, 4 bytes, at {script}:4 in wait" in sentences
        )


def test_a_script_in_an_endless_computation_is_reported_with_its_line(star: RunningCluster, tmp_path: Path) -> None:
    script = write_script(tmp_path, "comm.Barrier()", "own = comm.rank", "while own:", "    pass", "comm.Recv(None, 1)")
    with pytest.raises(StuckError) as raised:
        testbed.run(star, script, patience=2)
    assert any(
        "the program runs, at" in sentence and "script.py:" in sentence for sentence in raised.value.waiting["n2"]
    )


def test_output_of_a_script_is_shown_with_its_node(tmp_path: Path) -> None:
    script = write_script(tmp_path, "print(f'rank {comm.rank} of {comm.size}')")
    shown = command("run", "star-4", script, "--mode", "sim", cwd=tmp_path).stdout
    assert shown.splitlines()[:4] == [f"n{rank + 1}: rank {rank} of 4" for rank in range(4)]
