"""A thread that drives MPI while the main one computes: needs THREAD_MULTIPLE."""

import threading
import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
is_done = threading.Event()


def progress():
    while not is_done.is_set():
        comm.Iprobe()
        time.sleep(0.001)


thread = threading.Thread(target=progress, daemon=True)
thread.start()
request = comm.irecv(source=1 - comm.rank)
time.sleep(0.05)  # computes
comm.send("hello", dest=1 - comm.rank)
while not request.test()[0]:
    time.sleep(0.001)
is_done.set()
thread.join()
