"""Mount namespace of a test run: other runs do not see its objects, and the kernel frees them with it.

The test process moves into a mount namespace with an empty /run, which all its children inherit. Names in /run/netns,
their mounts and the clusters' state therefore belong to this run: two concurrent runs may use equal names, and when the
last process of a killed run has ended the kernel frees everything. A watcher ends the programs that a killed run leaves
in its nodes. The network namespace, the pid namespace (and so the programs that ``gc`` finds of clusters without a
name) and /tmp are shared with the machine.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from testbed.kernel import mounts, namespaces, processes, syscalls

_STARTUP_FILES = (".bashrc", ".profile", ".bash_profile", ".bash_login", ".zshenv", ".zshrc")

_entered: list[int] = []


def enter() -> None:
    """Move the calling process into a sandbox, unless it is in one. Needs root."""
    if os.getpid() in _entered:
        return
    _entered.append(os.getpid())
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mounts.make_slave()
    syscalls.mount("testbed-tests", "/run", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")
    _hide_startup_files()
    _start_watcher()


def _hide_startup_files() -> None:
    """Hide the shell start-up files, which ssh sessions would read: one may take a lock (as pyenv's does) that a killed
    shell never releases, and all later shells would wait for it."""
    for name in _STARTUP_FILES:
        path = Path.home() / name
        if path.is_file():
            syscalls.mount("/dev/null", str(path), "", syscalls.MS_BIND)


def device() -> str:
    """Return the device number of this sandbox's /run; only processes in the sandbox have it mounted."""
    number = os.stat("/run").st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def inhabitants() -> set[int]:
    """Return the processes in this sandbox: this one and all its descendants."""
    device_field = f" {device()} "
    actual = set()
    for pid in processes.all_pids():
        try:
            mounted = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if device_field in mounted:
            actual.add(pid)
    return actual


def _start_watcher() -> None:
    tests = os.pidfd_open(os.getpid())
    if os.fork():
        os.close(tests)
        return
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.closerange(0, tests)
        os.closerange(tests + 1, 1024)
        processes.wait_for_end(tests)
        for name in namespaces.names():
            processes.end_all(processes.NamespaceProcesses([os.stat(namespaces.NAMES / name).st_ino]), grace=0)
    finally:
        os._exit(0)
