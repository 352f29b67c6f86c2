"""Scripts that attach to shared NICs: several per node, restarted agents, clean-up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster, share_nics
from testbed.cluster.records.state import Store
from testbed.cluster.records.status import status
from testbed.errors import ConflictError, UnsupportedError
from testbed.runtime import event_log
from tests.live.machine_state import eventually
from tests.live.node_sockets import accepts_gso
from tests.live.testbed_command import TESTBED

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 30.0  # s
PROTOCOLS = ("emp", "am2")
RING = """
from testbed import attach

async def send_around(comm, node):
    sent = node.spawn(comm.send(f"from {node.name}", (comm.rank + 1) % comm.size, tag=3), "send")
    received = await comm.recv(source=(comm.rank - 1) % comm.size, tag=3)
    await sent
    return received

with attach() as nic:
    print(nic.comm.rank, nic.run(send_around))
"""
HOLD = """
import sys
from testbed import attach

with attach(function=0) as nic:
    print("attached", flush=True)
    sys.stdin.read()
"""
TRANSFER = """
from testbed import attach

async def transfer(comm, node):
    if comm.rank == 0:
        return await comm.recv(source=2)
    await comm.send("still here", 0)

with attach(function=0) as nic:
    print(nic.run(transfer))
"""


def start(cluster: RunningCluster, node: str, script: str, protocol: str = "emp") -> subprocess.Popen[str]:
    script_with_protocol = script.replace("with attach(", f"with attach({protocol!r}, ")
    return cluster[node].popen(
        [sys.executable, "-c", script_with_protocol],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    return output


def agent_of(cluster: RunningCluster, node: str) -> int:
    """Return the pid of a node's agent."""
    namespace = os.stat(cluster[node].namespace).st_ino
    (agent,) = [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if _read(pid, "comm") == f"nic {node}" and _namespace_of(pid) == namespace
    ]
    return agent


def hosts_of(cluster: RunningCluster, node: str) -> Mapping[int, int]:
    """Return the processes attached to a node's NIC, by function."""
    (agent,) = [status_node.agent for status_node in status(cluster.state).nodes if status_node.name == node]
    return agent.hosts if agent is not None else {}


def _namespace_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended meanwhile
        return 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_scripts_per_node_have_a_rank_each(protocol: str) -> None:
    with Cluster.star(2).up() as cluster:
        with share_nics(cluster, protocol, functions=2):
            assert not accepts_gso(cluster, "n1")
            scripts = [start(cluster, node, RING, protocol) for node in ("n1", "n2") for _ in range(2)]
            assert sorted(map(finish, scripts)) == [
                "0 from n2.1\n", "1 from n1.0\n", "2 from n1.1\n", "3 from n2.0\n",
            ]  # fmt: skip
            again = [start(cluster, node, RING, protocol) for node in ("n1", "n2") for _ in range(2)]
            assert len({finish(script) for script in again}) == 4
        assert accepts_gso(cluster, "n1")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_function_in_use_is_rejected_until_its_process_is_killed(protocol: str) -> None:
    with Cluster.star(2).up() as cluster, share_nics(cluster, protocol, functions=2):
        holder = start(cluster, "n1", HOLD, protocol)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "attached\n"
        rejected = start(cluster, "n1", TRANSFER, protocol)
        assert "function 0 of this NIC already has a host process" in rejected.communicate(timeout=TIMEOUT)[1]
        holder.kill()
        holder.communicate()
        scripts = [start(cluster, node, TRANSFER, protocol) for node in ("n1", "n2")]
        assert [finish(script) for script in scripts] == ["still here\n", "None\n"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_agent_is_restarted_and_its_scripts_are_notified(protocol: str) -> None:
    with Cluster.star(2).up() as cluster, share_nics(cluster, protocol, functions=2):
        holder = start(cluster, "n1", TRANSFER, protocol)  # waits for its peer
        peer_holder = start(cluster, "n2", HOLD, protocol)
        assert peer_holder.stdout is not None
        assert peer_holder.stdout.readline() == "attached\n"
        eventually(lambda: bool(hosts_of(cluster, "n1")), "the script has attached", TIMEOUT)
        first = agent_of(cluster, "n1")
        os.kill(first, signal.SIGKILL)
        assert "agent of the NIC has ended" in holder.communicate(timeout=TIMEOUT)[1]
        directory = Store().directory(cluster.name)
        deadline = time.monotonic() + TIMEOUT
        while "NIC agent restarted" not in [event["event"] for event in event_log.read(directory)]:
            assert time.monotonic() < deadline, "the agent was not restarted"
            time.sleep(0.01)  # between two samples
        assert agent_of(cluster, "n1") != first
        peer_holder.kill()
        peer_holder.communicate()
        scripts = [start(cluster, node, TRANSFER, protocol) for node in ("n1", "n2")]
        assert [finish(script) for script in scripts] == ["still here\n", "None\n"]


def test_nics_that_cannot_be_shared_are_rejected() -> None:
    with Cluster.star(2).up() as cluster:
        with pytest.raises(UnsupportedError, match="tcp"), share_nics(cluster, "tcp"):
            pass
        with pytest.raises(UnsupportedError, match="1 to 64"), share_nics(cluster, functions=65):
            pass
        with pytest.raises(UnsupportedError, match="1 to 16"), share_nics(cluster, "am2", functions=17):
            pass
        with share_nics(cluster):
            with pytest.raises(ConflictError, match="are shared already, by process"), share_nics(cluster):
                pass
            assert agent_of(cluster, "n1")


def test_the_nics_command_shares_nics_until_it_is_interrupted() -> None:
    with Cluster.star(2).up() as cluster:
        command = [TESTBED, "nics", "--name", cluster.name, "--functions", "2"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert "are shared" in process.stderr.readline()
                scripts = [start(cluster, node, TRANSFER) for node in ("n1", "n2")]
                assert [finish(script) for script in scripts] == ["still here\n", "None\n"]
            finally:
                process.send_signal(signal.SIGINT)
        assert process.returncode == 0
        assert accepts_gso(cluster, "n1")
