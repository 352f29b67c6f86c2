"""Secure shell in a cluster: an sshd in every node, with keys and files that are the cluster's own and end with it.

    ROOT/CLUSTER/ssh/config       for ``ssh -F``, outside and in the nodes; programs in these see it as /etc/ssh/ssh_config
    ROOT/CLUSTER/ssh/known_hosts  the cluster's host key under the nodes' names and addresses
    ROOT/CLUSTER/ssh/key          logs in to every node as the user who has the cluster; host_key is the nodes'
    ROOT/CLUSTER/ssh/NODE.conf    what sshd there was told; NODE.log, what it says; NODE.pid, which process it is

From outside the connection is made in the node's network namespace (`testbed.kernel.reaching`), for the machine has no
interface in the cluster; between nodes it crosses the cluster's links as any other. An sshd is a program of its node, and
ends with the cluster, which needs not know of it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.cluster import programs
from testbed.cluster.state import PATIENCE, State, Store
from testbed.errors import ConflictError, TestbedError, UnsupportedError
from testbed.kernel import daemons, processes
from testbed.kernel.children import in_child
from testbed.kernel.entering import Surroundings, enter
from testbed.kernel.files import make_directory, replace_file, write_in_place
from testbed.kernel.processes import Identity
from testbed.kernel.signals import default_for_programs
from testbed.kernel.userns import is_root
from testbed.runtime import events
from testbed.spec.layout import Node

if TYPE_CHECKING:
    from testbed.machines.connections import Connection

PORT: Final = 22

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LISTENS: Final = "0A"  # a state in /proc/net/tcp
_BEGIN: Final = 10.0  # s that sshd gets until it listens
_LOOK: Final = 0.002  # s between two looks
_SEPARATION: Final = "/run/sshd"  # where sshd locks up the part of itself that talks to strangers; without it, it ends
_LOGINS: Final = ("/run/utmp", "/var/log/wtmp", "/var/log/lastlog")  # sshd writes sessions with a terminal there


def ensure(store: Store, name: str, nodes: Collection[str] = ()) -> Path:
    """Have an sshd in these nodes of a cluster that is up, if not said in all, and the configuration for clients; the path
    of that. What there is already stays.

    Raises NotFoundError, UnsupportedError without root or OpenSSH, ConflictError where something else listens on the port,
    TestbedError with what sshd has said when it does not begin.
    """
    state = store.choose(name)
    if not is_root():
        raise UnsupportedError(
            "ssh into nodes needs root: sshd becomes another user before it trusts anybody, and in a user namespace without "
            f"root there is one user only; 'testbed exec --name {name} NODE -- COMMAND' works there"
        )
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if sshd is None or not shutil.which("ssh-keygen"):
        raise UnsupportedError("there is no OpenSSH server here: install Debian's openssh-server, or what has sshd")
    with store.locked(name, PATIENCE):
        state = store.choose(name)
        if state.abandoned or state.phase not in ("up", "changing"):
            raise ConflictError(f"cluster {name} is not up: 'testbed status' says what is the matter")
        place = store.ssh(name)
        make_directory(place, 0o700)
        for key in ("key", "host_key"):
            if not (place / f"{key}.pub").exists():
                _make_key(place / key, f"{key} of cluster {name}")
        replace_file(place / "known_hosts", _known_hosts(place, state))
        config = place / "config"
        config.touch(0o600)
        write_in_place(config, _configuration(place, state))  # programs in nodes have it bound
        began = _begin(store, state, nodes or [node.name for node in state.layout.nodes], place, sshd)
        if began:
            events.record(store.directory(name), "ssh", nodes=began)
    return config


def connect(store: Store, state: State, node: str) -> Connection:
    """A Fabric connection to a node that has its sshd; it opens when it is first used."""
    from testbed.machines.connections import Door, connect

    place = store.ssh(state.name)
    return connect(Door(node, state.namespaces[node], PORT, _user(), place / "key", place / "known_hosts"))


def _user() -> str:
    """Who logs in: whoever has the clusters."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _make_key(path: Path, comment: str) -> None:
    path.unlink(missing_ok=True)
    done = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TestbedError(f"{path} cannot be made: {done.stderr.strip() or done.stdout.strip()}")


# What clients read


def _known_hosts(place: Path, state: State) -> str:
    kind, key = (place / "host_key.pub").read_text().split()[:2]
    return "".join(f"{','.join(_names(node))} {kind} {key}\n" for node in state.layout.nodes)


def _names(node: Node) -> list[str]:
    """How a node may be called."""
    return [node.name, *(address.partition("/")[0] for nic in node.nics for address in nic.addresses)]


