"""Port forwarding into a network namespace: connections to its loopback interface, made inside it.

As a program, ``python -m testbed.kernel.port_forwarding NAMESPACE PORT HOLDER``, it is a proxy command of OpenSSH. If
standard output is a socket (ProxyUseFdpass), it passes the connection and exits; otherwise it copies bytes between the
connection and standard input and output. HOLDER: the pid of the namespace holder, 0 for none.
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
    """Connect to a TCP port on the loopback interface of the namespace at that path.

    holder: without root, the namespace holder in whose mount namespace the path is valid; then a child process makes the
    connection. Else the calling thread enters the namespace for a moment. Raises OSError, TestbedError.
    """
    if holder:
        return _connect_by_program(proxy_command(namespace, port, holder))
    with namespaces.inside(namespace):
        return socket.create_connection(("127.0.0.1", port))


def proxy_command(namespace: str, port: int, holder: int) -> list[str]:
    """Return the command line that makes the connection as a program."""
    return [sys.executable, "-P", "-m", __name__, namespace, str(port), str(holder)]


def _connect_by_program(program: list[str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            done = subprocess.run(
                program, stdin=subprocess.DEVNULL, stdout=theirs.fileno(), stderr=subprocess.PIPE, check=False
            )
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise TestbedError(done.stderr.decode(errors="replace").strip())
    return socket.socket(fileno=descriptors[0])


def copy_both_ways(connection: socket.socket, source: int, target: int) -> None:
    """Copy bytes from `source` to a connection and from the connection to `target`, until the peer has closed its
    direction. OSError, such as BrokenPipeError when the target has no reader."""
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
        sys.exit(f"port {port} of the node cannot be reached: {error.strerror}")
    with connection:
        if stat.S_ISSOCK(os.fstat(1).st_mode):
            with socket.socket(fileno=os.dup(1)) as client:
                socket.send_fds(client, [b"\0"], [connection.fileno()])
            return
        try:
            copy_both_ways(connection, 0, 1)
        except (BrokenPipeError, ConnectionResetError):  # one of the two ends has closed
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
