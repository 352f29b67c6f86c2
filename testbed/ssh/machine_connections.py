"""Fabric connections to machines: one for each, over which a program there is run.

Host keys, also those of jump hosts, are verified with OpenSSH's known_hosts files; unknown ones are refused. User, port,
keys, agent and jump hosts come from the user's OpenSSH configuration, unless the machines file sets them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

from fabric import Config, Connection
from paramiko import Channel, MissingHostKeyPolicy, PKey, SSHClient
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    NoValidConnectionsError,
    PasswordRequiredException,
    SSHException,
)

from testbed.errors import NotFoundError, PermissionDeniedError, TestbedError, reason_of
from testbed.spec.machines import Machine

CONNECT_TIMEOUT: Final = 10.0
"""Seconds for each of TCP's connection, sshd's banner and the login."""

_KEEPALIVE: Final = 1  # s between messages on an idle connection
_USER_TIMEOUT: Final = 1200  # ms that sent bytes may stay unacknowledged
_KNOWN_HOSTS: Final = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN_HOSTS: Final = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its errors are raised as well


class UnreachableError(TestbedError):
    """A machine does not answer, or its host key cannot be verified."""


class _Refusal(MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        raise UnreachableError(
            f"the host key of {hostname} ({key.get_name()} {key.fingerprint}) is not in known_hosts: compare it, and log "
            "in once by 'ssh' to accept it"
        )


class LineChannel:
    """Lines to and from the standard input and output of a program on a machine. The program ends with the connection."""

    def __init__(self, connection: Connection, channel: Channel) -> None:
        self._connection = connection
        self._channel = channel
        self._replies = channel.makefile("rb")
        self._sending = Lock()

    def send(self, line: bytes) -> None:
        """Send a line, with its line feed; several threads may. OSError if the connection has ended."""
        with self._sending:  # a long line is sent in several parts, which must not be interleaved with other lines
            try:
                self._channel.sendall(line)
            except (EOFError, SSHException) as error:  # the former has no text
                raise ConnectionError(str(error) or "connection closed") from error

    def receive(self, timeout: float | None) -> bytes:
        """Return the next line; empty once the program or the connection has ended. Raises TimeoutError after `timeout`
        seconds; None: no limit."""
        self._channel.settimeout(timeout)
        line: bytes = self._replies.readline()
        return line

    def last_error_line(self) -> str:
        """Return the last line that a program that has ended wrote to its standard error."""
        self._channel.settimeout(CONNECT_TIMEOUT)
        lines = self._channel.makefile_stderr("rb").read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def end_reason(self) -> str:
        """Return why the connection has ended, as far as it is known."""
        error = self._channel.get_transport().get_exception()
        return reason_of(error) if isinstance(error, OSError) else "it was closed"

    def close(self) -> None:
        self._channel.close()
        self._connection.close()


def open_channel(machine: Machine, command: str) -> LineChannel:
    """Connect to a machine and start a program there. Raises UnreachableError, PermissionDeniedError, NotFoundError."""
    connection = _connection(machine)
    try:
        connection.open()
        transport = connection.transport
        transport.set_keepalive(_KEEPALIVE)
        if isinstance(transport.sock, socket.socket):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)
        channel = transport.open_session(timeout=CONNECT_TIMEOUT)
        channel.exec_command(command)
    except BaseException as error:
        connection.close()
        reason = _reason(error, connection.user)
        if reason is None:
            raise
        refused = isinstance(error, AuthenticationException)
        where = f"machine {machine.name} ({connection.host}:{connection.port})"
        raise (PermissionDeniedError if refused else UnreachableError)(f"{where} {reason}") from error
    return LineChannel(connection, channel)


def _connection(machine: Machine) -> Connection:
    arguments: dict[str, object] = {"banner_timeout": CONNECT_TIMEOUT, "auth_timeout": CONNECT_TIMEOUT}
    if machine.key is not None:
        if not Path(machine.key).is_file():
            raise NotFoundError(f"machine {machine.name}: there is no key {machine.key}")
        arguments["key_filename"] = machine.key
    connection = Connection(
        machine.address or machine.name,
        user=machine.user,
        port=machine.port,
        config=Config(),
        connect_timeout=CONNECT_TIMEOUT,
        connect_kwargs=arguments,
    )
    hop: object = connection
    while isinstance(hop, Connection):
        for file in _known_hosts(hop):
            hop.client.load_system_host_keys(str(file))
        hop.client.set_missing_host_key_policy(_Refusal())
        hop = hop.gateway
    return connection


def _known_hosts(connection: Connection) -> Iterator[Path]:
    for key, usual in (("userknownhostsfile", _KNOWN_HOSTS), ("globalknownhostsfile", _GLOBAL_KNOWN_HOSTS)):
        for name in connection.ssh_config.get(key, " ".join(usual)).split():
            if os.access(file := Path(name).expanduser(), os.R_OK) and file.is_file():
                yield file


def _reason(error: BaseException, user: str) -> str | None:
    """Why a connection was not made, to be put behind the machine's name; None for what is no failure of a connection."""
    match error:
        case UnreachableError():
            return f"is not trusted: {error}"
        case BadHostKeyException():
            return "is not trusted: its host key is another one than in known_hosts"
        case PasswordRequiredException():
            return "refuses the login: the key has a passphrase, and no agent has the key (ssh-add)"
        case AuthenticationException():
            return f"refuses the login of {user}: {_plain(str(error))}"
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
    """Return the first sentence of paramiko's message, without the dot behind it."""
    return text.splitlines()[0].rstrip(".") if text else ""
