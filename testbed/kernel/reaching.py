"""Reaching a port inside a network namespace from outside: a connection to its loopback interface, made in it.

As a program it is what OpenSSH calls a proxy command, ``python -m testbed.kernel.reaching NAMESPACE PORT KEEPER``: it hands
the connection itself over where standard output is a socket (ProxyUseFdpass), and is gone; else it passes bytes on between
the connection and standard input and output.
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
from testbed.kernel import syscalls
from testbed.kernel.entering import enter_keeper

_PIECE: Final = 65536  # bytes passed on at once


def reach(namespace: str, port: int, keeper: int = 0) -> socket.socket:
    """A connection to the TCP port on the loopback interface of the namespace at that path.

    keeper: the process in whose mount namespace the path means something, without root; then a process of its own makes the
    connection. Else the calling thread is in the namespace for a moment. Raises OSError, TestbedError.
    """
    if keeper:
        return _handed_over(command(namespace, port, keeper))
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(there, syscalls.CLONE_NEWNET)
            return socket.create_connection(("127.0.0.1", port))
        finally:
            os.close(there)
            syscalls.setns(here, syscalls.CLONE_NEWNET)
    finally:
        os.close(here)


def command(namespace: str, port: int, keeper: int) -> list[str]:
    """What makes the connection as a program."""
    return [sys.executable, "-P", "-m", __name__, namespace, str(port), str(keeper)]


def _handed_over(program: list[str]) -> socket.socket:
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


def pass_on(connection: socket.socket, source: int, target: int) -> None:
    """Pass bytes on between a connection and two descriptors, until the other end of the connection has no more, or nobody
    reads the target."""
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    ready.register(source, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor == source:
                data = os.read(source, _PIECE)
                if data:
                    connection.sendall(data)
                else:
                    ready.unregister(source)
                    connection.shutdown(socket.SHUT_WR)
                continue
            data = connection.recv(_PIECE)
            if not data:
                return
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(target, rest) :]


def _main(namespace: str, port: str, keeper: str) -> None:
    try:
        if int(keeper):
            enter_keeper(int(keeper))
        connection = reach(namespace, int(port))
    except OSError as error:
        sys.exit(f"port {port} of the node cannot be reached: {error.strerror}")
    with connection:
        if stat.S_ISSOCK(os.fstat(1).st_mode):
            with socket.socket(fileno=os.dup(1)) as asker:
                socket.send_fds(asker, [b"\0"], [connection.fileno()])
            return
        try:
            pass_on(connection, 0, 1)
        except (BrokenPipeError, ConnectionResetError):  # one of the two ends has had enough
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
