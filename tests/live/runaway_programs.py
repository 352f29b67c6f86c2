"""Programs that ignore SIGTERM, daemonize, fork without end or leave their network namespace.

Each prints its processes' pids on one line once they are in that state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from testbed.cluster.running_cluster import RunningNode
from testbed.kernel.processes import wait_for_end

IGNORES_SIGTERM = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""

NON_UTF_8_NAME = """
import os, signal
with open("/proc/self/comm", "wb") as name:
    name.write(b"caf\\xe9")
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""

DOUBLE_FORKED = """
import os, signal
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""

PROCESS_TREE = """
import os, signal
def tree(depth):
    pids = [os.getpid()]
    for _ in range(2 if depth else 0):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, tree(depth - 1).encode())
            while True:
                signal.pause()
        pids.append(os.read(reader, 1000).decode())
    return " ".join(map(str, pids))
print(tree(2), flush=True)
while True:
    signal.pause()
"""

HOLDS_FILES = """
import os, signal, sys
descriptors = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
os.chdir(os.path.dirname(sys.argv[1]))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""

_LEAVE = """
import ctypes, os, signal
CLONE_NEWNET = 0x40000000
def leave():
    assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
"""

CHILD_IN_OTHER_NAMESPACE = f"""{_LEAVE}
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    leave()
    os.write(writer, b".")
else:
    os.read(reader, 1)
    print(os.getpid(), child, flush=True)
while True:
    signal.pause()
"""

IN_OTHER_NAMESPACE = f"""{_LEAVE}
leave()
if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""

# One process at a time, each the parent of the next, which exits at once; the last one ends by itself some time after the
# test's deadline.
CHANGES_PIDS = """
import os, time
end = time.monotonic() + 30
print(flush=True)
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""

FORKS_400 = """
import os, signal
print(flush=True)
for _ in range(400):
    if os.fork() == 0:
        while True:
            signal.pause()
while True:
    signal.pause()
"""


FOREIGN_PROCESS = f"""{_LEAVE}
leave()
print(os.getpid(), os.stat("/proc/self/ns/net").st_ino, flush=True)
while True:
    signal.pause()
"""


def start_program(node: RunningNode, program: str, *arguments: str) -> list[int]:
    """Run a program in the node; return pidfds of the processes that it prints."""
    command = [sys.executable, "-I", "-S", "-c", program, *arguments]
    process = node.popen(command, stdout=subprocess.PIPE, stderr=None)
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
    assert line, "the program did not start"
    handles = [os.pidfd_open(int(pid)) for pid in line.split()]
    process.poll()
    _started.append(process)
    return handles


_started: list[subprocess.Popen[str]] = []


def have_ended(handles: Iterable[int]) -> bool:
    """Return whether all processes have ended. Closes the pidfds, and reaps own children."""
    handles = list(handles)
    ended = [wait_for_end(handle, 0) for handle in handles]
    for handle in handles:
        os.close(handle)
    while _started:
        _started.pop().wait(10)
    return all(ended)
