"""The keeper: one small process that holds a cluster's namespaces where names in /run/netns do not.

- For a cluster that ends with its process (``with Cluster.star(4).up()``): a child that is there before the first change,
  holds the namespaces by descriptor and watches its parent. When the parent dies, however it dies, the keeper ends the
  programs in the nodes, removes the state and ends too; the kernel then frees the namespaces.
- Without root: it also holds the user namespace in which the cluster was made, and the mount namespace with its names.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from testbed.cluster import removal
from testbed.cluster.state import Store
from testbed.errors import KernelError
from testbed.kernel import daemons, processes, userns
from testbed.kernel.files import empty

_MOST_DESCRIPTORS = 250  # in one message; the kernel's limit is SCM_MAX_FD, 253
_ANSWER_BYTES = 4096
_NAME = "testbed-keeper"


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
        identity = daemons.start(_NAME, {theirs.fileno()}, _raise_limit, lambda: _hold(root, cluster, parent, theirs))
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
    return daemons.start(
        _NAME,
        set(),
        userns.become_root_of_own,
        _for_ever if lasting else lambda: _hold(root, cluster, parent, None),
    )


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
