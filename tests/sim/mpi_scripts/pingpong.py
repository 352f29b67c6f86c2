"""A ping-pong between two ranks, as usual for mpi4py."""

# ruff: noqa: T201

import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
size = comm.Get_size()

if size != 2:
    comm.Abort(1)

count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
skip = 5
status = MPI.Status()

for length in [2**power for power in range(0, 17, 4)]:
    send_buffer = bytearray(b"s" * length)
    receive_buffer = bytearray(length)
    comm.Barrier()
    for number in range(count + skip):
        if number == skip:
            start = MPI.Wtime()
        if rank == 0:
            comm.Send([send_buffer, MPI.BYTE], dest=1, tag=1)
            comm.Recv([receive_buffer, MPI.BYTE], source=1, tag=1, status=status)
            assert status.Get_source() == 1
        else:
            comm.Recv([receive_buffer, MPI.BYTE], source=0, tag=1, status=status)
            comm.Send([send_buffer, MPI.BYTE], dest=0, tag=1)
        assert status.Get_count(MPI.BYTE) == length
        assert receive_buffer == send_buffer
    if rank == 0:
        latency = (MPI.Wtime() - start) * 1e6 / (2 * count)
        print(f"{length:<10d}{latency:18.2f}")

comm.Barrier()
