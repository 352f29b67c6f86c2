"""Fabric connections to machines: one for each machine, over which a program on the machine is run.

Host keys, also those of jump hosts, are verified with OpenSSH's known_hosts files; unknown ones are refused. User, port,
keys, agent and jump hosts come from the user's OpenSSH configuration, unless the machines file sets them.

Connections through jump hosts are made here, since Fabric passes several jump hosts in reverse order.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from fabric import Config, Connection
from fabric.connection import derive_shorthand
from paramiko import Channel, HostKeys, MissingHostKeyPolicy, PKey, SSHClient
from paramiko.config import SSH_PORT
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    NoValidConnectionsError,
    PasswordRequiredException,
    SSHException,
)

from testbed.errors import NotFoundError, PermissionDeniedError, TestbedError, reason_of
from testbed.spec.machines import Machine
from testbed.ssh.client_config import client_config
from testbed.ssh.identities import Identities, NoIdentityError

CONNECT_TIMEOUT: Final = 10.0
"""Maximum seconds for each of these steps: TCP connection, sshd's banner, login."""

_KEEPALIVE: Final = 1  # seconds between messages on an idle connection
_USER_TIMEOUT: Final = 1200  # ms that sent bytes may stay unacknowledged
_KNOWN_HOSTS: Final = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN_HOSTS: Final = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # paramiko also raises the errors that it logs


class UnreachableError(TestbedError):
    """A machine does not answer, or its host key cannot be verified."""


class _RefusalPolicy(MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    def __init__(self, alias: str | None) -> None:
        """alias: name of the host in known_hosts (HostKeyAlias); None: its own name."""
        self._alias = alias

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        name = self._alias or hostname
        raise UnreachableError(
            f"the host key of {name} ({key.get_name()} {key.fingerprint}) is not in known_hosts: compare it, and log "
            "in once by 'ssh' to accept it"
        )


class LineChannel:
    """Lines to and from the standard input and output of a program on a machine. The program ends with the connection."""

    def __init__(self, connections: Sequence[Connection], channel: Channel) -> None:
        """connections: connections to jump hosts, and to the machine."""
        self._connections = connections
        self._channel = channel
        self._replies = channel.makefile("rb")
        self._sending = Lock()

    def send(self, line: bytes) -> None:
        """Send a line, which must end with a line feed. Several threads may send. Raises OSError if the connection has
        ended."""
        with self._sending:  # a long line is sent in several parts, which must not be interleaved with other lines
            try:
                self._channel.sendall(line)
            except (EOFError, SSHException) as error:  # EOFError has no text
                raise ConnectionError(str(error) or "connection closed") from error

    def receive(self, timeout: float | None) -> bytes:
        """Wait for the next line; return it, or nothing once the program or the connection has ended. Raises TimeoutError
        after `timeout` seconds; None: no limit."""
        self._channel.settimeout(timeout)
        line: bytes = self._replies.readline()
        return line

    def last_error_line(self) -> str:
        """Return the last line on the standard error of a program that has ended; empty if there is none, or the stream does
        not end within CONNECT_TIMEOUT, since a process that the program has started keeps it open."""
        self._channel.settimeout(CONNECT_TIMEOUT)
        try:
            lines = self._channel.makefile_stderr("rb").read().decode(errors="replace").strip().splitlines()
        except TimeoutError:
            return ""
        return lines[-1] if lines else ""

    def end_reason(self) -> str:
        """Return the reason why the connection has ended, as far as it is known."""
        error = self._channel.get_transport().get_exception()
        return reason_of(error) if isinstance(error, OSError) else "it was closed"

    def close(self) -> None:
        self._channel.close()
        _close(self._connections)


def open_channel(machine: Machine, command: str) -> LineChannel:
    """Connect to a machine and start a program there. Raises UnreachableError, PermissionDeniedError, NotFoundError for a
    missing key, and TestbedError for an invalid configuration of ssh."""
    connections = _connections(machine)
    target = connections[-1]
    hop = target
    try:
        for hop in connections:
            hop.open()
            hop.transport.set_keepalive(_KEEPALIVE)
            if isinstance(hop.transport.sock, socket.socket):
                hop.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)
        channel = target.transport.open_session(timeout=CONNECT_TIMEOUT)
        channel.exec_command(command)
    except BaseException as error:
        _close(connections)
        reason = _reason(error, hop.user)
        if reason is None:
            raise
        refused = isinstance(error, AuthenticationException)
        jump = "" if hop is target else "jump host of "
        where = f"{jump}machine {machine.name} ({hop.host}:{hop.port})"
        raise (PermissionDeniedError if refused else UnreachableError)(f"{where} {reason}") from error
    return LineChannel(connections, channel)


def _close(connections: Sequence[Connection]) -> None:
    for connection in reversed(connections):
        connection.close()


