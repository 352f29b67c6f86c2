"""A run of the simulation frees its memory, so that runs in one process do not accumulate memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A separate process, as memory that earlier tests have left could hide this run's.
_PROGRAM = """
import gc, sys, weakref
import testbed

class Cycle:  # only the garbage collector frees it
    def __init__(self, size):
        self.me = self
        self.data = bytes([1]) * size

cycles = []

async def program(comm, node):
    cycles.append(weakref.ref(Cycle(int(sys.argv[1]) << 20)))

gc.disable()
testbed.run(testbed.Cluster.star(2), program, mode="sim")
print([cycle() is None for cycle in cycles])
"""


@pytest.mark.parametrize(("mebibytes", "is_freed"), [(100, True), (1, False)])
def test_garbage_of_a_run_is_collected_at_its_end_above_a_threshold(mebibytes: int, is_freed: bool) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(mebibytes)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == str([is_freed, is_freed])
