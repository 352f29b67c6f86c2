"""Checks by whole runs: NICs that restart, a host of a shared NIC that is killed, and parity of the simulation with real
frames in namespaces."""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from testbed.cluster.api import Cluster
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.conformance.candidate import Candidate, NotApplicableError
from testbed.controller.conformance.message_checks import restarted_peers
from testbed.controller.conformance.parity import differing_flows, fates_by_flow, received_messages
from testbed.controller.conformance.trials import Violation
from testbed.controller.nic_options import share_nics
from testbed.controller.runs.run_options import Mode
from testbed.controller.runs.runner import RunResult, run
from testbed.errors import PermissionDeniedError, TestbedError, UnsupportedError
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log
from testbed.spec.fault_models import Crash, Fault, Reset, Restart
from testbed.spec.model import Description
from testbed.spec.scenario import Scenario

LARGEST: Final = 4_000
"""Bytes of the messages of runs, at most."""
HEAD: Final = 100
"""Bytes that workloads add to a message, at most."""
TIMEOUT: Final = 60.0
"""Seconds after which a run, or a script, is taken to have come to a halt."""
FAULTS: Final[tuple[Fault, ...]] = (
    Restart(on="n2", at="150ms"),
    Reset(on="n3", at="250ms"),
    Crash(on="n2", at="350ms", for_="50ms"),
)


def restarts(candidate: Candidate) -> None:
    """Restart nodes within messages of every size, and then two of three nodes, one of them again, while all exchange
    messages; in the simulation."""
    restarted_peers(candidate)
    settings = {"time": "600ms", "settle": "300ms", "largest": min(LARGEST, candidate.max_message_size - HEAD)}
    scenario = Scenario(name="restarts", faults=FAULTS)
    result = _run(candidate, Description.star(3, delay="20us"), "churn", "sim", settings, scenario=scenario)
    lives = {"n1": 1, "n2": 3, "n3": 2}
    rows = {str(row["node"]): row for row in result.rows}
    for name, row in rows.items():
        others = sum(lives[other] for other in lives if other != name)
        # A node's last life begins after some of the others' have ended.
        wanted = others if lives[name] == 1 else 2
        if row["from_lives"] < wanted:
            raise Violation(f"{name} has heard only {row['from_lives']} of {wanted} lives of the other nodes: {row}")


_HOLD: Final = """
import sys
from testbed import attach

async def receive(comm, node):
    print("attached", flush=True)
    await comm.recv(source=0, tag=1)
    await comm.recv(source=0, tag=2)

with attach(sys.argv[1]) as nic:
    nic.run(receive)
"""
_TALK: Final = """
import sys
from testbed import attach
from protocols.mpi.mpi_errors import MPIError

async def exchange(comm, peer, number):
    try:
        request = await comm.isend([comm.rank, number], peer, 3)
        assert await comm.recv(source=peer, tag=3) == [peer, number]
        await request.wait()
    except MPIError as error:
        raise RuntimeError(f"a message between nodes that live has failed: {error}") from error

async def talk(comm, node):
    peer = {0: 2, 2: 0}[comm.rank]
    if comm.rank == 0:
        await comm.send("meet", 1, 1)
        doomed = await comm.isend("to one that is killed", 1, 4)
    await exchange(comm, peer, 0)
    print("talking", flush=True)
    for number in range(1, 20):
        await exchange(comm, peer, number)
        await node.sleep(20_000_000)
    if comm.rank == 0:
        await doomed.wait()

try:
    with attach(sys.argv[1]) as nic:
        nic.run(talk)
except MPIError as error:  # its sender is told that the message to the dead may not have arrived
    print(error)
"""
_SUCCEED: Final = """
import sys
from testbed import attach

async def succeed(comm, node):
    if comm.rank == 1:
        await comm.send("here again", 0, 6)
    else:
        assert await comm.recv(source=1, tag=6) == "here again"

with attach(sys.argv[1]) as nic:
    nic.run(succeed)
"""