def _connections(machine: Machine) -> Sequence[Connection]:
    """Return connections, not open yet, to a machine's jump hosts in order, and to the machine."""
    if machine.key is not None and not Path(machine.key).is_file():
        raise NotFoundError(f"machine {machine.name}: there is no key {machine.key}")
    config = Config(ssh_config=client_config())
    keys = [] if machine.key is None else [machine.key]
    hop: object = _connection(machine.address or machine.name, machine.user, machine.port, keys, config, ())
    connections: list[Connection] = []
    while isinstance(hop, Connection):
        connections.insert(0, hop)
        hop = hop.gateway
    return connections


def _connection(
    host: str, user: str | None, port: int | None, keys: Sequence[str], config: Config, beyond: tuple[str, ...],
    gateway: Connection | None = None,
) -> Connection:  # fmt: skip
    """Return a connection to a host. keys: key files that are tried first. beyond: hosts that are reached through this one.
    gateway: connection to the last jump host; None: see `_gateway`."""
    connection = Connection(
        host,
        user=user,
        port=port,
        config=config,
        gateway=_gateway(config, host, beyond) if gateway is None else gateway,
        connect_timeout=CONNECT_TIMEOUT,
    )
    connection.connect_kwargs = {
        "banner_timeout": CONNECT_TIMEOUT,
        "auth_timeout": CONNECT_TIMEOUT,
        "auth_strategy": Identities(connection.user, connection.ssh_config, keys),
    }
    _load_host_keys(connection)
    return connection


def _gateway(config: Config, host: str, beyond: tuple[str, ...]) -> Connection | str | bool:
    """Return the gateway to a host from its configuration: a connection to the last of its jump hosts, its ProxyCommand, or
    False for none."""
    options = config.base_ssh_config.lookup(host)
    jumps = options.get("proxyjump", "none")
    if jumps == "none":
        command: str | None = options.get("proxycommand")
        return command or False
    hops = [derive_shorthand(jump.strip().removeprefix("ssh://")) for jump in jumps.split(",")]
    if any(hop["host"] in (host, *beyond) for hop in hops):  # the block is for all hosts, including the jump hosts
        return False
    gateway: Connection | None = None
    for hop in hops:
        gateway = _connection(hop["host"], hop["user"], hop["port"], [], config, (*beyond, host), gateway)
    assert gateway is not None
    return gateway


def _load_host_keys(connection: Connection) -> None:
    """Load the keys of known_hosts. If the host has a HostKeyAlias, the keys of the alias are those of the host."""
    alias: str | None = connection.ssh_config.get("hostkeyalias")
    # Paramiko looks keys up by this name.
    name = connection.host if connection.port == SSH_PORT else f"[{connection.host}]:{connection.port}"
    for file in _known_hosts(connection):
        if alias is None:
            connection.client.load_system_host_keys(str(file))
        else:
            for kind, key in (HostKeys(str(file)).lookup(alias) or {}).items():
                connection.client.get_host_keys().add(name, kind, key)
    connection.client.set_missing_host_key_policy(_RefusalPolicy(alias))


def _known_hosts(connection: Connection) -> Iterator[Path]:
    for key, usual in (("userknownhostsfile", _KNOWN_HOSTS), ("globalknownhostsfile", _GLOBAL_KNOWN_HOSTS)):
        for name in connection.ssh_config.get(key, " ".join(usual)).split():
            if os.access(file := Path(name).expanduser(), os.R_OK) and file.is_file():
                yield file


def _reason(error: BaseException, user: str) -> str | None:
    """Describe the failure of a connection, in words that follow the name of the machine; None for any other error."""
    match error:
        case UnreachableError():
            return f"is not trusted: {error}"
        case BadHostKeyException():
            return "is not trusted: its host key differs from the key in known_hosts"
        case PasswordRequiredException():
            return f"refuses the login of {user}: {error}"
        case AuthenticationException():
            return f"refuses the login of {user}: {_plain(str(error))}"
        case NoIdentityError():
            return f"cannot log in {user}: {error}"
        case NoValidConnectionsError():
            return f"cannot be reached: {'; '.join(sorted({reason_of(each) for each in error.errors.values()}))}"
        case TimeoutError():
            return f"cannot be reached: no answer within {CONNECT_TIMEOUT:g} s"
        case socket.gaierror():
            return f"cannot be reached: {error.strerror}"
        case OSError():
            return f"cannot be reached: {reason_of(error)}"
        case SSHException() | EOFError():
            return f"cannot be reached: {_plain(str(error)) or 'the connection was closed'}"
        case _:
            return None


def _plain(text: str) -> str:
    """Return the first line of paramiko's message, without the period at its end."""
    return text.splitlines()[0].rstrip(".") if text else ""
