"""A script of two ranks: the duration of a round trip with blocking receives, and with polling.

Prints a line of JSON at rank 0: microseconds per round trip by way of waiting, the minimum of several rounds.
"""

import json
import sys
import time

from testbed.mpi import MPI

TRIPS, ROUNDS = 10, int(sys.argv[1])
SLEEP = 0.001  # seconds

comm = MPI.COMM_WORLD
peer = 1 - comm.rank


def compute() -> None:
    end = time.thread_time_ns() + 20_000
    while time.thread_time_ns() < end:
        pass


def receive(method: str) -> None:
    kind, _, between = method.partition(" ")
    if kind == "probe":
        comm.probe(source=peer)
    elif kind == "iprobe":
        while not comm.iprobe(source=peer):
            pause(between)
    elif kind == "test":
        request = comm.irecv(source=peer)
        while not request.test()[0]:
            pause(between)
    if kind != "test":
        comm.recv(source=peer)


def pause(between: str) -> None:
    if between == "sleep":
        time.sleep(SLEEP)
    elif between == "compute":
        compute()


def trip(method: str) -> float:
    comm.barrier()
    start = time.monotonic()
    for number in range(TRIPS):
        if comm.rank == 0:
            comm.send(number, dest=1)
            receive(method)
        else:
            receive(method)
            comm.send(number, dest=0)
    return (time.monotonic() - start) / TRIPS * 1e6


minimum: dict[str, float] = {}
for _ in range(ROUNDS):
    for method in ("recv", "test", "test compute", "test sleep", "probe", "iprobe", "iprobe compute", "iprobe sleep"):
        minimum[method] = min(minimum.get(method, 1e9), trip(method))
if comm.rank == 0:
    sys.stdout.write(json.dumps(minimum) + "\n")
comm.barrier()
