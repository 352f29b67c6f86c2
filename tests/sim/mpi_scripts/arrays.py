"""Examples of NumPy arrays in messages, as mpi4py's tutorial has them, on any number of ranks from 2 on."""

# ruff: noqa: T201

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size


def messages():
    if rank == 0:
        comm.send({"a": 7, "b": 3.14}, dest=1, tag=11)
        comm.Send([np.arange(1000, dtype="i"), MPI.INT], dest=1, tag=77)
        comm.Send(np.linspace(0, 1, 20_000), dest=1, tag=13)
    elif rank == 1:
        assert comm.recv(source=0, tag=11) == {"a": 7, "b": 3.14}
        data = np.empty(1000, dtype="i")
        comm.Recv([data, MPI.INT], source=0, tag=77)
        assert (data == np.arange(1000)).all()
        status = MPI.Status()
        comm.Probe(source=MPI.ANY_SOURCE, tag=13, status=status)
        data = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(data, source=status.Get_source(), tag=13)
        assert np.allclose(data, np.linspace(0, 1, 20_000))


def collectives():
    recvbuf = np.empty(100, dtype="i")
    comm.Scatter(np.repeat(np.arange(size, dtype="i"), 100) if rank == 0 else None, recvbuf, root=0)
    assert (recvbuf == rank).all()
    counts = np.arange(1, size + 1)
    displacements = np.concatenate(([0], np.cumsum(counts)[:-1]))
    mine, gathered = np.full(rank + 1, float(rank)), np.empty(counts.sum())
    comm.Gatherv(mine, [gathered, counts, displacements, MPI.DOUBLE] if rank == 0 else None, root=0)
    assert rank or (gathered == np.repeat(np.arange(size), counts)).all()
    comm.Allgatherv(mine, [gathered, (counts, displacements)])
    assert (gathered == np.repeat(np.arange(size), counts)).all()
    turned = np.arange(size) + rank * size
    comm.Alltoall(MPI.IN_PLACE, turned)
    assert (turned == np.arange(size) * size + rank).all()
    pair = np.dtype([("value", "d"), ("place", "i")], align=True)
    own, greatest = np.array([(rank % 3, rank)], dtype=pair), np.empty(1, dtype=pair)
    comm.Allreduce([own, 1, MPI.DOUBLE_INT], [greatest, 1, MPI.DOUBLE_INT], op=MPI.MAXLOC)
    assert tuple(greatest[0]) == (min(size - 1, 2), min(size - 1, 2))
    before = np.zeros(1, "i")
    comm.Exscan(np.array([1], "i"), before)
    assert before[0] == rank


def communicators():
    half = comm.Split(color=rank % 2, key=-rank)
    assert half.allgather(rank) == list(range(rank % 2, size, 2))[::-1]
    half.Free()
    assert half == MPI.COMM_NULL
    assert (comm.Split(MPI.UNDEFINED if rank else 0) == MPI.COMM_NULL) == bool(rank)
    ring = comm.Create_cart([size], periods=[True])
    source, destination = ring.Shift(0, 1)
    buffer = np.array([rank], "i")
    ring.Sendrecv_replace(buffer, dest=destination, source=source)
    assert buffer[0] == source == left


def persistent_requests():
    outgoing, incoming, total = np.zeros(4), np.zeros(4), np.zeros(4)
    requests = [comm.Send_init(outgoing, dest=right, tag=3), comm.Recv_init(incoming, source=left, tag=3)]
    reduction = comm.Allreduce_init(outgoing, total)
    for turn in range(3):
        outgoing[:] = 10 * rank + turn
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        assert (incoming == 10 * left + turn).all()
        reduction.Start()
        reduction.Wait()
        assert (total == 5 * size * (size - 1) + size * turn).all()
    for request in (*requests, reduction):
        request.Free()
        assert request == MPI.REQUEST_NULL


def operations():
    def farthest(a, b, datatype):
        assert datatype == MPI.DOUBLE
        x, y = np.frombuffer(a, "d"), np.frombuffer(b, "d")
        y[:] = np.where(np.abs(x) > np.abs(y), x, y)

    operation, result = MPI.Op.Create(farthest, commute=True), np.empty(2)
    comm.Allreduce(np.array([-rank, rank], "d"), result, op=operation)
    assert list(result) == [1 - size, size - 1]
    operation.Free()
    assert comm.allreduce([rank], op=lambda a, b: a + b) == list(range(size))


def datatypes():
    matrix = np.arange(float(size * size)).reshape(size, size) + 100 * rank
    column = MPI.DOUBLE.Create_vector(size, 1, size)
    columns = column.Create_resized(0, 8).Commit()
    rows = np.empty((size, size))
    comm.Alltoall([matrix, 1, columns], [rows, size, MPI.DOUBLE])
    assert all((rows[other] == 100 * other + np.arange(size) * size + rank).all() for other in range(size))
    corner = MPI.DOUBLE.Create_subarray([size, size], [1, 1], [size - 1, 0]).Commit()
    comm.Bcast([matrix, 1, corner], root=0)
    assert matrix[-1, 0] == size * (size - 1)
    for datatype in (column, columns, corner):
        datatype.Free()
        assert datatype == MPI.DATATYPE_NULL


for example in (messages, collectives, communicators, persistent_requests, operations, datatypes):
    example()
    comm.Barrier()
print("done")
