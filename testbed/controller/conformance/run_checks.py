"""Checks by complete runs: restarts of NICs, a killed host process on a shared NIC, and parity of the simulation with real
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
from testbed.controller.conformance.parity import differing_flows, fates_by_flow, received_messages
from testbed.controller.conformance.restart_checks import restarted_peers
from testbed.controller.conformance.trials import Violation
from testbed.controller.runs.run_options import Mode
from testbed.controller.runs.runner import RunResult, run
from testbed.controller.shared_nics import share_nics
from testbed.errors import PermissionDeniedError, TestbedError, UnsupportedError
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log
from testbed.spec.fault_models import Crash, Fault, Reset, Restart
from testbed.spec.model import Description
from testbed.spec.scenario import Scenario

MAX_SIZE: Final = 4_000
"""Maximum size of messages in runs, bytes."""
MAX_OVERHEAD: Final = 100
"""Maximum number of bytes that workloads add to a message."""
TIMEOUT: Final = 60.0
"""Seconds after which a run or a script is stuck."""
FAULTS: Final[tuple[Fault, ...]] = (
    Restart(on="n2", at="150ms"),
    Reset(on="n3", at="250ms"),
    Crash(on="n2", at="350ms", for_="50ms"),
)


def restarts(candidate: Candidate) -> None:
    """Restart nodes during messages of every size, and then two of three nodes, one of them twice, while all exchange
    messages; in the simulation."""
    restarted_peers(candidate)
    settings = {"time": "600ms", "settle": "300ms", "largest": min(MAX_SIZE, candidate.max_message_size - MAX_OVERHEAD)}
    scenario = Scenario(name="restarts", faults=FAULTS)
    result = _run(candidate, Description.star(3, delay="20us"), "churn", "sim", settings, scenario=scenario)
    lives = {"n1": 1, "n2": 3, "n3": 2}
    rows = {str(row["node"]): row for row in result.rows}
    for name, row in rows.items():
        peer_lives = sum(lives[peer] for peer in lives if peer != name)
        # The last life of a restarted node begins after some lives of its peers have ended.
        expected = peer_lives if lives[name] == 1 else 2
        if row["from_lives"] < expected:
            raise Violation(
                f"{name} received messages from only {row['from_lives']} of {expected} lives of its peers: {row}"
            )


_HOLDER_SCRIPT: Final = """
import sys
from testbed import attach

async def receive(comm, node):
    print("attached", flush=True)
    await comm.recv(source=0, tag=1)
    await comm.recv(source=0, tag=2)

with attach(sys.argv[1]) as nic:
    nic.run(receive)
"""
_TALKER_SCRIPT: Final = """
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
        unreceived = await comm.isend("to a rank that is killed", 1, 4)
    await exchange(comm, peer, 0)
    print("talking", flush=True)
    for number in range(1, 20):
        await exchange(comm, peer, number)
        await node.sleep(20_000_000)
    if comm.rank == 0:
        await unreceived.wait()

try:
    with attach(sys.argv[1]) as nic:
        nic.run(talk)
except MPIError as error:  # the message to the dead rank may not have arrived, which is an error of its sender
    print(error)
"""
_SUCCESSOR_SCRIPT: Final = """
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
    """Kill a host process on a shared NIC while a peer sends to it and other nodes exchange messages; then start another
    one."""
    if candidate.protocol.split_driver is None:
        raise NotApplicableError("the protocol's NICs cannot be shared: it has no split driver")
    name = candidate.name
    with _namespaces(), Cluster.star(3).up() as cluster, share_nics(cluster, name), ExitStack() as processes:
        holder = processes.enter_context(_running_script(cluster, "n2", _HOLDER_SCRIPT, name))
        _expect(holder, "attached\n")
        talkers = [
            processes.enter_context(_running_script(cluster, node, _TALKER_SCRIPT, name)) for node in ("n1", "n3")
        ]
        for process in talkers:
            _expect(process, "talking\n")
        holder.kill()
        _expect_ends(talkers)
        _expect_ends(
            [processes.enter_context(_running_script(cluster, node, _SUCCESSOR_SCRIPT, name)) for node in ("n1", "n2")]
        )


@contextmanager
def _running_script(
    cluster: RunningCluster, node: str, script: str, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *arguments]
    process = cluster[node].popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _expect(process: subprocess.Popen[str], line: str) -> None:
    """Wait for a line of a program's output. Raises Violation if the program prints another line, ends, or prints nothing
    within TIMEOUT."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], TIMEOUT)[0]:
        raise Violation(f"a program on a shared NIC did not print {line.strip()!r} within {TIMEOUT:g} s")
    if process.stdout.readline() != line:
        raise Violation(f"a program on a shared NIC did not print {line.strip()!r}: {process.communicate()[1].strip()}")


def _expect_ends(processes: list[subprocess.Popen[str]]) -> None:
    """Wait until programs have ended. Raises Violation if a program fails or does not end within TIMEOUT."""
    for process in processes:
        try:
            _, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Violation(
                f"a program did not end within {TIMEOUT:g} s after another host process was killed"
            ) from None
        if process.returncode:
            raise Violation(f"a program failed because another host process was killed: {errors.strip()}")


def parity(candidate: Candidate) -> str:
    """Run random messages over lossy links in the simulation and on real frames; compare fates and messages."""
    settings = {"messages": 30, "largest": min(MAX_SIZE, candidate.max_message_size - MAX_OVERHEAD)}
    description = Description.star(3, rate="1gbit", delay="100us", loss="3%", seed=7)
    with tempfile.TemporaryDirectory(prefix="testbed-parity-") as directory, _namespaces():
        folders = {mode: Path(directory) / mode for mode in ("sim", "live")}
        _run(candidate, description, "random", "sim", settings, folders["sim"])
        _run(candidate, description, "random", "live", settings, folders["live"])
        for node in ("n1", "n2", "n3"):
            simulated, live = (received_messages(folder, node) for folder in folders.values())
            if simulated != live:
                differing = sorted(key for key in simulated | live if simulated.get(key) != live.get(key))
                raise Violation(
                    f"{node} received different messages in namespaces, by (peer, context, tag): {differing[:5]}"
                )
        simulated_fates, live_fates = (fates_by_flow(read_log(folder / FATES)) for folder in folders.values())
    differing_fates, compared = differing_flows(simulated_fates, live_fates)
    if differing_fates:
        raise Violation(f"frames of these flows have different fates in namespaces: {differing_fates[:5]}")
    if not compared:
        raise Violation("no fate could be compared, as no flow has logged fates in both runs")
    return f"{compared} fates compared, of {len(simulated_fates.keys() & live_fates.keys())} flows"


def _run(
    candidate: Candidate, description: Description, workload: str, mode: Mode, settings: Mapping[str, object],
    output: Path | None = None, scenario: Scenario | None = None,
) -> RunResult:  # fmt: skip
    """Run a workload and check its history. Raises Violation."""
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
        violations = {name: result.checks.checks[name].violations[0] for name in result.checks.failed}
        raise Violation(f"--mode {mode}: checks of the history failed: {violations}")
    return result


@contextmanager
def _namespaces() -> Iterator[None]:
    """Raise NotApplicableError if this machine or user cannot have namespaces."""
    try:
        yield
    except (PermissionDeniedError, UnsupportedError) as error:
        raise NotApplicableError(f"the check needs real frames: {error}") from error
