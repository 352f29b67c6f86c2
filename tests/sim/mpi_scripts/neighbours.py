"""MPI script with pickled objects of its own class, requests, probes, communicators and a module in its directory."""

# ruff: noqa: T201

from dataclasses import dataclass

from mpi4py import MPI
from neighbourhood import left_and_right


@dataclass
class Word:
    said_by: int


def main():
    comm = MPI.COMM_WORLD
    left_peer, right_peer = left_and_right(comm)
    word = comm.sendrecv(Word(comm.rank), dest=right_peer, source=left_peer)
    assert isinstance(word, Word)
    assert word.said_by == left_peer

    outbox, inbox = bytearray([comm.rank]), bytearray(1)
    requests = [comm.Recv_init(inbox, left_peer, 2), comm.Ssend_init(outbox, right_peer, 2)]
    for _ in range(3):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        assert inbox[0] == left_peer

    requests = [comm.isend(number, right_peer, number) for number in range(4)]
    status, received = MPI.Status(), []
    while len(received) < 4:
        if comm.Iprobe(source=left_peer, status=status):
            received.append(comm.recv(None, left_peer, status.tag))
    MPI.Request.waitall(requests)

    unwanted = comm.Irecv(bytearray(1), source=left_peer, tag=99)
    unwanted.Cancel()
    unwanted.Wait(status)
    assert status.Is_cancelled()

    half_comm = comm.Split(comm.rank % 2, comm.rank)
    message = None
    if half_comm.size > 1:
        half_comm.isend(Word(half_comm.rank), (half_comm.rank + 1) % half_comm.size)
        message = half_comm.mprobe().recv()
    half_comm.Barrier()
    print(sorted(received), message)
    assert MPI.Wtime() > 0


if __name__ == "__main__":
    main()
