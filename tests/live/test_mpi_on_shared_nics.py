"""mpi4py's blocking calls on shared NICs, in runs and in attached processes, and in dilated time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from protocols.emp.profile import EMP_2001
from testbed import Cluster, RunningCluster, share_nics
from testbed.runtime.nodes.node_run import StuckError
from tests.sim.mpi_script_files import with_testbed_import, write_script

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 30.0  # s
MPI_CALLS = """
import sys
from testbed import attach
from testbed.mpi import MPI

with attach():
    comm = MPI.COMM_WORLD
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert comm.sendrecv({"sender": comm.rank}, dest=right, source=left) == {"sender": left}
    for size in (0, 1, 1_400, 100_000):
        sent, received = bytearray([comm.rank]) * size, bytearray(size)
        requests = [comm.Irecv(received, left, 5), comm.Isend(sent, right, 5)]
        MPI.Request.Waitall(requests)
        assert received == bytearray([left]) * size
    half = comm.Split(comm.rank % 2, comm.rank)
    assert half.size == comm.size // 2
    half.Barrier()
    assert MPI.COMM_SELF.size == 1
    on_this_node = comm.Split_type(MPI.COMM_TYPE_SHARED).size
    print(comm.rank, comm.size, MPI.Get_processor_name(), on_this_node, MPI.Wtime() > 0)
"""


def start(cluster: RunningCluster, node: str, script: str) -> subprocess.Popen[str]:
    return cluster[node].popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    return output


def test_two_processes_of_each_node_are_ranks_of_one_world() -> None:
    with Cluster.star(2).up() as cluster, share_nics(cluster, functions=2):
        scripts = [start(cluster, node, MPI_CALLS) for node in ("n1", "n1", "n2", "n2")]
        ranks = sorted(finish(script) for script in scripts)
    assert ranks == [f"{rank} 4 n{rank // 2 + 1} 2 True\n" for rank in range(4)]


def test_processes_on_inline_nics_are_ranks_too() -> None:
    with Cluster.star(2).up() as cluster:
        scripts = [start(cluster, node, MPI_CALLS) for node in ("n1", "n2")]
        assert [finish(script) for script in scripts] == ["0 2 n1 1 True\n", "1 2 n2 1 True\n"]


def test_messages_are_received_after_their_sender_has_ended() -> None:
    sender_script = """
from testbed import attach
from testbed.mpi import MPI

with attach():
    MPI.COMM_WORLD.send("an early message", dest=0)
    print("sent", flush=True)
"""
    receiver_script = """
from testbed import attach
from testbed.mpi import MPI

with attach():
    print(MPI.COMM_WORLD.recv(source=1))
"""
    with Cluster.star(2).up() as cluster, share_nics(cluster):
        sender = start(cluster, "n2", sender_script)
        assert sender.stdout is not None
        assert sender.stdout.readline() == "sent\n"
        with pytest.raises(subprocess.TimeoutExpired):
            sender.wait(3)  # longer than a NIC's linger time
        assert finish(start(cluster, "n1", receiver_script)) == "an early message\n"
        assert finish(sender) == ""


def test_a_blocking_call_within_a_coroutine_names_the_alternative() -> None:
    script = """
from testbed import attach
from testbed.mpi import MPI

async def wrong(comm, node):
    MPI.COMM_WORLD.Barrier()

with attach() as nic:
    try:
        nic.run(wrong)
    except RuntimeError as error:
        print(error)
"""
    with Cluster.star(2).up() as cluster, share_nics(cluster):
        assert "await the communicator's methods" in finish(start(cluster, "n1", script))


@pytest.mark.parametrize("name", ["pingpong.py", "neighbours.py", "columns.py"])
def test_scripts_have_the_same_output_on_shared_and_inline_nics(tmp_path: Path, name: str) -> None:
    with Cluster.star(2).up() as cluster:
        logs = []
        for nics in ("inline", "shared"):
            folder = tmp_path / nics
            testbed.run(cluster, with_testbed_import(name, tmp_path), nics=nics, check=True, output=folder)  # type: ignore[arg-type]
            logs.append([(folder / "logs" / f"n{rank}.log").read_text().split() for rank in (1, 2)])
        inline, shared = logs
        if name == "pingpong.py":  # its table contains times
            inline, shared = [log[0][::2] for log in logs], [log[0][::2] for log in logs][::-1]
        assert inline == shared


@pytest.mark.alone
def test_a_script_measures_model_time_in_a_dilated_run(tmp_path: Path) -> None:
    """The script's ping-pong takes the simulation's time plus the lateness of frames. Eight round trips, so that a late
    read of the clock at the start matters little."""
    star, script = Cluster.star(2, rate="1gbit", delay="200ns"), with_testbed_import("pingpong.py", tmp_path)
    tables = []
    for mode, dilate in (("sim", None), ("dilated", 200)):
        folder = tmp_path / mode
        testbed.run(star, script, mode=mode, profile=EMP_2001, dilate=dilate, settings={"args": "8"}, output=folder)  # type: ignore[arg-type]
        lines = (folder / "logs" / "n1.log").read_text().splitlines()
        tables.append([(int(length), float(latency)) for length, latency in map(str.split, lines)])
    simulated, dilated = tables
    assert [length for length, _ in simulated] == [length for length, _ in dilated] == [1, 16, 256, 4096, 65536]
    for (_, exact), (length, slow) in zip(simulated, dilated, strict=True):
        assert 0.99 * exact <= slow <= 2 * exact + 100, length


def test_a_script_that_waits_forever_is_reported_with_its_line_on_shared_nics(tmp_path: Path) -> None:
    script = write_script(tmp_path, "def wait():", "    comm.Recv(bytearray(4), 1 - comm.rank, 3)", "wait()")
    with Cluster.star(2).up() as cluster, pytest.raises(StuckError) as raised:
        testbed.run(cluster, script, patience=2, nics="shared")
    sentences = raised.value.waiting["n1"]
    assert f"the program waits for a receive from rank 1, tag 3, 4 bytes, at {script}:4 in wait" in sentences
