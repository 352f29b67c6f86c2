"""A ping-pong between two ranks by message size, with mpi4py's API: one script for Open MPI and for testbed.

    mpirun --host n1,n2 --bind-to none python3 round_trips.py COUNT SIZE ...
    testbed run star-2 ./round_trips.py --set args='COUNT SIZE ...'

Rank 0 prints a JSON object per size: half the round-trip times, with the keys of testbed's `pingpong` rows, and the
processor time of its process per message. Above 8 KiB the count is a tenth, as in OSU's benchmarks. The next receive is
posted before the message that it replies to is sent: NICs that drop unexpected messages would need a retransmission.
"""

# ruff: noqa: T201

import json
import os
import sys
import time

if "OMPI_COMM_WORLD_RANK" in os.environ:
    from mpi4py import MPI
else:
    from testbed.mpi import MPI

WARM_UP = 10
LARGE = 8192
QUANTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99}


def trips(size: int, count: int) -> dict[str, int] | None:
    """Measure `count` round trips of `size` bytes. Returns rank 0's figures, None on rank 1."""
    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    peer, message, buffers = 1 - rank, os.urandom(size), (bytearray(size), bytearray(size))
    arrival = comm.Irecv([buffers[0], MPI.BYTE], source=peer, tag=1)
    comm.Barrier()
    half_trips, cpu_time = [], 0
    for number in range(-WARM_UP, count):
        if number == 0:
            cpu_time = time.process_time_ns()
        start = MPI.Wtime()
        if rank == 0:
            comm.Send([message, MPI.BYTE], dest=1, tag=1)
        arrival.Wait()
        half_trips.append(round((MPI.Wtime() - start) / 2 * 1e9))
        current, following = buffers[number % 2], buffers[(number + 1) % 2]
        if number + 1 < count:
            arrival = comm.Irecv([following, MPI.BYTE], source=peer, tag=1)
        if rank == 1:
            comm.Send([current, MPI.BYTE], dest=0, tag=1)
        else:
            assert current == message, "the returned message differs from the sent one"
    cpu_time = time.process_time_ns() - cpu_time
    if rank:
        return None
    ordered = sorted(half_trips[WARM_UP:])
    quantiles = {name: ordered[min(count - 1, int(share * count))] for name, share in QUANTILES.items()}
    return {"size_bytes": size, "count": count, "min_ns": ordered[0], **quantiles, "cpu_ns": cpu_time // (2 * count)}


for text in sys.argv[2:]:
    max_count = int(sys.argv[1])
    figures = trips(int(text), max_count if int(text) <= LARGE else max(1, max_count // 10))
    if figures is not None:
        print(json.dumps(figures), flush=True)
MPI.COMM_WORLD.Barrier()
