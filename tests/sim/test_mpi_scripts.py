"""Scripts for mpi4py in the simulation, with one changed import."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.errors import DescriptionError, TestbedError
from testbed.observe.recorded import read_run
from testbed.runtime.journal import read
from testbed.runtime.nodes.node_run import ProgramError
from testbed.sim.simulation import StalledError
from testbed.workloads.form import Comm, Node
from testbed.workloads.lookup import choose
from tests.sim.mpi_script_files import POOL, USAGE_ERROR, with_testbed_import, write_script

DELAY = 10_000  # ns, of each of the two links between two nodes
STAR = Cluster.star(2, delay="10us", seed=5)


def lines(folder: Path, node: str = "n1") -> list[str]:
    return (folder / "logs" / f"{node}.log").read_text().splitlines()


def test_a_pingpong_script_measures_the_delay_of_the_links(tmp_path: Path) -> None:
    script = with_testbed_import("pingpong.py", tmp_path)
    for name in ("first", "second"):
        result = testbed.run(STAR, script, mode="sim", settings={"args": "50"}, output=tmp_path / name)
        assert result.results == {"n1": None, "n2": None}
    table = [line.split() for line in lines(tmp_path / "first")]
    assert [int(length) for length, _ in table] == [1, 16, 256, 4096, 65536]
    assert {float(latency) for _, latency in table[:4]} == {2 * DELAY / 1000}, "the latency is not that of the model"
    assert lines(tmp_path / "second") == lines(tmp_path / "first")
    assert not (tmp_path / "first" / "logs" / "n2.log").exists(), "rank 1 prints nothing"


@pytest.mark.parametrize("protocol", ["emp", "am2"])
@pytest.mark.parametrize("loss", ["0%", "5%"])
def test_a_script_with_requests_probes_and_communicators_passes_the_checks(
    tmp_path: Path, loss: str, protocol: str
) -> None:
    script, folder = with_testbed_import("neighbours.py", tmp_path), tmp_path / "run"
    cluster = Cluster.star(4, loss=loss)
    result = testbed.run(cluster, script, protocol=protocol, mode="sim", seed=3, check=True, output=folder)
    assert result.checks is not None
    assert result.verdict.grade is testbed.Grade.TRUSTED
    for rank in range(4):
        other_group = (rank // 2 + 1) % 2
        assert lines(folder, f"n{rank + 1}") == [f"[0, 1, 2, 3] Word(said_by={other_group})"]
    events = [event["what"] for event in read(folder / "history" / "n1.jsonl")]
    assert events.count("cancelled") == 1


def test_a_script_is_compiled_without_inherited_flags_and_its_chdir_does_not_affect_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = write_script(
        tmp_path, "import os", "os.chdir('/')", "def f(count: int): ...", "print(os.getcwd(), f.__annotations__)"
    )
    testbed.run(STAR, script, mode="sim", output="run")
    assert lines(Path("run")) == ["/ {'count': <class 'int'>}"]


def test_arguments_that_a_shell_would_reject_are_reported(tmp_path: Path) -> None:
    with pytest.raises(
        ProgramError, match=r"args: found it's, expected arguments as in a shell \(No closing quotation\)"
    ):
        testbed.run(STAR, write_script(tmp_path), mode="sim", settings={"args": "it's"})


@pytest.mark.parametrize("protocol", ["emp", "am2"])
def test_a_script_sends_matrix_columns_with_derived_datatypes(tmp_path: Path, protocol: str) -> None:
    testbed.run(Cluster.star(2, loss="2%"), with_testbed_import("columns.py", tmp_path), protocol=protocol, mode="sim")


@pytest.mark.parametrize(
    ("protocol", "ranks"), [("emp", 4), ("am2", 3), ("via", 5), ("openmx", 4), ("openmx", 8), ("ssam", 2)]
)
def test_the_tutorials_examples_with_arrays_run_with_one_changed_import(
    tmp_path: Path, protocol: str, ranks: int
) -> None:
    cells = {"kind": "atm", "rate": "140mbit", "overhead": 2} if protocol == "ssam" else {}
    folder = tmp_path / "run"
    testbed.run(
        Cluster.star(ranks, loss="1%", seed=2, **cells), with_testbed_import("arrays.py", tmp_path), protocol=protocol,
        mode="sim", check=True, output=folder,
    )  # fmt: skip
    assert [lines(folder, f"n{rank + 1}") for rank in range(ranks)] == [["done"]] * ranks


def test_an_exception_in_a_script_is_reported_with_its_node_and_traceback(tmp_path: Path) -> None:
    script = write_script(tmp_path, "if comm.rank == 1:", "    comm.Recv(bytearray(1), 7)", "comm.recv(source=1)")
    with pytest.raises(ProgramError, match="n2: ") as raised:
        testbed.run(STAR, script, mode="sim")
    assert 'script.py", line 4, in <module>' in str(raised.value)
    assert str(raised.value).endswith("MPIError: rank must be 0 to 1, got 7")


@pytest.mark.parametrize("protocol", ["emp", "am2"])
def test_an_object_that_is_none_names_the_ranks_whose_collective_calls_differ(tmp_path: Path, protocol: str) -> None:
    script = write_script(tmp_path, "comm.Barrier() if comm.rank == 0 else comm.bcast(None, 0)")
    with pytest.raises(ProgramError) as raised:
        testbed.run(STAR, script, protocol=protocol, mode="sim")
    frames, message = str(raised.value).split("protocols.mpi.mpi_errors.MPIError: ")
    assert message == (
        "bcast: rank 1 expects an object from rank 0, which has sent 0 bytes that are not an object: "
        "the calls of these ranks do not agree"
    )
    assert frames.count("File ") == 1
    assert 'script.py", line 3' in frames


def test_a_stalled_script_is_reported_with_each_ranks_operation_and_line(tmp_path: Path) -> None:
    script = write_script(tmp_path, "def wait():", "    comm.Recv(bytearray(4), 1 - comm.rank, 3)", "wait()")
    with pytest.raises(StalledError) as raised:
        testbed.run(STAR, script, mode="sim")
    for rank in (0, 1):
        assert (
            f"on n{rank + 1} waits for a receive from rank {1 - rank}, tag 3, 4 bytes, at {script}:4 in wait\n"
            in str(raised.value)
        )


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(0)", "sys.exit(None)"])
def test_a_script_may_exit_with_success(tmp_path: Path, end: str) -> None:
    testbed.run(STAR, write_script(tmp_path, "import sys", end), mode="sim")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("sys.exit(3)", "the script has exited: 3"),
        ("sys.exit('no')", "the script has exited: no"),
        ("import os; os._exit(7)", r"the script has exited: os._exit\(7\)"),
        ("comm.Abort(4)", "rank 0 of COMM_WORLD has called Abort, with error code 4"),
    ],
)
def test_a_script_that_exits_with_an_error_code_fails_the_run(tmp_path: Path, end: str, message: str) -> None:
    script = write_script(tmp_path, "import sys", "if comm.rank == 0:", f"    {end}")
    with pytest.raises(ProgramError, match=message):
        testbed.run(STAR, script, mode="sim", output=tmp_path / "run")
    assert read_run(tmp_path / "run").status == "failed"


@pytest.mark.usefixtures("_interruptible")
def test_a_script_that_raises_keyboard_interrupt_fails_the_run(tmp_path: Path) -> None:
    script = write_script(tmp_path, "if comm.rank == 1: raise KeyboardInterrupt", "comm.Recv(bytearray(4), 1)")
    with pytest.raises(ProgramError) as raised:
        testbed.run(STAR, script, mode="sim", output=tmp_path / "run")
    assert str(raised.value).startswith("n2: Traceback")
    assert 'script.py", line 3' in str(raised.value)
    assert str(raised.value).endswith("\nKeyboardInterrupt")
    assert read_run(tmp_path / "run").status == "failed"


@pytest.mark.usefixtures("_interruptible")
def test_a_task_that_raises_keyboard_interrupt_fails_the_run(tmp_path: Path) -> None:
    async def fail() -> None:
        raise KeyboardInterrupt

    async def work(_: Comm, node: Node) -> None:
        await node.spawn(fail(), "failing")

    with pytest.raises(ProgramError) as raised:
        testbed.run(STAR, work, mode="sim", output=tmp_path / "run")
    assert str(raised.value).startswith("n1: Traceback")
    assert str(raised.value).endswith("\nKeyboardInterrupt")


@pytest.mark.usefixtures("_interruptible")
def test_a_signal_during_a_script_interrupts_the_run(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import signal", "signal.raise_signal(signal.SIGINT)")
    with pytest.raises(KeyboardInterrupt):
        testbed.run(STAR, script, mode="sim", output=tmp_path / "run")
    assert read_run(tmp_path / "run").status == "interrupted"


def test_children_of_a_script_exit_by_themselves(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        "import os",
        "child = os.fork() or os._exit(5)",
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    )
    testbed.run(STAR, script, mode="sim", output=tmp_path / "run")
    assert lines(tmp_path / "run") == ["5"]


def test_a_crash_of_a_simulated_script_shows_its_line(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import ctypes", "ctypes.string_at(0)")
    command = [str(Path(sys.executable).with_name("testbed")), "run", "star-2", script, "--mode", "sim"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert ended.returncode == -signal.SIGSEGV
    assert 'script.py", line 4' in ended.stderr


def test_the_error_of_a_script_that_exits_has_what_it_printed_before(tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as raised:
        testbed.run(STAR, write_script(tmp_path, *USAGE_ERROR), mode="sim", output=tmp_path / "run")
    assert str(raised.value) == (
        "n2: the script has exited: 2\nthe last output of the programs:\n  n2: begins\n  n2: usage: script.py [-h] --n N"
        "\n  n2: script.py: error: the following arguments are required: --n"
    )
    assert "Traceback" not in (tmp_path / "run" / "logs" / "n2.log").read_text()


@pytest.mark.parametrize("end", ["", "sys.exit()"])
def test_functions_registered_with_atexit_call_mpi_at_their_ranks_end_the_last_first(tmp_path: Path, end: str) -> None:
    """A pool's master releases its workers in such a function; the workers wait, and exit by SystemExit."""
    (tmp_path / "pool.py").write_text(POOL)
    lines_of_script = [
        "import atexit, sys, pool",
        "pool.start(comm)",
        "atexit.register(print, 'not called')",
        "atexit.unregister(print)",
        "@atexit.register",
        "def say(): print('first')",
        end,
    ]
    for name in ("one", "two"):
        testbed.run(STAR, write_script(tmp_path, *lines_of_script), mode="sim", output=tmp_path / name)
        assert lines(tmp_path / name) == ["first", "release"]
        assert lines(tmp_path / name, "n2") == ["released"]


