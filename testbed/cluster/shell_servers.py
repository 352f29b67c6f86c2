"""The sshd's of a cluster's nodes: what each is told, what it sees, its start, and finding it again.

As root an sshd sees a few files and directories of its own, so that it needs nothing of the machine's and writes nothing
there. Without root it runs as the user himself, in a user namespace below the cluster's, where he has the number that he has
outside and no power over the node: as root it would become another user before it trusts anybody, and there is none.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from testbed.cluster import programs
from testbed.cluster.state import State, Store
from testbed.errors import ConflictError, TestbedError, UnsupportedError
from testbed.kernel import daemons, processes, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.entering import Surroundings, enter
from testbed.kernel.files import replace_file, write_setting
from testbed.kernel.ports import open_ports
from testbed.kernel.processes import Identity
from testbed.kernel.signals import default_for_programs
from testbed.kernel.userns import become_oneself
from testbed.spec.layout import Node

PORT: Final = 22

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BEGIN: Final = 10.0  # s that sshd gets until it listens
_LOOK: Final = 0.002  # s between two looks
_SEPARATION: Final = "/run/sshd"  # where sshd locks up the part of itself that talks to strangers; without it, it ends
_FIRST_PORT: Final = "/proc/sys/net/ipv4/ip_unprivileged_port_start"  # the node's own, as all below net/ipv4
_LOGINS: Final = ("/run/utmp", "/var/log/wtmp", "/var/log/lastlog")  # sshd writes sessions with a terminal there


def user() -> str:
    """Who logs in: whoever has the clusters. UnsupportedError for one who has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise UnsupportedError(
            f"user {os.geteuid()} has no name on this machine: sshd lets in nobody without"
        ) from error


def program() -> str:
    """The path of sshd, which wants to be called by it. UnsupportedError where there is no OpenSSH."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None or not shutil.which("ssh-keygen"):
        raise UnsupportedError("there is no OpenSSH server here: install Debian's openssh-server, or what has sshd")
    return os.path.abspath(found)


def begin(store: Store, state: State, nodes: Collection[str], sshd: str) -> list[str]:
    """Start sshd in these nodes, where none runs as it should; those where it has begun. The cluster's lock must be held,
    and the keys be there. Raises what `secure_shell.ensure` does."""
    place = store.ssh(state.name)
    wanted: dict[str, Callable[[], Identity]] = {}
    for node in [programs.node_of(state, name) for name in nodes]:
        surroundings = programs.surroundings(store, state, node.name)
        text = _server(place, node, surroundings)
        file = place / f"{node.name}.conf"
        there = _running(place, state, node)
        if there is not None and file.exists() and file.read_text() == text:
            continue
        if there is not None:
            processes.end(there)  # its sessions go on
        replace_file(file, text)
        wanted[node.name] = _starter(sshd, place, node, _own(place, node, surroundings))
    if not wanted:
        return []
    # In a child: when they end they are nobody's to wait for.
    begun = in_child(lambda: {name: start() for name, start in wanted.items()})
    deadline = time.monotonic() + _BEGIN
    for name, identity in begun.items():
        _await_listening(identity, deadline, name, place / f"{name}.log")
    return list(begun)


def _server(place: Path, node: Node, surroundings: Surroundings) -> str:
    """For sshd in a node."""
    return "\n".join(
        [
            f"Port {PORT}",
            f"HostKey {place / 'host_key'}",
            f"AuthorizedKeysFile {place / 'key.pub'}",
            f"AllowUsers {user()}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",  # its modules would tell the machine of sessions
            f"StrictModes {'no' if surroundings.keeper else 'yes'}",  # /tmp, where a user's clusters may be, is everybody's
            "UseDNS no",
            "PidFile none",
            "PrintMotd no",
            "PrintLastLog no",
            "MaxStartups 256",
            "MaxSessions 256",
            "AcceptEnv LANG LC_*",
            "Subsystem sftp internal-sftp",
            f"SetEnv {' '.join(_variables(node, surroundings.environment))}",
            "",
        ]
    )


def _variables(node: Node, environment: Mapping[str, str]) -> Iterator[str]:
    """What a session has beside the usual: the node's own variables, and this Python and `testbed` on its path."""
    for name, value in {"PATH": f"{Path(sys.executable).parent}:{_PATH}", **environment}.items():
        if "\n" in value:
            raise UnsupportedError(f"sshd cannot give sessions on {node.name} the variable {name}: it has a line break")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        yield f'"{name}={quoted}"'


def _own(place: Path, node: Node, surroundings: Surroundings) -> Surroundings:
    """What sshd sees of its own, so that it changes nothing of the machine's, and needs nothing of it."""
    files = dict(surroundings.files)

    def altered(path: str, alter: Callable[[str], str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            text = files.get(path, Path(path)).read_text()
            if (ours := alter(text)) != text:
                files[path] = place / f"{node.name}.{Path(path).name}"
                replace_file(files[path], ours)

    if surroundings.keeper:
        altered("/etc/group", _own_tty)
        return replace(surroundings, files=files)
    altered("/etc/shadow", _opened)
    files |= {path: Path("/dev/null") for path in _LOGINS if os.path.exists(path) or path.endswith("lastlog")}
    return replace(surroundings, files=files, directories=(_SEPARATION,))


def _own_tty(groups: str) -> str:
    """sshd gives a terminal to the group of that name, or ends, and an ordinary user has his own to give to."""
    lines = groups.splitlines(keepends=True)
    return "".join(f"tty:x:{os.getegid()}:\n" if line.startswith("tty:") else line for line in lines)


def _opened(shadow: str) -> str:
    """sshd refuses a user whose password is locked, though a key is asked for; on many machines root's is."""
    lines = shadow.splitlines(keepends=True)
    locked = f"{user()}:!"
    return "".join(f"{user()}:*:{line.split(':', 2)[2]}" if line.startswith(locked) else line for line in lines)


def _starter(sshd: str, place: Path, node: Node, surroundings: Surroundings) -> Callable[[], Identity]:
    calling = [sshd, "-D", "-e", "-f", str(place / f"{node.name}.conf")]
    user, group = os.geteuid(), os.getegid()

    def prepare() -> None:
        syscalls.end_with_parent(signal.SIGKILL)  # until it is known who we are
        enter(surroundings)
        if PORT in open_ports("self", "tcp"):
            raise ConflictError(f"something else listens on port {PORT} of node {node.name}")
        replace_file(place / f"{node.name}.pid", str(processes.identity()))
        syscalls.end_with_parent(0)
        if surroundings.keeper:
            write_setting(_FIRST_PORT, str(PORT))
            become_oneself(user, group)

    def become() -> None:
        default_for_programs()
        os.execve(sshd, calling, programs.environment(surroundings))

    return lambda: daemons.start("testbed-sshd", (), prepare, become, str(place / f"{node.name}.log"))


def _running(place: Path, state: State, node: Node) -> Identity | None:
    """The sshd of a node, if it runs there."""
    try:
        identity = Identity.parse((place / f"{node.name}.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None
    here = identity.alive and processes.network_namespace_of(identity.pid) == state.inodes.get(node.name)
    return identity if here else None


def _await_listening(identity: Identity, deadline: float, node: str, log: Path) -> None:
    while PORT not in open_ports(identity.pid, "tcp"):
        if not identity.alive or time.monotonic() > deadline:
            said = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise TestbedError("\n".join([f"sshd on node {node} does not begin:", *said]))
        time.sleep(_LOOK)
