"""A pipeline whose stages each receive the next item while they work on one, and test their requests in between."""

# ruff: noqa: T201

import sys
import time

from mpi4py import MPI

ITEMS, LENGTH = 12, 5_000
pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds between two tests

comm = MPI.COMM_WORLD
first, last = comm.rank == 0, comm.rank == comm.size - 1


def work(data):
    """A piece of it, between two tests."""
    if pause:
        time.sleep(pause)
    return sum(data[:100])


outgoing, passed = [], 0
buffers = [bytearray(LENGTH), bytearray(LENGTH)]
receive = None if first else comm.Irecv(buffers[0], comm.rank - 1, 0)
while passed < ITEMS:
    if first:
        item = bytearray([passed]) * LENGTH
    else:
        while not receive.Test():
            work(buffers[passed % 2 - 1])
        item = bytearray(buffers[passed % 2])
        if passed + 1 < ITEMS:
            receive = comm.Irecv(buffers[(passed + 1) % 2], comm.rank - 1, passed + 1)
        assert item == bytearray([passed + comm.rank]) * LENGTH
    if not last:
        outgoing.append(comm.Isend(bytearray([item[0] + 1]) * LENGTH, comm.rank + 1, passed))
    while len(outgoing) > 3:
        index, done = MPI.Request.Testany(outgoing)
        if done:
            del outgoing[index]
        else:
            work(item)
    passed += 1
while not MPI.Request.Testall(outgoing):
    work(b"")
if last:
    print(f"{passed} items have come through")
