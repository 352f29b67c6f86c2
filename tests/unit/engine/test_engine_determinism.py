"""The history of a program is identical in every process and for every hash seed of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from testbed.engine.waitables import CancelledError, Event
from testbed.engine.loop import VirtualClock
from testbed.engine.loop import Loop
from testbed.engine.queues import Queue
from testbed.engine.server import Server
from testbed.engine.sources import source

seed = int(sys.argv[1])
loop = Loop(VirtualClock())
queues = [Queue(f"queue {n}", 2) for n in range(3)]
bus = Server("bus", loop)
stop = Event("stop")

def record(*event):
    print(loop.now(), *event)

async def node(name):
    rng = source(seed, name)
    for n in range(20):
        await loop.sleep(rng.below(4))
        queue = rng.choice(queues)
        try:
            if rng.random() < 0.5:
                await loop.timeout(rng.below(10), queue.put(f"{name}.{n}"))
                record(name, "put")
            else:
                record(name, "got", await loop.timeout(rng.below(10), queue.get()))
        except TimeoutError:
            record(name, "gave up")
        await bus.use(rng.below(3))
        if n == 10:
            rng.choice(tasks).cancel()
    await stop

async def set_stop():
    await loop.sleep(500)
    stop.set()

names = {f"n{n}" for n in range(8)}
tasks = [loop.spawn(node(name), name) for name in sorted(names)]
for task in tasks:
    task.add_callback(lambda task: record(task.name, "cancelled" if task.cancelled else "ended"))
loop.spawn(set_stop(), "stop")
loop.run()
record("busy", bus.busy, bus.waited)
"""


def history(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(seed)],
        env=environment, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    return completed.stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_the_history_does_not_depend_on_the_hash_seed(seed: int) -> None:
    histories = {history(seed, hash_seed) for hash_seed in ("0", "1", "31337", "random")}
    assert len(histories) == 1
    lines = histories.pop().splitlines()
    assert len(lines) > 100
    for word in ("put", "got", "gave up", "cancelled", "ended"):
        assert any(word in line for line in lines)


def test_another_seed_gives_another_history() -> None:
    assert history(1, "0") != history(2, "0")
