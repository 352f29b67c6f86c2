"""Connections to TCP ports on the loopback interface of a network namespace, made inside the namespace.

As a program, ``python -m testbed.kernel.port_forwarding NAMESPACE PORT HOLDER``, it is a proxy command for OpenSSH. If
standard output is a socket (ProxyUseFdpass), it passes the connection and exits; otherwise it copies bytes between the
connection and standard input and output. HOLDER: pid of the namespace holder; 0: none.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import subprocess
import sys
from typing import Final

from testbed.errors import TestbedError
from testbed.kernel import namespaces
from testbed.kernel.setns import enter_holder

_CHUNK: Final = 65536  # bytes copied at once


def connect_to_port(namespace: str, port: int, holder: int = 0) -> socket.socket:
    """Connect to a TCP port on the loopback interface of a namespace. namespace: path.

    holder: pid of the namespace holder in whose mount namespace the path is valid; a child process then makes the
    connection. 0: none; the calling thread enters the namespace for the call. Raises OSError, TestbedError.
    """
    if holder:
        return _connect_by_program(proxy_command(namespace, port, holder))
    with namespaces.inside(namespace):
        return socket.create_connection(("127.0.0.1", port))


def proxy_command(namespace: str, port: int, holder: int) -> list[str]:
    """Return the command line that runs this module as a program, with the arguments of `connect_to_port`."""
    return [sys.executable, "-P", "-m", __name__, namespace, str(port), str(holder)]


def _connect_by_program(program: list[str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            completed = subprocess.run(
                program, stdin=subprocess.DEVNULL, stdout=theirs.fileno(), stderr=subprocess.PIPE, check=False
            )
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise TestbedError(completed.stderr.decode(errors="replace").strip())
    return socket.socket(fileno=descriptors[0])


def copy_both_ways(connection: socket.socket, source: int, target: int) -> None:
    """Copy bytes from `source` to a connection and from the connection to `target`, until the peer closes the connection.

    Raises OSError, such as BrokenPipeError if the target has no reader.
    """
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    ready.register(source, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor == source:
                data = os.read(source, _CHUNK)
                if data:
                    connection.sendall(data)
                else:
                    ready.unregister(source)
                    connection.shutdown(socket.SHUT_WR)
                continue
            data = connection.recv(_CHUNK)
            if not data:
                return
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(target, remaining) :]


def _main(namespace: str, port: str, holder: str) -> None:
    try:
        if int(holder):
            enter_holder(int(holder))
        connection = connect_to_port(namespace, int(port))
    except OSError as error:
        sys.exit(f"connection to port {port} of the node failed: {error.strerror}")
    with connection:
        if stat.S_ISSOCK(os.fstat(1).st_mode):
            with socket.socket(fileno=os.dup(1)) as client:
                socket.send_fds(client, [b"\0"], [connection.fileno()])
            return
        try:
            copy_both_ways(connection, 0, 1)
        except (BrokenPipeError, ConnectionResetError):  # one of the two ends was closed
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
