"""A master that hands out tasks to any worker that is ready, and workers that wait for the next one, all by probing."""

# ruff: noqa: T201

import sys

from mpi4py import MPI

READY, START, DONE, EXIT = range(4)
TASKS = int(sys.argv[1]) if len(sys.argv) > 1 else 24

comm = MPI.COMM_WORLD
status = MPI.Status()

for _ in range(3):  # as some libraries do before anything has been sent
    assert not comm.Iprobe(tag=EXIT)

if comm.rank == 0:
    tasks, results, closed = list(range(TASKS)), {}, 0
    while closed < comm.size - 1:
        if not comm.iprobe(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status):
            continue
        worker, tag = status.Get_source(), status.Get_tag()
        message = comm.recv(source=worker, tag=tag)
        if tag == READY:
            if tasks:
                comm.send(tasks.pop(), dest=worker, tag=START)
            else:
                comm.send(None, dest=worker, tag=EXIT)
        elif tag == DONE:
            results[message[0]] = message[1]
        else:
            closed += 1
    assert results == {task: task**2 for task in range(TASKS)}
    print("all tasks are done")
else:
    while True:
        comm.send(None, dest=0, tag=READY)
        while not comm.iprobe(source=0, status=status):
            pass
        task = comm.recv(source=0, tag=status.Get_tag())
        if status.Get_tag() == EXIT:
            break
        comm.send((task, task**2), dest=0, tag=DONE)
    comm.send(None, dest=0, tag=EXIT)
