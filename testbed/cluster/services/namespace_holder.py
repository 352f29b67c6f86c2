"""The namespace holder: a small process that keeps a cluster's namespaces alive where names in /run/netns do not.

- For a cluster that ends with its process (``with Cluster.star(4).up()``): a child, started before the first change, that
  holds the namespaces by descriptor and watches its parent. When the parent dies, it ends the programs in the nodes,
  removes the state and ends; the kernel then frees the namespaces.
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
from testbed.cluster.plan import namespace_names
from testbed.cluster.records.state import Store
from testbed.errors import KernelError
from testbed.kernel import daemons, processes, userns
from testbed.kernel.filesystem import empty

_MAX_DESCRIPTORS = 250  # in one message; the kernel's limit is SCM_MAX_FD, 253
_ANSWER_BYTES = 4096


class Guard:
    """The parent's handle on the namespace holder of a held cluster."""

    def __init__(self, identity: processes.Identity, line: socket.socket) -> None:
        self.identity = identity
        self._line = line

    def hold(self, descriptors: Mapping[str, int]) -> dict[str, str]:
        """Pass copies of these descriptors to the holder; return their paths. KernelError if it runs out of
        descriptors."""
        keys = list(descriptors)
        paths: dict[str, str] = {}
        for first in range(0, len(keys), _MAX_DESCRIPTORS):
            some = keys[first : first + _MAX_DESCRIPTORS]
            socket.send_fds(self._line, [b"hold"], [descriptors[key] for key in some])
            numbers = self._line.recv(_ANSWER_BYTES).split()
            if len(numbers) != len(some):
                raise KernelError("no file descriptors are left for the cluster's namespace holder (see 'ulimit -n')")
            paths.update(zip(some, (f"/proc/{self.identity.pid}/fd/{int(number)}" for number in numbers), strict=True))
        return paths

    def close(self) -> None:
        """Close the connection; the holder keeps running."""
        self._line.close()


def guard(root: Path, cluster: str) -> Guard:
    """Start the holder of a held cluster, before anything is made: it removes the cluster if this process dies."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = processes.identity()
    try:
        identity = daemons.start(
            namespace_names.HOLDER,
            {theirs.fileno()},
            _raise_limit,
            lambda: _hold(root, cluster, parent, theirs),
            mark=cluster,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Guard(identity, ours)


def hold_user_namespace(root: Path, cluster: str, *, lasting: bool) -> processes.Identity:
    """Start the holder of a rootless cluster, in new user and mount namespaces. PermissionDeniedError if the machine
    forbids them."""
    parent = processes.identity()
    return daemons.start(
        namespace_names.HOLDER,
        set(),
        userns.become_namespace_root,
        _for_ever if lasting else lambda: _hold(root, cluster, parent, None),
        mark=cluster,
    )


def _for_ever() -> None:
    while True:
        signal.pause()


def _hold(root: Path, cluster: str, parent: processes.Identity, line: socket.socket | None) -> None:
    """Receive descriptors until the parent dies; then remove what exists of its cluster."""
    try:
        handle = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        return _remove_orphan(root, cluster, parent)
    waiting = select.poll()
    if parent.alive:  # else it died before the pidfd was opened, and its pid may have been reused
        waiting.register(handle, select.POLLIN)
        if line is not None:
            waiting.register(line, select.POLLIN)
        while handle not in (ready := [descriptor for descriptor, _ in waiting.poll()]):
            if line is not None and ready and not _take(line):
                waiting.unregister(line)
    return _remove_orphan(root, cluster, parent)


def _take(line: socket.socket) -> bool:
    """Receive descriptors and answer with their numbers in this process; False if the connection was closed."""
    try:
        asked, descriptors, _, _ = socket.recv_fds(line, _ANSWER_BYTES, _MAX_DESCRIPTORS)
        if asked:
            line.send(" ".join(map(str, descriptors)).encode() or b" ")
    except ConnectionError:
        return False
    return bool(asked)


def _remove_orphan(root: Path, cluster: str, parent: processes.Identity) -> None:
    """Remove the cluster if it was the parent's. The parent may have died while waiting for another owner's lock."""
    store = Store(root)
    with store.locked(cluster, timeout=60):
        state = store.read(cluster)
        if state is None:
            empty(store.directory(cluster))
        elif state.owner == parent and not state.lasting:
            removal.remove(store, replace(state, holder=None), grace=0)
    removal.tidy(store)


def _raise_limit() -> None:
    """Raise the soft limit on descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
