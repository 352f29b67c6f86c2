"""MPI script beyond ping-pong: objects of its own classes, requests, probes, communicators, a module beside it."""

# ruff: noqa: T201

from dataclasses import dataclass

from mpi4py import MPI
from neighbourhood import left_and_right


@dataclass
class Word:
    said_by: int


def main():
    comm = MPI.COMM_WORLD
    left, right = left_and_right(comm)
    word = comm.sendrecv(Word(comm.rank), dest=right, source=left)
    assert isinstance(word, Word)
    assert word.said_by == left

    outbox, inbox = bytearray([comm.rank]), bytearray(1)
    requests = [comm.Recv_init(inbox, left, 2), comm.Ssend_init(outbox, right, 2)]
    for _ in range(3):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        assert inbox[0] == left

    requests = [comm.isend(number, right, number) for number in range(4)]
    status, got = MPI.Status(), []
    while len(got) < 4:
        if comm.Iprobe(source=left, status=status):
            got.append(comm.recv(None, left, status.tag))
    MPI.Request.waitall(requests)

    unwanted = comm.Irecv(bytearray(1), source=left, tag=99)
    unwanted.Cancel()
    unwanted.Wait(status)
    assert status.Is_cancelled()

    half = comm.Split(comm.rank % 2, comm.rank)
    message = None
    if half.size > 1:
        half.isend(Word(half.rank), (half.rank + 1) % half.size)
        message = half.mprobe().recv()
    half.Barrier()
    print(sorted(got), message)
    assert MPI.Wtime() > 0


if __name__ == "__main__":
    main()
