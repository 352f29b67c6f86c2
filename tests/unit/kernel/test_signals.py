"""SIGINT is not lost in fork hooks, which cannot raise, and the end of a child process is reported."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED_WHILE_FORKING = """
import os, signal
from testbed.kernel.children import in_child

def interrupt():
    if os.getpid() == parent:
        os.kill(parent, signal.SIGINT)
        for _ in range(1_000):  # a pending interrupt would be raised here
            pass

parent = os.getpid()
os.register_at_fork({hook}=interrupt)
try:
    in_child(lambda: None)
except KeyboardInterrupt:
    print("interrupted")
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.parametrize("hook", ["before", "after_in_parent"])
def test_an_interrupt_during_fork_is_raised_right_afterwards(hook: str) -> None:
    script = INTERRUPTED_WHILE_FORKING.format(hook=hook)
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert completed.stdout == "interrupted\nset()\n", completed.stderr


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("os.kill(os.getpid(), 9)", "a child process was ended by signal 9"),
        ("raise LookupError", "a child process failed; its output is above"),
    ],
)
def test_a_child_that_ends_without_a_result_is_reported(statement: str, message: str) -> None:
    script = f"import os\nfrom testbed.kernel.children import in_child\ndef end():\n    {statement}\nin_child(end)\n"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert completed.stderr.endswith(f"TestbedError: {message}\n")