def _configuration(place: Path, state: State) -> str:
    """For OpenSSH's clients and what reads their files. The first value of a key counts."""
    lines = [f"# Cluster {state.name}, by testbed: it is written anew by 'testbed ssh', and ends with the cluster."]
    outside = f'exec "test x$TESTBED_CLUSTER != x{state.name}"'
    for node in state.layout.nodes:
        command = [sys.executable, "-P", "-m", "testbed.kernel.reaching", state.namespaces[node.name], str(PORT)]
        lines += [
            f"Host {' '.join(_names(node))}",
            f"    User {_user()}",
            f"    Port {PORT}",
            f"    IdentityFile {place / 'key'}",
            f"Match originalhost {','.join(_names(node))} {outside}",
            f"    ProxyCommand {shlex.join(command).replace('%', '%%')}",
        ]
    lines += [
        "Host *",
        "    ProxyUseFdpass yes",
        "    IdentitiesOnly yes",
        "    PreferredAuthentications publickey",
        f"    UserKnownHostsFile {place / 'known_hosts'}",
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking yes",
        "    UpdateHostKeys no",
        "    SendEnv LANG LC_*",
    ]
    return "\n".join(lines) + "\n"


# The servers


def _begin(store: Store, state: State, nodes: Collection[str], place: Path, sshd: str) -> list[str]:
    """Start sshd where none runs as it should; the nodes where it has begun."""
    wanted: dict[str, Callable[[], Identity]] = {}
    for node in [programs.node_of(state, name) for name in nodes]:
        surroundings = programs.surroundings(store, state, node.name)
        text = _server(place, node, surroundings.environment)
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
    begun = in_child(partial(_started, place, wanted))
    deadline = time.monotonic() + _BEGIN
    for name, identity in begun.items():
        _await_listening(identity, deadline, name, place / f"{name}.log")
    return list(begun)


def _started(place: Path, wanted: Mapping[str, Callable[[], Identity]]) -> dict[str, Identity]:
    begun = {}
    for name, start in wanted.items():
        begun[name] = start()
        replace_file(place / f"{name}.pid", str(begun[name]))
    return begun


def _server(place: Path, node: Node, environment: Mapping[str, str]) -> str:
    """For sshd in a node."""
    return "\n".join(
        [
            f"Port {PORT}",
            f"HostKey {place / 'host_key'}",
            f"AuthorizedKeysFile {place / 'key.pub'}",
            f"AllowUsers {_user()}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",  # its modules would tell the machine of sessions
            "UseDNS no",
            "PidFile none",
            "PrintMotd no",
            "PrintLastLog no",
            "MaxStartups 256",
            "MaxSessions 256",
            "AcceptEnv LANG LC_*",
            "Subsystem sftp internal-sftp",
            f"SetEnv {' '.join(_variables(node, environment))}",
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
    files = {path: Path("/dev/null") for path in _LOGINS if os.path.exists(path) or path.endswith("lastlog")}
    with contextlib.suppress(FileNotFoundError):
        given = surroundings.files.get("/etc/shadow", Path("/etc/shadow"))
        shadow = given.read_text()
        if (opened := _opened(shadow)) != shadow:
            own = place / f"{node.name}.shadow"
            replace_file(own, opened)
            files["/etc/shadow"] = own
    return replace(surroundings, files={**surroundings.files, **files}, directories=(_SEPARATION,))


def _opened(shadow: str) -> str:
    """sshd refuses a user whose password is locked, though a key is asked for; on many machines root's is."""
    lines = shadow.splitlines(keepends=True)
    locked = f"{_user()}:!"
    return "".join(f"{_user()}:*:{line.split(':', 2)[2]}" if line.startswith(locked) else line for line in lines)


def _starter(sshd: str, place: Path, node: Node, surroundings: Surroundings) -> Callable[[], Identity]:
    command = [sshd, "-D", "-e", "-f", str(place / f"{node.name}.conf")]

    def prepare() -> None:
        enter(surroundings)
        if _is_listening("self"):
            raise ConflictError(f"something else listens on port {PORT} of node {node.name}")

    def become() -> None:
        default_for_programs()
        os.execve(sshd, command, programs.environment(surroundings))

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
    while not _is_listening(str(identity.pid)):
        if not identity.alive or time.monotonic() > deadline:
            said = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise TestbedError("\n".join([f"sshd on node {node} does not begin:", *said]))
        time.sleep(_LOOK)


def _is_listening(pid: str) -> bool:
    """Whether anything in a process's network namespace listens on the port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == PORT:
                    return True
    return False
