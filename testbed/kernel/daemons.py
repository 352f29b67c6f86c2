"""Daemons: forked processes that outlive their parent. They do not exec, which saves the start of a Python interpreter."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
from collections.abc import Callable, Collection

from testbed.errors import TestbedError
from testbed.kernel import processes, syscalls
from testbed.kernel.changes import announce, remove_observers
from testbed.kernel.children import fork, signals_blocked

_READY = b"ready"
_MAX_DESCRIPTOR = 2**31 - 1  # cheap to close up to: os.closerange uses close_range(2)


def start(
    name: str,
    keep: Collection[int],
    prepare: Callable[[], None],
    serve: Callable[[], None],
    log: str = os.devnull,
    tag: str = "",
) -> processes.Identity:
    """Fork a daemon called `name` that runs `prepare` and, if that succeeds, `serve`, and exits when that returns.

    keep: descriptors that it inherits; all others are closed. log: file for the traceback of an unexpected error. tag: for
    `has_tag`, such as the name of its cluster; empty: none. Returns when `prepare` has returned. Raises a TestbedError or
    OSError of `prepare`, and TestbedError if the daemon dies in it.
    """
    reader, writer = os.pipe()
    child = 0
    try:
        with signals_blocked():  # until the child's pid is known
            child = fork()
            if child == 0:
                os.close(reader)
                _run_daemon(name, {*keep, writer}, writer, prepare, serve, log, tag)
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
        raise pickle.loads(answer) if answer else TestbedError(f"the process {name} died during its start")
    return processes.identity(child)


def become(name: str, prepare: Callable[[], None], serve: Callable[[], None], log: str) -> None:
    """Turn this process into a daemon, as `start` does with a forked one; does not return. The process exits silently on a
    TestbedError or OSError."""
    status = 1
    try:
        _leave_terminal(name, (), log)
        with contextlib.suppress(TestbedError, OSError):
            prepare()
            serve()
            status = 0
    except BaseException:  # noqa: BLE001  as in `_run_daemon`
        _report_failure()
    finally:
        os._exit(status)


def _report_failure() -> None:
    """Write the traceback of the current exception to standard error, which is the log."""
    import traceback

    os.write(2, traceback.format_exc().encode())


def _run_daemon(
    name: str,
    keep: Collection[int],
    writer: int,
    prepare: Callable[[], None],
    serve: Callable[[], None],
    log: str,
    tag: str,
) -> None:
    """Run the forked daemon; does not return."""
    status = 1
    gc.freeze()  # a garbage collection would write to, and so copy, the pages of all inherited objects
    try:
        _leave_terminal(name, keep, log)
        if tag:
            os.memfd_create(_memfd_name(name, tag), os.MFD_CLOEXEC)  # never closed
        try:
            prepare()
        except (TestbedError, OSError) as error:
            os.write(writer, pickle.dumps(error))
            os._exit(1)
        os.write(writer, _READY)
        os.close(writer)
        serve()
        status = 0
    except BaseException:  # noqa: BLE001  the parent's code must not run in the child
        _report_failure()
    finally:
        os._exit(status)


def has_tag(process: processes.Identity, name: str, tag: str) -> bool:
    """Whether a process is alive and was started by `start` with this name and tag.

    An identity that was read from a damaged or forged file may be that of another process. The tag is the name of a memfd
    that the daemon holds open, which no other process has by chance.
    """
    if not process.is_alive:
        return False
    descriptors = f"/proc/{process.pid}/fd"
    try:
        numbers = os.listdir(descriptors)
    except OSError:  # the process has ended, or is another user's
        return False
    return any(_target(f"{descriptors}/{number}") == f"/memfd:{_memfd_name(name, tag)} (deleted)" for number in numbers)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


def end(process: processes.Identity | None, name: str, tag: str) -> None:
    """Kill a daemon and wait for its end. Does nothing to a process without this name and tag."""
    if process is not None and has_tag(process, name, tag):
        processes.end(process)


def end_all(name: str, tag: str) -> None:
    """Kill all daemons with this name and tag."""
    for pid in processes.all_pids():
        end(processes.identity(pid), name, tag)


def _memfd_name(name: str, tag: str) -> str:
    return f"{name}:{tag}"


def _leave_terminal(name: str, keep: Collection[int], log: str) -> None:
    """Detach from the parent process: its observers, terminal, signal handlers, descriptors and directory."""
    remove_observers()
    os.setsid()
    syscalls.name_process(name)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _close_all_but(keep)  # first: the parent may have used up all descriptors
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


def _close_all_but(keep: Collection[int]) -> None:
    """Close all descriptors except the standard ones and `keep`. /proc/self/fd is not listed, which would need another
    one."""
    first = 3
    for number in sorted(number for number in keep if number > 2):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, _MAX_DESCRIPTOR)
