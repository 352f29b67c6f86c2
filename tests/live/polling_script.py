"""A script of two ranks: the duration of a round trip with blocking receives, and with polling.

Prints a line of JSON at rank 0: microseconds by how the messages are looked for, the least of several turns.
"""

import json
import sys
import time

from testbed.mpi import MPI

TRIPS, TURNS = 10, int(sys.argv[1])
SLEEP = 0.001  # seconds

comm = MPI.COMM_WORLD
other = 1 - comm.rank


def compute() -> None:
    end = time.thread_time_ns() + 20_000
    while time.thread_time_ns() < end:
        pass


def receive(how: str) -> None:
    kind, _, between = how.partition(" ")
    if kind == "probe":
        comm.probe(source=other)
    elif kind == "iprobe":
        while not comm.iprobe(source=other):
            pause(between)
    elif kind == "test":
        request = comm.irecv(source=other)
        while not request.test()[0]:
            pause(between)
    if kind != "test":
        comm.recv(source=other)


def pause(between: str) -> None:
    if between == "sleep":
        time.sleep(SLEEP)
    elif between == "compute":
        compute()


def trip(how: str) -> float:
    comm.barrier()
    start = time.monotonic()
    for number in range(TRIPS):
        if comm.rank == 0:
            comm.send(number, dest=1)
            receive(how)
        else:
            receive(how)
            comm.send(number, dest=0)
    return (time.monotonic() - start) / TRIPS * 1e6


least: dict[str, float] = {}
for _ in range(TURNS):
    for how in ("recv", "test", "test compute", "test sleep", "probe", "iprobe", "iprobe compute", "iprobe sleep"):
        least[how] = min(least.get(how, 1e9), trip(how))
if comm.rank == 0:
    sys.stdout.write(json.dumps(least) + "\n")
comm.barrier()
