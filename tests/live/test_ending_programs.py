"""``down`` ends all processes in a cluster's nodes, also those that ignore signals: when it returns, none is left."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, CommandTimeoutError, RunningCluster
from testbed.cluster.garbage import collect
from testbed.cluster.records.state import Store
from testbed.errors import NotFoundError
from testbed.kernel import namespaces
from testbed.kernel.children import in_child
from testbed.kernel.processes import Identity, identity
from tests.live import runaway_programs
from tests.live.machine_state import Machine

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

GRACE = 0.1  # seconds between SIGTERM and SIGKILL


@pytest.fixture(params=["held", "lasting"])
def cluster(request: pytest.FixtureRequest, machine: Machine) -> RunningCluster:  # noqa: ARG001  taken before the cluster is up
    return Cluster.star(2).up("ending", keep=request.param == "lasting")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(runaway_programs.IGNORES_SIGTERM, id="ignores SIGTERM"),
        pytest.param(runaway_programs.NON_UTF_8_NAME, id="has a name that is not UTF-8"),
        pytest.param(runaway_programs.DOUBLE_FORKED, id="daemonized by a double fork"),
        pytest.param(runaway_programs.PROCESS_TREE, id="has a tree of seven processes"),
        pytest.param(runaway_programs.CHILD_IN_OTHER_NAMESPACE, id="has a child in another network namespace"),
        pytest.param(runaway_programs.IN_OTHER_NAMESPACE, id="is an orphan in another network namespace"),
    ],
)
def test_down_ends_an_uncooperative_program(cluster: RunningCluster, program: str) -> None:
    processes = runaway_programs.start_program(cluster["n1"], program)
    cluster.down(GRACE)
    assert runaway_programs.have_ended(processes)


@pytest.mark.parametrize("keep", [False, True], ids=["ends with its process", "lasting"])
def test_a_program_after_the_clusters_end_is_refused_with_that_reason(machine: Machine, keep: bool) -> None:  # noqa: ARG001
    with Cluster.star(2).up("ending", keep=keep) as cluster:
        node = cluster["n1"]
    for start in (node.run, node.popen):
        with pytest.raises(NotFoundError, match=r"^cluster ending has been taken down$"):
            start(["true"])


def test_a_fault_or_run_after_the_clusters_end_is_refused_with_that_reason(machine: Machine) -> None:  # noqa: ARG001
    with Cluster.star(2).up("ending") as cluster:
        fault = cluster.inject("n1", loss="5%")
    for change in (partial(cluster.inject, "n1", loss="1%"), partial(cluster.cut, "n1"), cluster.heal):
        with pytest.raises(NotFoundError, match=r"^no cluster is named ending; none is up$"):
            change()
    fault.lift()
    with pytest.raises(NotFoundError, match=r"^cluster ending has been taken down$"):
        testbed.run(cluster, "pingpong")
    assert not Store().names()


def test_the_error_of_a_program_that_hangs_has_its_output(machine: Machine) -> None:  # noqa: ARG001  taken before the cluster is up
    with Cluster.star(2).up("ending") as cluster:
        with pytest.raises(
            CommandTimeoutError, match=r"still running after 0\.5 s and has been killed:\nconnected$"
        ) as caught:
            cluster["n1"].run(["sh", "-c", "echo connected; exec sleep 60"], timeout=0.5)
        assert (caught.value.stdout, caught.value.stderr) == ("connected\n", "")
        with pytest.raises(CommandTimeoutError, match=r"killed:\nretrying$"):  # as in CommandError, errors come first
            cluster["n1"].run(["sh", "-c", "echo connected; echo retrying >&2; exec sleep 60"], timeout=0.5)


def test_a_program_that_hangs_ends_with_all_that_it_has_started(machine: Machine) -> None:  # noqa: ARG001  taken before the cluster is up
    started = "sleep 1001 & setsid sleep 1002 & timeout 1000 sleep 1003 & echo begun; wait"
    with Cluster.star(2).up("ending") as cluster:
        other = cluster["n1"].popen(["sleep", "1004"])
        cluster["n1"].run(["sh", "-c", "sleep 1005 >/dev/null 2>&1 &"])
        with pytest.raises(CommandTimeoutError, match="begun"):
            cluster["n1"].run(["sh", "-c", started], timeout=0.3)
        left = cluster["n1"].run(["pgrep", "-a", "--ns", str(other.pid), "--nslist", "net", "sleep"]).stdout
        assert sorted(line.split()[-1] for line in left.splitlines()) == ["1004", "1005"]
    other.wait()


def test_down_ends_a_program_that_holds_state_files_and_namespaces_open(machine: Machine) -> None:
    cluster = Cluster.star(2).up("ending", keep=True)
    directory = Store().directory("ending")
    files = [directory / "state.json", directory / "hosts", namespaces.NAMES / "ending.n1", namespaces.NAMES / "ending"]
    processes = runaway_programs.start_program(cluster["n2"], runaway_programs.HOLDS_FILES, *map(str, files))
    cluster.down(GRACE)
    assert runaway_programs.have_ended(processes)
    machine.assert_unchanged()


def test_down_succeeds_while_a_program_outside_holds_a_namespace_open(machine: Machine) -> None:
    cluster = Cluster.star(2).up("ending", keep=True)
    with Path(cluster["n1"].namespace).open():
        cluster.down(GRACE)
        assert not namespaces.names()
    machine.assert_unchanged()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(runaway_programs.CHANGES_PIDS, id="forks and exits continuously"),
        pytest.param(runaway_programs.FORKS_400, id="forks 400 children"),
    ],
)
def test_down_ends_a_forking_program(cluster: RunningCluster, program: str) -> None:
    processes = runaway_programs.start_program(cluster["n1"], program)
    cluster.down(GRACE)
    assert runaway_programs.have_ended(processes)


@pytest.mark.parametrize("end", ["down", "up", "gc"])
def test_a_foreign_process_whose_namespace_reuses_the_inode_of_a_lost_node_survives(machine: Machine, end: str) -> None:
    """The kernel reuses a free inode for the next namespace, so the owner must be read from the namespace itself."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", runaway_programs.FOREIGN_PROCESS], stdout=subprocess.PIPE, text=True
    ) as foreign:
        assert foreign.stdout is not None
        inode = int(foreign.stdout.readline().split()[1])
        cluster = Cluster.star(2).up("ending", keep=True)
        namespaces.remove_name("ending.n1")
        path = Store().directory("ending") / "state.json"
        phase = "building" if end == "gc" else "up"
        state = replace(
            cluster.state, inodes={**cluster.state.inodes, "n1": inode}, phase=phase, owner=_ended_process()
        )
        path.write_text(state.to_json())
        if end == "gc":
            collect(Store())
        else:
            if end == "up":
                cluster = Cluster.star(2).up("ending", keep=True)
            cluster.down(GRACE)
        assert foreign.poll() is None
        foreign.kill()
    machine.assert_unchanged()


def _ended_process() -> Identity:
    """Return the identity of a process that has ended."""
    return in_child(identity)


def test_down_lets_a_program_clean_up_on_sigterm(machine: Machine) -> None:
    cluster = Cluster.star(2).up("ending")
    process = cluster["n1"].popen(
        ["sh", "-c", "trap 'echo cleaned up; exit 0' TERM; echo ready; while :; do sleep 0.01; done"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        cluster.down(grace=10)
        assert process.stdout.readline() == "cleaned up\n"
    assert process.wait(10) == 0
    machine.assert_unchanged()
