"""The keeper: one small process that holds a cluster's namespaces where names in /run/netns do not.

- For a cluster that ends with its process (``with Cluster.star(4).up()``): a child that is there before the first change,
  holds the namespaces by descriptor and watches its parent. When the parent dies, however it dies, the keeper ends the
  programs in the nodes, removes the state and ends too; the kernel then frees the namespaces.
- Without root: it also holds the user namespace in which the cluster was made, and the mount namespace with its names.

It is forked from the process that needs it and executes nothing else, so that it costs no start of an interpreter.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from testbed.cluster import removal
from testbed.cluster.state import Store
from testbed.errors import KernelError, PermissionDeniedError
from testbed.kernel import processes, syscalls, userns
from testbed.kernel.changes import announce, silence
from testbed.kernel.files import empty

_MOST_DESCRIPTORS = 250  # in one message; the kernel's limit is SCM_MAX_FD, 253
_ANSWER_BYTES = 4096
_PAST_EVERY_DESCRIPTOR = 2**31 - 1  # close_range(2) does the work, in one call


class Guard:
    """The keeper of a held cluster, seen from the process that it watches."""

    def __init__(self, identity: processes.Identity, line: socket.socket) -> None:
        self.identity = identity
        self._line = line

    def hold(self, descriptors: Mapping[str, int]) -> dict[str, str]:
        """Let the keeper hold copies of these descriptors; returns their paths. KernelError when it cannot have them all."""
        keys = list(descriptors)
        paths: dict[str, str] = {}
        for first in range(0, len(keys), _MOST_DESCRIPTORS):
            some = keys[first : first + _MOST_DESCRIPTORS]
            socket.send_fds(self._line, [b"hold"], [descriptors[key] for key in some])
            numbers = self._line.recv(_ANSWER_BYTES).split()
            if len(numbers) != len(some):
                raise KernelError("no file descriptors are left for the cluster's keeper (see 'ulimit -n')")
            paths.update(zip(some, (f"/proc/{self.identity.pid}/fd/{int(number)}" for number in numbers), strict=True))
        return paths

    def close(self) -> None:
        """End the conversation; the keeper goes on."""
        self._line.close()


def guard(root: Path, cluster: str) -> Guard:
    """Start the keeper of a held cluster, before anything is made for it: it removes what there is when we die."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = processes.identity()
    try:
        identity = _start({theirs.fileno()}, prepare=_raise_limit, stay=lambda: _hold(root, cluster, parent, theirs))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Guard(identity, ours)


def hold_user_namespace(root: Path, cluster: str, *, lasting: bool) -> processes.Identity:
    """Start the keeper of a rootless cluster, in new user and mount namespaces. PermissionDeniedError where the machine
    forbids them."""
    parent = processes.identity()
    return _start(
        set(),
        prepare=userns.become_root_of_own,
        stay=_for_ever if lasting else lambda: _hold(root, cluster, parent, None),
    )


def _start(kept: Collection[int], prepare: Callable[[], None], stay: Callable[[], None]) -> processes.Identity:
    """Fork a keeper that runs `prepare` and, when that has gone well, lives for as long as `stay` does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _keep({*kept, writer}, writer, prepare, stay)
    os.close(writer)
    try:
        with open(reader, "rb") as answers:
            announce(f"start keeper {child}")
            answer = answers.read().decode()
    except BaseException:
        removal.end_keeper(processes.identity(child))
        raise
    if answer != "ready":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        raise PermissionDeniedError(answer or "the process that holds the cluster's namespaces died at its start")
    return processes.identity(child)


def _keep(kept: Collection[int], writer: int, prepare: Callable[[], None], stay: Callable[[], None]) -> None:
    """The keeper's life; does not return."""
    status = 1
    try:
        _leave_terminal(kept)
        try:
            prepare()
        except PermissionDeniedError as error:
            os.write(writer, str(error).encode())
            os._exit(1)
        os.write(writer, b"ready")
        os.close(writer)
        stay()
        status = 0
    except BaseException:  # noqa: BLE001  the last line of a process: whatever it is, nothing of the parent's code may run on
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _for_ever() -> None:
    while True:
        signal.pause()


def _hold(root: Path, cluster: str, parent: processes.Identity, line: socket.socket | None) -> None:
    """Take descriptors from the line until the parent dies; then remove what there is of its cluster."""
    try:
        handle = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        return _remove_orphan(root, cluster, parent)
    waiting = select.poll()
    if parent.alive:  # otherwise it died before we could watch it, and the number may be another's by now
        waiting.register(handle, select.POLLIN)
        if line is not None:
            waiting.register(line, select.POLLIN)
        while handle not in (ready := [descriptor for descriptor, _ in waiting.poll()]):
            if line is not None and ready and not _take(line):
                waiting.unregister(line)
    return _remove_orphan(root, cluster, parent)


def _take(line: socket.socket) -> bool:
    """Take some descriptors and answer with the numbers that they have here; False when the line has been closed."""
    try:
        asked, descriptors, _, _ = socket.recv_fds(line, _ANSWER_BYTES, _MOST_DESCRIPTORS)
        if asked:
            line.send(" ".join(map(str, descriptors)).encode() or b" ")
    except ConnectionError:
        return False
    return bool(asked)


def _remove_orphan(root: Path, cluster: str, parent: processes.Identity) -> None:
    """Remove the cluster unless it has never been the parent's, who may have died while it waited for another's end."""
    store = Store(root)
    with store.locked(cluster, patience=60):
        state = store.read(cluster)
        if state is None:
            empty(store.directory(cluster))
        elif state.owner == parent and not state.lasting:
            removal.remove(store, replace(state, keeper=None), grace=0)
    removal.tidy(store)


def _raise_limit() -> None:
    """Have room for as many descriptors as this process may ever have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _leave_terminal(kept: Collection[int]) -> None:
    """Let go of all that belongs to the process that we were forked from: its terminal, its files, its signal handlers."""
    silence()
    os.setsid()
    syscalls.name_process("testbed-keeper")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(kept)  # first: our parent may have had no descriptor left for what follows
    nowhere = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    if nowhere > 2:
        os.close(nowhere)
    os.chdir("/")


def _close_all_but(kept: Collection[int]) -> None:
    """Close every descriptor but the standard ones and these, without opening one to list them."""
    first = 3
    for number in sorted(number for number in kept if number > 2):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, _PAST_EVERY_DESCRIPTOR)
