"""A node process that is killed at any moment, while all nodes exchange messages: the run ends, and leaves nothing."""

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

TIMEOUT = 30.0  # s
SOON = 5.0  # s, on a busy machine
NODES = ["n1", "n2", "n3", "n4"]
PROTOCOLS = {"emp": (EMP, range(8)), "openmx": (OPENMX, range(8, 12))}
"""Protocols, and the seeds of their deaths."""
LONGEST = 0.3  # s from the first messages to the death
GOING = "messages go round"


async def talk(name: str, endpoint: Host, node: ProgramNode, rounds: int = 0) -> int:
    """Send to the next node and receive from the one before, `rounds` times (0: without end); return how many messages
    were right."""
    comm = Comm(PROTOCOLS[name][0].device(endpoint))
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    right = number = 0
    while not rounds or number < rounds:
        size = random.Random(number).choice([0, 4, 1_400, 40_000])
        buffer = bytearray(size)
        arrival = await comm.Irecv(buffer, before, 1)
        await comm.Send(number.to_bytes(4, "big") * (size // 4), after, 1)
        await arrival.Wait()
        right += buffer == number.to_bytes(4, "big") * (size // 4)
        number += 1
        if number == 10:
            print(f"{node.name}: {GOING}")  # noqa: T201  whoever kills waits for it
    return right


def _talks(run: Run, node: str) -> bool:
    return GOING in run.log(node)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_killed_node_process_ends_the_run_soon_is_named_and_leaves_nothing(name: str) -> None:
    protocol, seeds = PROTOCOLS[name]
    plug, ethertype, program = protocol.plug, protocol.ethertype, partial(talk, name)
    with Cluster.star(len(NODES)).up() as cluster:
        # What a run needs once and for all is there before the first death.
        with agents(cluster, plug, ethertype, dict.fromkeys(NODES, partial(program, rounds=20))) as run:
            run.wait(TIMEOUT)
        told_to = Store().directory(cluster.name)
        event_log.record(told_to, "deaths begin")
        standing = Machine()
        for seed in seeds:
            chance = random.Random(seed)
            victim, moment = chance.choice(NODES), chance.uniform(0, LONGEST)
            with agents(cluster, plug, ethertype, dict.fromkeys(NODES, program)) as run:
                pids = dict(run.pids)
                for node in NODES:
                    eventually(partial(_talks, run, node), f"{node} talks")
                killed = time.monotonic() + moment
                run.at(int(killed * 1e9) - run.start_time, partial(os.kill, pids[victim], signal.SIGKILL))
                with pytest.raises(NodeDiedError, match=f"^{victim}: its process was ended by signal 9:"):
                    run.wait(TIMEOUT)
            assert time.monotonic() - killed < SOON, f"seed {seed}"
            events = [event for event in event_log.read(told_to) if event.get("pid") == pids[victim]]
            assert [(event["event"], event["node"]) for event in events] == [("node process died", victim)]
            standing.assert_unchanged(f"left behind by the death of {victim}, seed {seed}", SOON)
        with agents(cluster, plug, ethertype, dict.fromkeys(NODES, partial(program, rounds=50))) as run:
            assert run.wait(TIMEOUT).results == dict.fromkeys(NODES, 50)
