"""Node processes killed at random times during an exchange of messages: the run ends and leaves nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import pytest

from protocols.core.firmware import Host
from protocols.emp.protocol import PROTOCOL as EMP
from protocols.mpi.comm import Comm
from protocols.openmx.protocol import PROTOCOL as OPENMX
from testbed import Cluster
from testbed.cluster.records.state import Store
from testbed.controller.runs.agents import agents
from testbed.runtime import event_log
from testbed.runtime.nodes.node_run import NodeDiedError, Run
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live.machine_state import Machine, eventually

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 30.0  # seconds
MAX_DELAY = 5.0  # seconds from a kill to the end of the run, on a busy machine
NODES = ["n1", "n2", "n3", "n4"]
PROTOCOLS = {"emp": (EMP, range(8)), "openmx": (OPENMX, range(8, 12))}
"""Protocols and the seeds of their kills."""
MAX_KILL_TIME = 0.3  # seconds from the first messages to the kill
STARTED = "messages are exchanged"


async def exchange(name: str, endpoint: Host, node: ProgramNode, rounds: int = 0) -> int:
    """Send to the next node and receive from the one before, `rounds` times (0: forever); return the number of intact
    messages."""
    comm = Comm(PROTOCOLS[name][0].device(endpoint))
    successor, predecessor = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    intact = number = 0
    while not rounds or number < rounds:
        size = random.Random(number).choice([0, 4, 1_400, 40_000])
        buffer = bytearray(size)
        arrival = await comm.Irecv(buffer, predecessor, 1)
        await comm.Send(number.to_bytes(4, "big") * (size // 4), successor, 1)
        await arrival.Wait()
        intact += buffer == number.to_bytes(4, "big") * (size // 4)
        number += 1
        if number == 10:
            print(f"{node.name}: {STARTED}")  # noqa: T201  the test waits for it
    return intact


def _has_started(run: Run, node: str) -> bool:
    return STARTED in run.log(node)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_killed_node_process_is_reported_ends_the_run_and_leaves_nothing(name: str) -> None:
    protocol, seeds = PROTOCOLS[name]
    plug, ethertype, program = protocol.plug, protocol.ethertype, partial(exchange, name)
    with Cluster.star(len(NODES)).up() as cluster:
        # The first run sets up what later runs keep.
        with agents(cluster, plug, ethertype, dict.fromkeys(NODES, partial(program, rounds=20))) as run:
            run.wait(TIMEOUT)
        directory = Store().directory(cluster.name)
        event_log.record(directory, "kills begin")
        before = Machine()
        for seed in seeds:
            rng = random.Random(seed)
            victim, delay = rng.choice(NODES), rng.uniform(0, MAX_KILL_TIME)
            with agents(cluster, plug, ethertype, dict.fromkeys(NODES, program)) as run:
                pids = dict(run.pids)
                for node in NODES:
                    eventually(partial(_has_started, run, node), f"{node} exchanges messages")
                killed = time.monotonic() + delay
                run.at(int(killed * 1e9) - run.start_time, partial(os.kill, pids[victim], signal.SIGKILL))
                with pytest.raises(NodeDiedError, match=f"^{victim}: its process was ended by signal 9:"):
                    run.wait(TIMEOUT)
            assert time.monotonic() - killed < MAX_DELAY, f"seed {seed}"
            events = [event for event in event_log.read(directory) if event.get("pid") == pids[victim]]
            assert [(event["event"], event["node"]) for event in events] == [("node process died", victim)]
            before.assert_unchanged(f"left behind after the kill of {victim}, seed {seed}", MAX_DELAY)
        with agents(cluster, plug, ethertype, dict.fromkeys(NODES, partial(program, rounds=50))) as run:
            assert run.wait(TIMEOUT).results == dict.fromkeys(NODES, 50)
