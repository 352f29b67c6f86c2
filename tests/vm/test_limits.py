"""CPU shares and memory limits: the cgroups' settings, their effect on programs, and their removal."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from testbed import CommandError, RunningCluster
from testbed.cluster.access import node_programs
from testbed.cluster.garbage import Finding, collect
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.plan.host_requirements import check_supported
from testbed.cluster.records.state import Store
from testbed.cluster.startup import bring_up
from testbed.errors import UnsupportedError
from testbed.kernel import cgroups, processes
from testbed.kernel.children import in_child
from testbed.spec.layout import Layout
from testbed.spec.model import Description, Node
from testbed.spec.resolver import resolve
from tests.live.machine_state import Machine, eventually

pytestmark = [
    pytest.mark.requires("root", "cgroup-cpu", "cgroup-memory"),
    pytest.mark.usefixtures("machine"),
]

NAME = "limited"
MEMORY = 24 << 20  # room for a small program, and quickly full


def limited_layout(**limits: object) -> Layout:
    """Return a layout of n1 with these limits and n2 without limits."""
    nodes = [Node(name="n1", **limits), Node(name="n2")]  # type: ignore[arg-type]
    return resolve(Description(name=NAME, nodes=nodes))


def up(layout: Layout) -> ApplyResult:
    return bring_up(Store(), layout, name=NAME, origin="test", lasting=True)


def running(**limits: object) -> RunningCluster:
    return RunningCluster(Store(), up(limited_layout(**limits)).state)


def setting(name: str, node: str = "n1") -> str:
    return (cgroups.group(NAME, node) / name).read_text().strip()


def group_of(pid: int | str = "self") -> str:
    """Return the name of a process's cgroup."""
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1].rpartition("/")[2]


# Encoding, and effect


def test_a_program_is_in_its_nodes_group_from_its_first_instruction() -> None:
    with running(cpu_share=0.25, memory=MEMORY) as cluster:
        assert (setting("cpu.max"), setting("memory.max")) == ("25000 100000", str(MEMORY))
        output = cluster["n1"].run(["cat", "/proc/self/cgroup"]).stdout.splitlines()
        assert output[-1] == f"0::/{cgroups.PREFIX}{NAME}.n1"
        assert cgroups.PREFIX not in cluster["n2"].run(["cat", "/proc/self/cgroup"]).stdout
        assert group_of() == group_of(os.getppid())  # the starting process keeps its group


def test_a_program_can_read_its_limits_in_sys_fs_cgroup() -> None:
    with running(cpu_share=0.25) as cluster:
        limit = cluster["n1"].run(["cat", str(cgroups.group(NAME, "n1") / "cpu.max")]).stdout
        assert limit == "25000 100000\n"


def test_a_process_that_executes_a_program_in_a_node_enters_its_group() -> None:
    """The commands exec and shell execute programs this way."""
    with running(memory=MEMORY) as cluster:
        node_program = node_programs.node_context(Store(), cluster.state, "n1")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.dup2(writer, 1)
                node_programs.become(node_program, ["cat", "/proc/self/cgroup"])
            finally:
                os._exit(1)
        os.close(writer)
        with open(reader) as output:
            assert output.read().rstrip().endswith(f"/{cgroups.PREFIX}{NAME}.n1")
        assert os.waitpid(child, 0)[1] == 0


def test_a_program_over_its_memory_limit_is_killed_and_other_nodes_programs_are_not() -> None:
    """tail keeps the last line of its input in memory, and /dev/zero has no end of line."""
    with running(memory=MEMORY) as cluster:
        neighbour = cluster["n2"].popen(["sleep", "1000"])
        with pytest.raises(CommandError) as caught:
            cluster["n1"].run(["tail", "/dev/zero"])
        assert caught.value.returncode == -9
        events = dict(line.split() for line in setting("memory.events").splitlines())
        assert int(events["oom_kill"]) == 1
        assert cluster["n1"].run(["echo", "still here"]).stdout == "still here\n"
        assert neighbour.poll() is None
    neighbour.wait()


