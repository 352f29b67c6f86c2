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

import shlex
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster import programs, shell_servers
from testbed.cluster.shell_servers import PORT, user
from testbed.cluster.state import PATIENCE, State, Store
from testbed.errors import ConflictError, TestbedError
from testbed.kernel.files import make_directory, remove_file, replace_file, write_in_place
from testbed.kernel.reaching import command
from testbed.runtime import events
from testbed.spec.layout import Node

if TYPE_CHECKING:
    from testbed.machines.connections import Connection


def ensure(store: Store, name: str, nodes: Collection[str] = ()) -> Path:
    """Have an sshd in these nodes of a cluster that is up, if not said in all, and the configuration for clients; the path
    of that. What there is already stays.

    Raises NotFoundError, UnsupportedError without OpenSSH or for a user without a name, ConflictError where something else
    listens on the port, TestbedError with what sshd has said when it does not begin.
    """
    store.choose(name)
    sshd, _ = shell_servers.program(), user()
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
        write_in_place(config, _configuration(store, state, place))  # programs in nodes have it bound
        began = shell_servers.begin(store, state, nodes or [node.name for node in state.layout.nodes], sshd)
        if began:
            events.record(store.directory(name), "ssh", nodes=began)
    return config


def connect(store: Store, state: State, node: str) -> Connection:
    """A Fabric connection to a node that has its sshd; it opens when it is first used."""
    from testbed.machines.connections import Door, connect

    place, there = store.ssh(state.name), programs.surroundings(store, state, node)
    return connect(Door(node, there.namespace, there.keeper, PORT, user(), place / "key", place / "known_hosts"))


def _make_key(path: Path, comment: str) -> None:
    remove_file(path)
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


def _configuration(store: Store, state: State, place: Path) -> str:
    """For OpenSSH's clients and what reads their files. The first value of a key counts."""
    lines = [f"# Cluster {state.name}, by testbed: it is written anew by 'testbed ssh', and ends with the cluster."]
    outside = f'exec "test x$TESTBED_CLUSTER != x{state.name}"'
    for node in state.layout.nodes:
        there = programs.surroundings(store, state, node.name)
        lines += [
            f"Host {' '.join(_names(node))}",
            f"    User {user()}",
            f"    Port {PORT}",
            f"    IdentityFile {place / 'key'}",
            f"Match originalhost {','.join(_names(node))} {outside}",
            f"    ProxyCommand {shlex.join(command(there.namespace, PORT, there.keeper)).replace('%', '%%')}",
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