def test_functions_of_shared_modules_are_left_to_the_process(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("import atexit\natexit.register(print, 'the process ends')\n")
    script = write_script(tmp_path, "import shared, weakref", "weakref.finalize(shared, print, 'finalized')")
    program = (
        f"import testbed; testbed.run(testbed.Cluster.star(2), {script!r}, mode='sim', output='run'); print('run')"
    )
    printed = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True, timeout=50)
    after = printed.stdout.decode().splitlines()
    assert sorted(after[after.index("run") :]) == ["finalized", "finalized", "run", "the process ends"]
    assert not (tmp_path / "run/logs/n1.log").exists(), "a rank has called them"


def test_a_function_registered_with_atexit_that_raises_fails_the_run(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import atexit", "@atexit.register", "def end(): 1 / comm.rank")
    with pytest.raises(ProgramError, match=r"n1: (.|\n)*in end(.|\n)*ZeroDivisionError"):
        testbed.run(STAR, script, mode="sim")
    script = write_script(tmp_path, "import atexit", "atexit.register(print, 'called')", "raise KeyError")
    with pytest.raises(ProgramError, match="KeyError"):
        testbed.run(STAR, script, mode="sim", output=tmp_path / "run")
    assert "called" not in lines(tmp_path / "run")


def test_a_call_after_the_programs_end_says_so(tmp_path: Path) -> None:
    (tmp_path / "keeping.py").write_text("communicators = []\n")
    testbed.run(STAR, write_script(tmp_path, "import keeping", "keeping.communicators.append(comm)"), mode="sim")
    for rank, communicator in enumerate(sys.modules["keeping"].communicators):
        with pytest.raises(RuntimeError, match=f"^the program on n{rank + 1} has ended, and cannot call MPI any more$"):
            communicator.Barrier()


def test_a_package_that_imports_mpi4py_runs_under_the_name_that_the_guide_gives(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text(
        "import mpi4py.MPI\nfrom mpi4py import MPI\ndef total(): return mpi4py.MPI.COMM_WORLD.allreduce(2, op=MPI.SUM)\n"
    )
    guide = (Path(__file__).parents[2] / "docs/guides/mpi-scripts.md").read_text()
    section = guide.split("## Packages that import mpi4py")[1]
    recipe = section.split("```python\n")[1].split("```")[0]
    script = tmp_path / "script.py"
    script.write_text(recipe + "import foreign\nprint(foreign.total())\n")
    command = [
        str(Path(sys.executable).with_name("testbed")),
        "run",
        "star-2",
        str(script),
        "--mode",
        "sim",
        "--output",
        "run",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "run") == ["4"]


def test_scripts_are_distinguished_from_workloads_by_their_imports(tmp_path: Path) -> None:
    for text in (
        "from testbed.mpi import MPI",
        "import testbed.mpi.MPI as MPI",
        "from testbed import mpi",
        "def f():\n    from testbed.mpi.MPI import COMM_WORLD",
    ):
        script = tmp_path / "a.py"
        script.write_text(text)
        assert choose(str(script), {"args": "1 'a b'"}).settings == {"args": "1 'a b'"}
    with pytest.raises(DescriptionError, match="arg"):
        choose(str(script), {"arguments": "1"})
    script.write_text("from testbed import errors\nasync def work(comm, node): ...")
    assert choose(str(script)).settings == {}
    script.write_text("from testbed.mpi import MPI\n)")
    with pytest.raises(TestbedError, match="SyntaxError"):
        choose(str(script))