def test_a_node_with_a_memory_limit_has_no_swap() -> None:
    with running(memory=MEMORY):
        if (cgroups.group(NAME, "n1") / "memory.swap.max").exists():
            assert setting("memory.swap.max") == "0"


def test_the_busy_programs_of_a_node_share_its_cpu_limit() -> None:
    """Two loops that would take two CPUs get a quarter of one.

    The bounds are wide: the kernel gives each CPU 5 ms at a time, so that a group overdraws its quota of 25 ms by up to
    one slice per CPU in a period; and on a busy machine, above all an emulated one, the clock advances while a loop is
    not scheduled.
    """
    seconds = 4.0
    with running(cpu_share=0.25) as cluster:
        hogs = [cluster["n1"].popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
        eventually(lambda: _used() > 0.1, "the loops run", deadline=60)
        start_time, before = time.monotonic(), _used()
        time.sleep(seconds)  # the measurement itself
        share = (_used() - before) / (time.monotonic() - start_time)
        throttled = int(dict(line.split() for line in setting("cpu.stat").splitlines())["nr_throttled"])
    for hog in hogs:
        hog.wait()
    assert 0.08 <= share <= 0.5, share
    assert throttled > 0


def _used() -> float:
    """The CPU time of n1's programs so far, in seconds."""
    return int(dict(line.split() for line in setting("cpu.stat").splitlines())["usage_usec"]) / 1e6


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.01, "1000 100000"), (0.004, "4000 1000000"), (1 / 3, "33333 100000"), (64, "6400000 100000")],
)
def test_small_odd_and_large_shares_are_set(share: float, expected: str) -> None:
    with running(cpu_share=share):
        assert setting("cpu.max") == expected
        assert up(limited_layout(cpu_share=share)).operations == ()


# Convergence


def test_a_changed_limit_applies_to_running_programs_and_changes_nothing_else() -> None:
    with running(cpu_share=0.5, memory="64MiB") as cluster:
        program = cluster["n1"].popen(["sleep", "1000"])
        assert [str(step) for step in up(limited_layout(cpu_share=0.25, memory=MEMORY)).operations] == [
            f"limit n1 to 0.25 cores and {MEMORY} bytes of memory"
        ]
        assert (setting("cpu.max"), setting("memory.max")) == ("25000 100000", str(MEMORY))
        assert len(up(limited_layout()).operations) == 1
        assert (setting("cpu.max"), setting("memory.max")) == ("max 100000", "max")
        assert up(limited_layout()).operations == ()
        assert program.poll() is None
    program.wait()


def test_a_first_limit_applies_to_the_nodes_running_programs() -> None:
    with running() as cluster:
        program = cluster["n1"].popen(["sh", "-c", "sleep 1000 & wait"])
        other_process = cluster["n2"].popen(["sleep", "1000"])
        node = os.stat(cluster["n1"].namespace).st_ino
        eventually(lambda: len(processes.inside([node])) == 2, "the shell has started its own", deadline=60)
        up(limited_layout(memory=MEMORY))
        pids_inside = processes.inside([node])
        assert {group_of(pid) for pid in pids_inside} == {f"{cgroups.PREFIX}{NAME}.n1"}
        assert group_of(other_process.pid) == group_of()
    program.wait()
    other_process.wait()


def test_a_group_that_was_changed_or_removed_is_restored() -> None:
    limits = {"cpu_share": 0.5, "memory": MEMORY + 100}  # the kernel rounds to pages
    with running(**limits) as cluster:
        assert up(limited_layout(**limits)).operations == ()
        (cgroups.group(NAME, "n1") / "cpu.max").write_text("max")
        assert len(up(limited_layout(**limits)).operations) == 1
        cgroups.group(NAME, "n1").rmdir()
        assert len(up(limited_layout(**limits)).operations) == 1
        assert (setting("cpu.max"), setting("memory.max")) == ("50000 100000", str(MEMORY))
        cluster["n1"].run(["true"])


# Removal of groups


