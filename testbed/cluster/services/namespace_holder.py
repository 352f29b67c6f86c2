"""The namespace holder: a small process that keeps a cluster's namespaces alive without names in the machine's /run/netns.

- For a cluster that ends with its process (``with Cluster.star(4).up()``), the holder is a child of that process, started
  before the first change. It holds the namespaces by descriptor and watches its parent. When the parent dies, the holder
  ends the programs in the nodes, removes the state and exits; the kernel then frees the namespaces.
- For a cluster of an unprivileged user, it also holds the cluster's user namespace and the mount namespace in which the
  network namespaces have names.
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
_MAX_REPLY = 4096  # bytes


class HolderClient:
    """The parent's connection to the namespace holder of a cluster that ends with its process."""

    def __init__(self, identity: processes.Identity, connection: socket.socket) -> None:
        self.identity = identity
        self._connection = connection

    def hold(self, descriptors: Mapping[str, int]) -> dict[str, str]:
        """Pass copies of these descriptors to the holder; return the paths of the copies, by key. Raises KernelError if the
        holder runs out of descriptors or dies, OSError if it has died before."""
        keys = list(descriptors)
        paths: dict[str, str] = {}
        for first in range(0, len(keys), _MAX_DESCRIPTORS):
            batch = keys[first : first + _MAX_DESCRIPTORS]
            socket.send_fds(self._connection, [b"hold"], [descriptors[key] for key in batch])
            reply = self._connection.recv(_MAX_REPLY)
            if not reply:
                raise KernelError("the cluster's namespace holder has died")
            numbers = reply.split()
            if len(numbers) != len(batch):
                raise KernelError("no file descriptors are left for the cluster's namespace holder (see 'ulimit -n')")
            paths.update(zip(batch, (f"/proc/{self.identity.pid}/fd/{int(number)}" for number in numbers), strict=True))
        return paths

    def close(self) -> None:
        """Close the connection; the holder keeps running."""
        self._connection.close()


def start_holder(root: Path, cluster: str) -> HolderClient:
    """Start the holder of a cluster that ends with this process.

    The holder removes the cluster when this process dies, so start it before anything is created. root: of the cluster's
    store.
    """
    client_end, holder_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = processes.identity()
    try:
        identity = daemons.start(
            namespace_names.HOLDER,
            {holder_end.fileno()},
            _raise_limit,
            lambda: _hold(root, cluster, parent, holder_end),
            tag=cluster,
        )
    except BaseException:
        client_end.close()
        raise
    finally:
        holder_end.close()
    return HolderClient(identity, client_end)


def hold_user_namespace(root: Path, cluster: str, *, lasting: bool) -> processes.Identity:
    """Start the holder of a rootless cluster, in new user and mount namespaces.

    lasting: whether the cluster outlives this process; otherwise the holder removes it when this process dies. Raises
    PermissionDeniedError if the machine forbids user namespaces, OSError if its /run/netns cannot be mounted.
    """
    parent = processes.identity()
    return daemons.start(
        namespace_names.HOLDER,
        set(),
        userns.become_namespace_root,
        _wait_forever if lasting else lambda: _hold(root, cluster, parent, None),
        tag=cluster,
    )


def _wait_forever() -> None:
    while True:
        signal.pause()


def _hold(root: Path, cluster: str, parent: processes.Identity, connection: socket.socket | None) -> None:
    """Receive descriptors until the parent dies; then remove its cluster."""
    try:
        pidfd = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        return _remove_orphan(root, cluster, parent)
    poll = select.poll()
    if parent.is_alive:  # otherwise it died before the pidfd was opened, and its pid may be reused
        poll.register(pidfd, select.POLLIN)
        if connection is not None:
            poll.register(connection, select.POLLIN)
        while pidfd not in (ready := [descriptor for descriptor, _ in poll.poll()]):
            if connection is not None and ready and not _receive_descriptors(connection):
                poll.unregister(connection)
    return _remove_orphan(root, cluster, parent)


def _receive_descriptors(connection: socket.socket) -> bool:
    """Receive descriptors and reply with their numbers in this process; return False if the connection was closed."""
    try:
        request, descriptors, _, _ = socket.recv_fds(connection, _MAX_REPLY, _MAX_DESCRIPTORS)
        if request:
            connection.send(" ".join(map(str, descriptors)).encode() or b" ")
    except ConnectionError:
        return False
    return bool(request)


def _remove_orphan(root: Path, cluster: str, parent: processes.Identity) -> None:
    """Remove the cluster if it was the parent's; without a state, remove what its directory contains.

    The parent may have died while it waited for the lock of another owner's cluster with the same name.
    """
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
