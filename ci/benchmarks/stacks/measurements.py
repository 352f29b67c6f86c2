"""A ping-pong on two MPI stacks between two nodes, in turn, and its rows."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.direct_pair import direct_pair
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import REPOSITORY, Row
from protocols.emp.codec import ETHERTYPE
from protocols.emp.host import Endpoint, plug
from protocols.mpi import emp as mpi
from protocols.mpi.comm import Comm
from testbed import RunningCluster, TestbedError, run
from testbed.controller.runs.agents import agents
from testbed.controller.runs.folders import RunFolder
from testbed.runtime.nodes.run_orders import ProgramNode
from testbed.spec.layout_json import to_json
from testbed.workloads.script import make_script

SCRIPT = REPOSITORY / "tests" / "live" / "applications" / "round_trips.py"
SOURCE = Path(__file__).with_name("round_trips.c")
SYSTEM_PYTHON = "/usr/bin/python3"  # whose mpi4py uses the system's MPI

C, MPI4PY, EMP = "Open MPI on TCP, C", "Open MPI on TCP, mpi4py", "testbed's MPI on EMP"
EMP_SLEEPS, TCP_SLEEPS = "testbed's MPI on EMP, sleeps", "testbed's MPI on TCP, sleeps"
SPINNING = (C, MPI4PY, EMP)
SLEEPING = (EMP_SLEEPS, TCP_SLEEPS)

HALF, CPU = "half a round trip", "CPU per message, one side"
MPIRUN = [
    *("mpirun", "--allow-run-as-root", "--host", "n1,n2", "-np", "2", "--bind-to", "none"),
    *("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"),
]
TIMEOUT = 300.0  # s for a repetition of one stack
SPIN = 10_000_000_000  # ns: never sleep

Lines = list[dict[str, int]]
Progress = Callable[[str], None]


@contextmanager
def two_nodes() -> Iterator[RunningCluster]:
    """Context manager: two nodes on one pair of interfaces, each on its own processor, with an sshd."""
    pair = direct_pair()
    processors = zip(pair.nodes, (SENDER, RECEIVER), strict=True)
    nodes = tuple(node.model_copy(update={"cpus": (processor,)}) for node, processor in processors)
    with pair.model_copy(update={"nodes": nodes}).up() as cluster:
        cluster.ssh()
        yield cluster


def round_trips(
    cluster: RunningCluster, directory: Path, sizes: Sequence[int], count: int, repeat: int, progress: Progress
) -> Iterator[Row]:
    """Measure every installed stack in turn."""
    arguments = [str(count), *map(str, sizes)]
    stacks: dict[str, Callable[[], Lines]] = {
        C: partial(_open_mpi, cluster, [_compile(directory)], arguments),
        MPI4PY: partial(_open_mpi, cluster, [SYSTEM_PYTHON, str(SCRIPT)], arguments),
        EMP: partial(_on_emp, cluster, arguments, SPIN),
        EMP_SLEEPS: partial(_on_emp, cluster, arguments, 0),
        TCP_SLEEPS: partial(_on_tcp, cluster, arguments),
    }
    results: dict[tuple[str, int], Lines] = {}
    for turn in range(1, repeat + 1):
        for stack, measure in stacks.items():
            progress(f"{stack}: {turn} of {repeat}")
            for line in measure():
                results.setdefault((stack, line["size_bytes"]), []).append(line)
    for (stack, size), lines in results.items():
        settings = {
            "cluster": "two nodes, one pair of interfaces", "size_bytes": size, "count": lines[0]["count"],
            "waiting": "spinning" if stack in SPINNING else "sleeping", "processors": [SENDER, RECEIVER],
            "interleaved": list(stacks), "open_mpi": " ".join(MPIRUN), "turns": lines,
        }  # fmt: skip
        for measure, key in ((HALF, "p50_ns"), (CPU, "cpu_ns")):
            yield Row("stacks", stack, measure, 2, "s", tuple(line[key] / 1e9 for line in lines), settings)


def write_runs(cluster: RunningCluster, rows: Sequence[Row], folder: Path) -> None:
    """Store each stack's figures as a run of `pingpong`, for ``testbed runs FOLDER``."""
    layout = cluster.state.layout
    for number, stack in enumerate((*SPINNING, *SLEEPING)):
        measured = [row.settings["turns"] for row in rows if (row.contender, row.measure) == (stack, HALF)]
        requested = {
            "kind": "stacks",
            "cluster": layout.name,
            "workload": "pingpong",
            "protocol": stack,
            "mode": "live",
        }
        requested["command"] = "ci/bench stacks"
        run_folder = RunFolder(folder / f"{number + 1}", {**requested, "began": time.time()}, "", to_json(layout))
        for turns in measured:
            for repeat, turn in enumerate(turns, 1):
                run_folder.rows.write({"repeat": repeat if len(turns) > 1 else 0, "node": "n1", **turn})
        run_folder.close({"status": "done", "ended": time.time()})


def _compile(directory: Path) -> str:
    if shutil.which("mpicc") is None:
        raise ContenderError("Open MPI in C needs mpicc: apt-get install openmpi-bin libopenmpi-dev gcc")
    program = directory / SOURCE.stem
    done = subprocess.run(["mpicc", "-O2", "-o", program, SOURCE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContenderError(f"{SOURCE.name} does not compile:\n{done.stderr}")
    return str(program)


def _open_mpi(cluster: RunningCluster, program: Sequence[str], arguments: Sequence[str]) -> Lines:
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = cluster["n1"].run([*MPIRUN, *program, *arguments], cwd=folder, timeout=TIMEOUT)
        except TestbedError as error:
            raise ContenderError(str(error)) from error
    return _lines(done.stdout)


def _on_emp(cluster: RunningCluster, arguments: Sequence[str], spin: int) -> Lines:
    async def rank(endpoint: Endpoint, local: ProgramNode) -> None:
        node = SimpleNamespace(name=local.name, now=time.monotonic_ns)
        await make_script(SCRIPT)(Comm(mpi.device(endpoint)), node, args=" ".join(arguments))

    with tempfile.TemporaryDirectory() as logs:
        ranks = {node.name: rank for node in cluster}
        pinned = {"n1": SENDER, "n2": RECEIVER}
        with agents(cluster, plug(), ETHERTYPE, ranks, spin=spin, cpus=pinned, logs=logs) as started:
            outcome = started.wait(TIMEOUT)
        if outcome.invalid:
            raise ContenderError(f"{EMP}: {outcome.invalid}")
        return _lines(Path(logs, "n1.log").read_text())


def _on_tcp(cluster: RunningCluster, arguments: Sequence[str]) -> Lines:
    with tempfile.TemporaryDirectory() as folder:
        done = run(cluster, str(SCRIPT), protocol="tcp", settings={"args": " ".join(arguments)}, timeout=TIMEOUT,
                   output=Path(folder, "run"))  # fmt: skip
        if done.verdict.grade.value == "invalid":
            raise ContenderError(f"{TCP_SLEEPS}: the run is invalid")
        return _lines(Path(folder, "run", "logs", "n1.log").read_text())


def _lines(text: str) -> Lines:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
