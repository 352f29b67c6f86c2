"""Processes that live on when the one that needed them has ended: forked, executing nothing else, so that they cost no
start of an interpreter."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Collection

from testbed.errors import TestbedError
from testbed.kernel import processes, syscalls
from testbed.kernel.changes import announce, silence

_READY = b"ready"
_PAST_EVERY_DESCRIPTOR = 2**31 - 1  # close_range(2) does the work, in one call


def start(
    name: str,
    kept: Collection[int],
    prepare: Callable[[], None],
    stay: Callable[[], None],
    log: str = os.devnull,
) -> processes.Identity:
    """Fork a process called `name` that runs `prepare` and, when that has gone well, lives for as long as `stay` does.

    kept: descriptors that it keeps of ours. log: the file to which it writes the traceback of what it did not expect.
    A TestbedError or OSError of `prepare` is raised here.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _live(name, {*kept, writer}, writer, prepare, stay, log)
    os.close(writer)
    try:
        with open(reader, "rb") as answers:
            announce(f"start {name} {child}")
            answer = answers.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if answer != _READY:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        raise pickle.loads(answer) if answer else TestbedError(f"the process {name} died at its start")
    return processes.identity(child)


def _live(
    name: str,
    kept: Collection[int],
    writer: int,
    prepare: Callable[[], None],
    stay: Callable[[], None],
    log: str,
) -> None:
    """The process's life; does not return."""
    status = 1
    gc.freeze()  # our parent's objects are not looked through: that would copy every page of them, and free it at our end
    try:
        _leave_terminal(name, kept, log)
        try:
            prepare()
        except (TestbedError, OSError) as error:
            os.write(writer, pickle.dumps(error))
            os._exit(1)
        os.write(writer, _READY)
        os.close(writer)
        stay()
        status = 0
    except BaseException:  # noqa: BLE001  the last line of a process: whatever it is, nothing of the parent's code may run on
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _leave_terminal(name: str, kept: Collection[int], log: str) -> None:
    """Let go of all that belongs to the process that we were forked from: its terminal, its files, its signal handlers."""
    silence()
    os.setsid()
    syscalls.name_process(name)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _close_all_but(kept)  # first: our parent may have had no descriptor left for what follows
    nowhere = os.open("/dev/null", os.O_RDWR)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard, given in ((0, nowhere), (1, nowhere), (2, written)):
        os.dup2(given, standard)
    for given in (nowhere, written):
        if given > 2:
            os.close(given)
    os.chdir("/")


def _close_all_but(kept: Collection[int]) -> None:
    """Close every descriptor but the standard ones and these, without opening one to list them."""
    first = 3
    for number in sorted(number for number in kept if number > 2):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, _PAST_EVERY_DESCRIPTOR)
