"""COMB and ping-pong next to a busy program, on the same core and on another one."""

from __future__ import annotations

from typing import Any, Final

import testbed
from testbed import RunResult
from testbed.controller.runs.run_options import Mode
from testbed.spec.model import Description
from testbed.workloads.comb import Comb
from testbed.workloads.form import Comm, Node
from testbed.workloads.pingpong import PingPong

_DESCRIPTION: Final = """
name = "busy"
[defaults.link]
rate = "100mbit"
delay = "2us"
minimum_frame = "60"
overhead = 24
[[node]]
name = "a"
cores = {cores}
ranks = {ranks}
[[node]]
name = "b"
[[link]]
ends = ["a", "b"]
"""
CORES_OF_RANKS: Final = {1: [0, 0], 2: [0, 1]}
"""Cores of node a's ranks, by its number of cores."""
SHORT_TIMESLICES: Final = {"name": "short timeslices", "like": "lam-via-2000", "timeslice": 1_000_000}
"""Timeslices of 1 ms, so that few exchanges span many of them."""
BUSY: Final = 60_000_000
"""Nanoseconds for which rank 1 computes: longer than the exchanges take."""


async def pingpong(comm: Comm, node: Node) -> None:
    if comm.rank == 1:
        await node.compute(BUSY)
    else:
        await PingPong(sizes=(4,), count=5, peer=2).rank(comm, node)


async def comb(comm: Comm, node: Node) -> None:
    if comm.rank == 1:
        await node.compute(BUSY)
    else:
        await Comb(size=4096, batch=2, work=1_000_000, steps=2, rounds=2, peer=2).rank(comm, node)


async def poll(comm: Comm, node: Node) -> int:
    """Rank 0 polls for a message that comes after 5 ms; rank 1 computes for 5 ms and returns the elapsed time."""
    start = node.now()
    if comm.rank == 0:
        request = await comm.irecv(source=2)
        while not (await request.test())[0]:
            pass
    elif comm.rank == 1:
        await node.compute(5_000_000)
    else:
        await node.sleep(5_000_000)
        await comm.send("late", 0)
    return node.now() - start


def run_next_to_busy_rank(workload: Any, cores: int, mode: Mode, dilate: int | None = None) -> RunResult:
    """Run a workload over M-VIA between rank 0 of node a and node b, while rank 1 of node a computes."""
    description = Description.from_toml(_DESCRIPTION.format(cores=cores, ranks=CORES_OF_RANKS[cores]))
    return testbed.run(
        description, workload, mode=mode, protocol="via", profile=SHORT_TIMESLICES, firmware={"reliability": 1},
        dilate=dilate, timeout=60,
    )  # fmt: skip


def measure(mode: Mode, dilate: int | None = None) -> dict[str, dict[int, float]]:
    """Return the one-way time of a ping-pong and the host's time in a COMB round with work, ns, by number of cores."""
    times: dict[str, dict[int, float]] = {"pingpong": {}, "comb": {}}
    for cores in CORES_OF_RANKS:
        times["pingpong"][cores] = run_next_to_busy_rank(pingpong, cores, mode, dilate).rows[0]["p50_ns"]
        last = run_next_to_busy_rank(comb, cores, mode, dilate).rows[-1]
        times["comb"][cores] = sum(last[key] for key in ("post_ns", "send_ns", "worked_ns", "wait_ns"))
    return times
