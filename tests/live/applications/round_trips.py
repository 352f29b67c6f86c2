"""A ping-pong by message size, in mpi4py's names: Open MPI's and testbed's ranks run it as it stands.

    mpirun --host n1,n2 python3 round_trips.py COUNT SIZE ...
    testbed run star-2 ./round_trips.py --set args='COUNT SIZE ...'

Rank 0 prints a JSON object per size with half the round trips, as testbed's `pingpong` has it in its rows.
"""

# ruff: noqa: T201

import json
import os
import sys

if "OMPI_COMM_WORLD_RANK" in os.environ:
    from mpi4py import MPI
else:
    from testbed.mpi import MPI

WARM_UP = 10


def quantile(ordered: list[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(count: int, sizes: list[int]) -> None:
    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    for size in sizes:
        message, answer = bytearray(os.urandom(size)), bytearray(size)
        comm.Barrier()
        halves = []
        for _ in range(WARM_UP + count):
            begun = MPI.Wtime()
            if rank == 0:
                arrival = comm.Irecv([answer, MPI.BYTE], source=1, tag=1)
                comm.Send([message, MPI.BYTE], dest=1, tag=1)
                arrival.Wait()
                halves.append(round((MPI.Wtime() - begun) / 2 * 1e9))
            elif rank == 1:
                comm.Recv([answer, MPI.BYTE], source=0, tag=1)
                comm.Send([answer, MPI.BYTE], dest=0, tag=1)
        if rank == 0:
            assert answer == message, "what came back is not what was sent"
            ordered = sorted(halves[WARM_UP:])
            quantiles = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99}
            figures = {name: quantile(ordered, share) for name, share in quantiles.items()}
            print(json.dumps({"size_bytes": size, "count": count, "min_ns": ordered[0], **figures}), flush=True)
    comm.Barrier()


main(int(sys.argv[1]), [int(size) for size in sys.argv[2:]])