def test_down_ends_processes_that_left_their_node_and_removes_the_group() -> None:
    """The program has left for the machine's network and mount namespaces and has made a subgroup."""
    subgroup = cgroups.group(NAME, "n1") / "inner"
    escape = f"mkdir {subgroup} && echo $$ >{subgroup}/cgroup.procs && exec nsenter --target=1 --mount --net sleep 1000"
    with running(memory=MEMORY) as cluster:
        program = cluster["n1"].popen(["sh", "-c", escape])
        eventually(lambda: _network_of(program.pid) == _network_of(1), "it has left", deadline=60)
        assert group_of(program.pid) == "inner"
    assert program.wait(timeout=30) == -9


def _network_of(pid: int) -> int:
    return processes.network_namespace_of(pid)


def test_a_removed_nodes_group_is_removed() -> None:
    with running(memory=MEMORY) as cluster:
        program = cluster["n1"].popen(["sleep", "1000"])
        up(resolve(Description(name=NAME, nodes=[Node(name="n2", memory=MEMORY)])))
        assert program.wait(timeout=30) < 0
        assert [path.name for path in cgroups.groups_of(NAME)] == [f"{cgroups.PREFIX}{NAME}.n2"]


def test_gc_removes_groups_whose_cluster_has_lost_its_state(machine: Machine) -> None:
    def bring_up_and_exit() -> None:
        running(memory=MEMORY)["n1"].popen(["sleep", "1000"])

    in_child(bring_up_and_exit)
    shutil.rmtree(Store().root)
    assert Finding(f"cgroup {cgroups.PREFIX}{NAME}.n1", True, "its cluster has no state") in collect(Store())
    machine.assert_unchanged(deadline=60)


def test_gc_leaves_groups_of_running_and_locked_clusters_and_groups_with_processes() -> None:
    with running(memory=MEMORY):
        assert collect(Store()) == []
        assert len(cgroups.groups_of(NAME)) == 1
    group = cgroups.group("elsewhere", "n1")
    group.mkdir()
    try:
        with Store().locked("elsewhere", timeout=0):
            assert collect(Store()) == [Finding("cluster elsewhere", False, "another testbed command is changing it")]
        with subprocess.Popen(["sleep", "1000"]) as program:
            cgroups.add_processes(group, [program.pid])
            reason = "its cluster has no state, but processes run in it"
            assert collect(Store()) == [Finding(f"cgroup {group.name}", False, reason)]
            program.kill()
        assert collect(Store()) == [Finding(f"cgroup {group.name}", True, "its cluster has no state")]
    finally:
        cgroups.end(group)


# Unsupported limits


def rejection_reason(layout: Layout) -> str:
    with pytest.raises(UnsupportedError) as caught:
        check_supported(layout)
    return str(caught.value).splitlines()[1]


def test_limits_of_an_ordinary_user_are_an_error_that_asks_for_root() -> None:
    def as_user() -> str:
        os.setgroups([])
        os.setresgid(65533, 65533, 65533)
        os.setresuid(65533, 65533, 65533)
        return rejection_reason(limited_layout(memory=MEMORY))

    assert in_child(as_user) == (
        "  node n1: its CPU share or memory limit cannot be kept: "
        "cgroup version 2 on this machine (/sys/fs/cgroup) is not writable for this user: run as root"
    )


def test_a_share_below_the_kernels_minimum_is_rejected() -> None:
    assert rejection_reason(limited_layout(cpu_share=0.0005)).endswith(
        "the smallest CPU share that the kernel can enforce is 0.001 cores"
    )


@pytest.mark.requires("vm")  # it changes a setting of the machine
def test_the_error_of_disabled_controllers_has_a_command_that_enables_them() -> None:
    control = Path("/sys/fs/cgroup/cgroup.subtree_control")
    controllers_before = control.read_text()
    control.write_text("-cpu -memory")
    try:
        reason = rejection_reason(limited_layout(cpu_share=0.5, memory=MEMORY))
        assert (
            "(/sys/fs/cgroup) enables no cpu and no memory controller for groups: have root run 'echo +cpu +memory >"
            in reason
        )
        assert control.read_text().split() == []
        subprocess.run(["sh", "-c", reason.split("'")[1]], check=True)
        assert control.read_text() == controllers_before
        with running(cpu_share=0.5, memory=MEMORY):
            assert setting("cpu.max") == "50000 100000"
    finally:
        control.write_text("+cpu +memory")