def killed_host(candidate: Candidate) -> None:
    """Kill a process on a shared NIC while one sends to it and others exchange messages; another then takes its place."""
    if candidate.protocol.split_driver is None:
        raise NotApplicableError("its NICs cannot be shared: it has no split driver")
    name = candidate.name
    with _namespaces(), Cluster.star(3).up() as cluster, share_nics(cluster, name), ExitStack() as processes:
        held = processes.enter_context(_started(cluster, "n2", _HOLD, name))
        _expect(held, "attached\n")
        talking = [processes.enter_context(_started(cluster, node, _TALK, name)) for node in ("n1", "n3")]
        for process in talking:
            _expect(process, "talking\n")
        held.kill()
        _expect_ends(talking)
        _expect_ends([processes.enter_context(_started(cluster, node, _SUCCEED, name)) for node in ("n1", "n2")])


@contextmanager
def _started(cluster: RunningCluster, node: str, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *arguments]
    process = cluster[node].popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _expect(process: subprocess.Popen[str], line: str) -> None:
    """Wait for a program's only line. Raises Violation if it ends without it, or does not print it in time."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], TIMEOUT)[0]:
        raise Violation(f"after {TIMEOUT:g} s a program on a shared NIC has not come to {line.strip()!r}")
    if process.stdout.readline() != line:
        raise Violation(
            f"a program on a shared NIC has not come to {line.strip()!r}: {process.communicate()[1].strip()}"
        )


def _expect_ends(processes: list[subprocess.Popen[str]]) -> None:
    """Wait until programs have ended. Raises Violation for one that fails, or does not end."""
    for process in processes:
        try:
            _, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Violation(f"{TIMEOUT:g} s after another host was killed a program has not ended") from None
        if process.returncode:
            raise Violation(f"a program has failed because another host was killed: {errors.strip()}")


def parity(candidate: Candidate) -> str:
    """Run random messages over lossy links in the simulation and on real frames, and compare fates and messages."""
    settings = {"messages": 30, "largest": min(LARGEST, candidate.max_message_size - HEAD)}
    description = Description.star(3, rate="1gbit", delay="100us", loss="3%", seed=7)
    with tempfile.TemporaryDirectory(prefix="testbed-parity-") as place, _namespaces():
        folders = {mode: Path(place) / mode for mode in ("sim", "live")}
        _run(candidate, description, "random", "sim", settings, folders["sim"])
        _run(candidate, description, "random", "live", settings, folders["live"])
        for node in ("n1", "n2", "n3"):
            simulated, live = (received_messages(folder, node) for folder in folders.values())
            if simulated != live:
                differing = sorted(key for key in simulated | live if simulated.get(key) != live.get(key))
                raise Violation(
                    f"{node} has received other messages in namespaces, by (peer, context, tag): {differing[:5]}"
                )
        there, here = (fates_by_flow(read_log(folder / FATES)) for folder in folders.values())
    differing_fates, compared = differing_flows(there, here)
    if differing_fates:
        raise Violation(f"frames of these flows have other fates in namespaces: {differing_fates[:5]}")
    if not compared:
        raise Violation("no fate could be compared: were frames of any flow lost in both runs?")
    return f"{compared} fates compared, of {len(there.keys() & here.keys())} flows"


def _run(
    candidate: Candidate, description: Description, workload: str, mode: Mode, settings: Mapping[str, object],
    output: Path | None = None, scenario: Scenario | None = None,
) -> RunResult:  # fmt: skip
    """Run a workload, with its history checked. Raises Violation."""
    try:
        result = run(
            description, workload, protocol=candidate.name, mode=mode, settings=settings, check=True,
            fates=output is not None, output=output, scenario=scenario, timeout=TIMEOUT,
        )  # fmt: skip
    except (PermissionDeniedError, UnsupportedError):
        raise
    except TestbedError as error:
        raise Violation(f"--mode {mode}: {error}") from error
    if result.checks is not None and not result.checks.passed:
        first = {name: result.checks.checks[name].violations[0] for name in result.checks.failed}
        raise Violation(f"--mode {mode}: checks of the history have failed: {first}")
    return result


@contextmanager
def _namespaces() -> Iterator[None]:
    """Turn the machine's refusal of namespaces into a check that is not applicable."""
    try:
        yield
    except (PermissionDeniedError, UnsupportedError) as error:
        raise NotApplicableError(f"it needs real frames: {error}") from error
