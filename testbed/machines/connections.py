"""Fabric connections to nodes: what a script that deploys to machines by ssh uses, on nodes instead.

A connection is verified by its cluster's own host key, logs in with its cluster's own key, and knows nothing of the user's
~/.ssh. It needs no network of the machine's: its socket is made inside the node. A command's standard input is empty unless
``in_stream`` is given: under pytest, for one, there is none to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fabric import Config, Connection, Group, SerialGroup, ThreadingGroup
from paramiko import RejectPolicy

from testbed.kernel.reaching import reach

__all__ = ["Connection", "Door", "Group", "connect", "group"]


@dataclass(frozen=True, slots=True)
class Door:
    """Where the sshd of a node is, and what it takes to log in. host: the node's name. namespace, keeper: as for `reach`."""

    host: str
    namespace: str
    keeper: int
    port: int
    user: str
    key: Path
    known_hosts: Path


class _NodeConnection(Connection):  # type: ignore[misc]  # Fabric has no types
    def __init__(self, door: Door) -> None:
        own = Config(overrides={"load_ssh_configs": False, "run": {"in_stream": False}})
        keys = {"key_filename": str(door.key), "allow_agent": False, "look_for_keys": False}
        super().__init__(door.host, user=door.user, port=door.port, config=own, connect_kwargs=keys)
        self.client.load_system_host_keys(str(door.known_hosts))
        self.client.set_missing_host_key_policy(RejectPolicy())
        self._set(_door=door)

    def open(self) -> object:
        if not self.is_connected:
            self.connect_kwargs["sock"] = reach(self._door.namespace, self._door.port, self._door.keeper)
        return super().open()


def connect(door: Door) -> Connection:
    """A connection to a node; it opens when it is first used."""
    return _NodeConnection(door)


def group(connections: Sequence[Connection], *, threads: bool) -> Group:
    """A group of them. threads: they work at the same time, else one after the other."""
    kind = ThreadingGroup if threads else SerialGroup
    return kind.from_connections(connections)
