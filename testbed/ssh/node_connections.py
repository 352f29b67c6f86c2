"""Fabric connections to nodes, for scripts that deploy to machines by ssh.

A connection is verified by its cluster's own host key, logs in with its cluster's own key, and ignores the user's
~/.ssh. It needs no network of the machine's: its socket is opened inside the node. A command's standard input is empty
unless ``in_stream`` is given, as under pytest there is none to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fabric import Config, Connection, Group, SerialGroup, ThreadingGroup
from paramiko import RejectPolicy

from testbed.kernel.port_forwarding import connect_to_port

__all__ = ["Connection", "Group", "SshAddress", "connect", "group"]


@dataclass(frozen=True, slots=True)
class SshAddress:
    """Address and keys of a node's sshd. host: the node's name. namespace, holder: as for `reach`."""

    host: str
    namespace: str
    holder: int
    port: int
    user: str
    key: Path
    known_hosts: Path


class _NodeConnection(Connection):  # type: ignore[misc]  # Fabric has no types
    def __init__(self, door: SshAddress) -> None:
        own = Config(overrides={"load_ssh_configs": False, "run": {"in_stream": False}})
        keys = {"key_filename": str(door.key), "allow_agent": False, "look_for_keys": False}
        super().__init__(door.host, user=door.user, port=door.port, config=own, connect_kwargs=keys)
        self.client.load_system_host_keys(str(door.known_hosts))
        self.client.set_missing_host_key_policy(RejectPolicy())
        self._set(_door=door)

    def open(self) -> object:
        if not self.is_connected:
            self.connect_kwargs["sock"] = connect_to_port(self._door.namespace, self._door.port, self._door.holder)
        return super().open()


def connect(door: SshAddress) -> Connection:
    """Return a connection to a node, which opens on first use."""
    return _NodeConnection(door)


def group(connections: Sequence[Connection], *, threads: bool) -> Group:
    """Group connections. threads: they work concurrently, otherwise one after the other."""
    kind = ThreadingGroup if threads else SerialGroup
    return kind.from_connections(connections)
