"""Fabric connections to nodes, for scripts that deploy to machines by ssh.

A connection verifies the cluster's own host key, logs in with the cluster's own key, and ignores the user's ~/.ssh. It needs
no network of the machine: its socket is opened inside the node. A command's standard input is empty unless ``in_stream`` is
given, since pytest has no standard input to read.
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
    """Address and keys of a node's sshd. host: name of the node. namespace, holder: see `port_forwarding.connect_to_port`.
    key: file with the private key. known_hosts: file with the host key."""

    host: str
    namespace: str
    holder: int
    port: int
    user: str
    key: Path
    known_hosts: Path


class _NodeConnection(Connection):  # type: ignore[misc]  # Fabric has no types
    def __init__(self, address: SshAddress) -> None:
        config = Config(overrides={"load_ssh_configs": False, "run": {"in_stream": False}})
        keys = {"key_filename": str(address.key), "allow_agent": False, "look_for_keys": False}
        super().__init__(address.host, user=address.user, port=address.port, config=config, connect_kwargs=keys)
        self.client.load_system_host_keys(str(address.known_hosts))
        self.client.set_missing_host_key_policy(RejectPolicy())
        self._set(_ssh_address=address)

    def open(self) -> object:
        if not self.is_connected:
            address: SshAddress = self._ssh_address
            self.connect_kwargs["sock"] = connect_to_port(address.namespace, address.port, address.holder)
        return super().open()


def connect(address: SshAddress) -> Connection:
    """Return a connection to a node, which is opened on first use."""
    return _NodeConnection(address)


def group(connections: Sequence[Connection], *, threads: bool) -> Group:
    """Group connections. threads: whether they work concurrently, or one after the other."""
    kind = ThreadingGroup if threads else SerialGroup
    return kind.from_connections(connections)
