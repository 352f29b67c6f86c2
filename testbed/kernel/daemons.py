"""Daemons: forked processes that outlive the one that started them. They do not execute anything, which saves the start
of an interpreter."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
from collections.abc import Callable, Collection

from testbed.errors import TestbedError
from testbed.kernel import processes, syscalls
from testbed.kernel.changes import announce, silence
from testbed.kernel.children import undisturbed

_READY = b"ready"
_PAST_EVERY_DESCRIPTOR = 2**31 - 1  # close_range(2) does the work, in one call


def start(
    name: str,
    kept: Collection[int],
    prepare: Callable[[], None],
    stay: Callable[[], None],
    log: str = os.devnull,
    mark: str = "",
) -> processes.Identity:
    """Fork a daemon called `name` that runs `prepare` and, if that succeeds, `stay` until it returns.

    kept: our descriptors that it keeps. log: the file for the traceback of an unexpected error. mark: for `is_marked`,
    such as the name of its cluster. A TestbedError or OSError of `prepare` is raised here.
    """
    reader, writer = os.pipe()
    child = 0
    try:
        with undisturbed():  # until the child's pid is known
            child = os.fork()
            if child == 0:
                os.close(reader)
                _run_daemon(name, {*kept, writer}, writer, prepare, stay, log, mark)
            os.close(writer)
        with open(reader, "rb") as answers:
            announce(f"start {name} {child}")
            answer = answers.read()
    except BaseException:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise
    if answer != _READY:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        raise pickle.loads(answer) if answer else TestbedError(f"the process {name} died at its start")
    return processes.identity(child)


def become(name: str, prepare: Callable[[], None], stay: Callable[[], None], log: str) -> None:
    """Turn this process, which was started for nothing else, into a daemon; it ends silently when `prepare` fails with a
    TestbedError or OSError. Does not return."""
    status = 1
    try:
        _leave_terminal(name, (), log)
        with contextlib.suppress(TestbedError, OSError):
            prepare()
            stay()
            status = 0
    except BaseException:  # noqa: BLE001  as in `_run_daemon`
        _report_failure()
    finally:
        os._exit(status)


def _report_failure() -> None:
    import traceback

    os.write(2, traceback.format_exc().encode())


def _run_daemon(
    name: str,
    kept: Collection[int],
    writer: int,
    prepare: Callable[[], None],
    stay: Callable[[], None],
    log: str,
    mark: str,
) -> None:
    """Run the forked daemon; does not return."""
    status = 1
    gc.freeze()  # a collection of the parent's objects would copy every page of them
    try:
        _leave_terminal(name, kept, log)
        if mark:
            os.memfd_create(_marked(name, mark), os.MFD_CLOEXEC)  # open for as long as we live
        try:
            prepare()
        except (TestbedError, OSError) as error:
            os.write(writer, pickle.dumps(error))
            os._exit(1)
        os.write(writer, _READY)
        os.close(writer)
        stay()
        status = 0
    except BaseException:  # noqa: BLE001  none of the parent's code may run on in the child
        _report_failure()
    finally:
        os._exit(status)


def is_marked(process: processes.Identity, name: str, mark: str) -> bool:
    """Whether a process runs that `start` has begun under that name and mark.

    Pid and start time come from a file that may be damaged or forged, and may be another process's. The mark is a memfd
    that the daemon holds: no other process has one by chance.
    """
    if not process.alive:
        return False
    descriptors = f"/proc/{process.pid}/fd"
    try:
        numbers = os.listdir(descriptors)
    except OSError:  # it has ended, or is another user's
        return False
    return any(_target(f"{descriptors}/{number}") == f"/memfd:{_marked(name, mark)} (deleted)" for number in numbers)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


def end(process: processes.Identity | None, name: str, mark: str) -> None:
    """Kill a daemon of ours, by name and mark, and wait until it has ended. Any other process is left alone."""
    if process is not None and is_marked(process, name, mark):
        processes.end(process)


def end_all(name: str, mark: str) -> None:
    """Kill all daemons of that name and mark."""
    for pid in processes.all_pids():
        end(processes.identity(pid), name, mark)


def _marked(name: str, mark: str) -> str:
    return f"{name}:{mark}"


def _leave_terminal(name: str, kept: Collection[int], log: str) -> None:
    """Detach from the parent process: its observers, terminal, signal handlers, descriptors and directory."""
    silence()
    os.setsid()
    syscalls.name_process(name)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _close_all_but(kept)  # first: our parent may have had no descriptor left for what follows
    null = os.open("/dev/null", os.O_RDWR)
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard, descriptor in ((0, null), (1, null), (2, log_file)):
        os.dup2(descriptor, standard)
    for descriptor in (null, log_file):
        if descriptor > 2:
            os.close(descriptor)
    os.chdir("/")


def write_output_to(log: str) -> None:
    """Redirect standard output and error of this process to a file."""
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for standard in (1, 2):
        os.dup2(log_file, standard)
    os.close(log_file)


def _close_all_but(kept: Collection[int]) -> None:
    """Close every descriptor but the standard ones and these, without opening one for a listing."""
    first = 3
    for number in sorted(number for number in kept if number > 2):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, _PAST_EVERY_DESCRIPTOR)
