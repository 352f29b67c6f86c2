"""Scripts in nodes attach to the NIC of their node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster, TestbedError, attach
from testbed.controller.runs.command_runs import run_commands
from tests.live.node_sockets import accepts_gso

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

GREET = """
from testbed import attach

async def greet(comm, node):
    if comm.rank == 0:
        for other in range(1, comm.size):
            await comm.send(f"hello {node.names[other]} from {node.name}", other, tag=7)
        node.row(sent=comm.size - 1)
        return "sent"
    return await comm.recv(source=0, tag=7)

with attach("emp") as nic:
    print(nic.run(greet))
"""
HOLD = """
import sys
from testbed import attach

with attach():
    print("attached", flush=True)
    sys.stdin.read()
"""


def output_in(cluster: RunningCluster, node: str, script: str) -> str:
    return cluster[node].run([sys.executable, "-c", script]).stdout


def test_scripts_on_all_nodes_communicate_over_their_nics(tmp_path: Path) -> None:
    path = tmp_path / "greet.py"
    path.write_text(GREET)
    command = f"{sys.executable} {path}"
    with Cluster.star(3, loss="10%", seed=3).up() as cluster:
        result = run_commands(cluster, [(f"n{number}", command) for number in (1, 2, 3)], output=tmp_path / "out")
    assert [command.code for command in result.commands] == [0, 0, 0]
    row, sent = (tmp_path / "out" / "logs" / "n1.log").read_text().splitlines()
    assert (json.loads(row)["node"], json.loads(row)["sent"], sent) == ("n1", 2, "sent")
    assert [(tmp_path / "out" / "logs" / f"{node}.log").read_text() for node in ("n2", "n3")] == [
        "hello n2 from n1\n",
        "hello n3 from n1\n",
    ]


def test_a_nic_has_one_process_and_its_offloads_are_restored_when_that_ends() -> None:
    with Cluster.star(2).up() as cluster:
        with cluster["n1"].popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "attached\n"
            assert accepts_gso(cluster, "n1") is False
            with pytest.raises(TestbedError, match="another process is attached to the NIC eth0 of node n1"):
                output_in(cluster, "n1", HOLD)
            holder.communicate("")
        assert accepts_gso(cluster, "n1") is True
        assert output_in(cluster, "n1", "from testbed import attach\nwith attach(): print('again')") == "again\n"


def test_an_error_in_the_script_is_reported_with_its_line() -> None:
    script = """
from testbed import attach

async def broken(comm, node):
    await comm.send("into nothing", 9, tag=7)

with attach() as nic:
    nic.run(broken)
"""
    with Cluster.star(2).up() as cluster, pytest.raises(TestbedError, match=r"line 5, in broken(.|\n)*9"):
        output_in(cluster, "n1", script)


def test_a_missing_nic_is_reported() -> None:
    with pytest.raises(TestbedError, match="this process does not run in a node of a cluster"), attach():
        pass
    with Cluster.star(2).up() as cluster:
        with pytest.raises(TestbedError, match="protocol tcp runs in the kernel, not on a NIC"):
            output_in(cluster, "n1", "from testbed import attach\nwith attach('tcp'): pass")
        with pytest.raises(TestbedError, match="no protocol is called 'epm'"):
            output_in(cluster, "n1", "from testbed import attach\nwith attach('epm'): pass")
