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

_PAIR: Final = """
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
PLACES: Final = {1: [0, 0], 2: [0, 1]}
"""By number of node a's cores: those of its ranks."""
PROFILE: Final = {"name": "short turns", "like": "lam-via-2000", "timeslice": 1_000_000}
"""Turns of 1 ms, so that few exchanges meet many."""
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


async def polls(comm: Comm, node: Node) -> int:
    """Rank 0 polls for a message that comes after 5 ms; rank 1 computes for 5 ms and returns the time that it took."""
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


def beside(workload: Any, cores: int, mode: Mode, dilate: int | None = None) -> RunResult:
    """Run a workload over M-VIA between rank 0 of node a and node b, while rank 1 of node a computes."""
    described = Description.from_toml(_PAIR.format(cores=cores, ranks=PLACES[cores]))
    return testbed.run(
        described, workload, mode=mode, protocol="via", profile=PROFILE, firmware={"reliability": 1},
        dilate=dilate, timeout=60,
    )  # fmt: skip


def figures(mode: Mode, dilate: int | None = None) -> dict[str, dict[int, float]]:
    """Return, by number of cores, the one-way time of a ping-pong, and the time that COMB's host spends in a round with
    work; nanoseconds."""
    actual: dict[str, dict[int, float]] = {"pingpong": {}, "comb": {}}
    for cores in PLACES:
        actual["pingpong"][cores] = beside(pingpong, cores, mode, dilate).rows[0]["p50_ns"]
        last = beside(comb, cores, mode, dilate).rows[-1]
        actual["comb"][cores] = sum(last[key] for key in ("post_ns", "send_ns", "worked_ns", "wait_ns"))
    return actual
