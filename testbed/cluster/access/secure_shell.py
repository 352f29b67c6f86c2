"""ssh in a cluster: an sshd in every node, with keys and files that belong to the cluster and are removed with it.

    ROOT/CLUSTER/ssh/config       for ``ssh -F``, outside and in the nodes, where it is mounted as /etc/ssh/ssh_config
    ROOT/CLUSTER/ssh/known_hosts  the nodes' host key with their names and addresses
    ROOT/CLUSTER/ssh/key          the owner's private key for all nodes; host_key is the private host key of all nodes
    ROOT/CLUSTER/ssh/NODE.conf    configuration of the node's sshd; NODE.log is its log, NODE.pid its process

Connections from outside are made in the node's network namespace (`testbed.kernel.port_forwarding`), since the machine
has no interface in the cluster; connections between nodes cross the cluster's links. An sshd is a program of its node:
it ends with the cluster, and the state does not record it.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster.access import node_programs, shell_servers
from testbed.cluster.access.shell_servers import PORT, login_user
from testbed.cluster.records.state import LOCK_TIMEOUT, State, Store
from testbed.errors import ConflictError, TestbedError
from testbed.kernel.filesystem import make_directory, remove_file, replace_file, write_in_place
from testbed.kernel.port_forwarding import proxy_command
from testbed.runtime import event_log
from testbed.spec.layout import Node

if TYPE_CHECKING:
    from testbed.ssh.node_connections import Connection


def ensure(store: Store, name: str, nodes: Collection[str] = ()) -> Path:
    """Ensure that an sshd runs on these nodes of a running cluster (default: all); return the path of the client
    configuration.

    Existing keys are kept, and servers that run with the current configuration. Raises NotFoundError; UnsupportedError
    without OpenSSH or for a user without a name; ConflictError if the cluster is not up, another command is changing it, or
    another program listens on the port; TestbedError with sshd's output if it does not start.
    """
    store.choose(name)
    sshd = shell_servers.find_sshd()
    login_user()  # raises before any file is made
    with store.locked(name, LOCK_TIMEOUT):
        state = store.choose(name)
        if state.abandoned or state.phase not in ("up", "changing"):
            raise ConflictError(f"cluster {name} is not up: 'testbed status' shows the reason")
        directory = store.ssh_directory(name)
        make_directory(directory, 0o700)
        for key in ("key", "host_key"):
            if not (directory / f"{key}.pub").exists():
                _make_key(directory / key, f"{key} of cluster {name}")
        replace_file(directory / "known_hosts", _known_hosts(directory, state))
        config = directory / "config"
        write_in_place(config, _configuration(store, state, directory), 0o600)  # programs in nodes have it bind-mounted
        started = shell_servers.start(store, state, nodes or [node.name for node in state.layout.nodes], sshd)
        if started:
            event_log.record(store.directory(name), "ssh", nodes=started)
    return config


def connect(store: Store, state: State, node: str) -> Connection:
    """Make a Fabric connection to a node that has an sshd; it opens on first use."""
    from testbed.ssh.node_connections import SshAddress, connect

    directory, node_context = store.ssh_directory(state.name), node_programs.node_context(store, state, node)
    return connect(
        SshAddress(
            node,
            node_context.namespace,
            node_context.holder,
            PORT,
            login_user(),
            directory / "key",
            directory / "known_hosts",
        )
    )


def _make_key(path: Path, comment: str) -> None:
    remove_file(path)
    process = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise TestbedError(f"ssh-keygen cannot create {path}: {process.stderr.strip() or process.stdout.strip()}")


# Files of clients


def _known_hosts(directory: Path, state: State) -> str:
    kind, key = (directory / "host_key.pub").read_text().split()[:2]
    return "".join(f"{','.join(_names_and_addresses(node))} {kind} {key}\n" for node in state.layout.nodes)


def _names_and_addresses(node: Node) -> list[str]:
    """Return the node's name and its addresses."""
    return [node.name, *(address.partition("/")[0] for nic in node.nics for address in nic.addresses)]


def _configuration(store: Store, state: State, directory: Path) -> str:
    """Make the configuration of OpenSSH clients. ssh uses the first value of an option, so "Host *" comes last
    (ssh_config(5))."""
    lines = [f"# Cluster {state.name}. 'testbed ssh' overwrites this file; it is removed with the cluster."]
    is_outside = f'exec "test x$TESTBED_CLUSTER != x{state.name}"'
    for node in state.layout.nodes:
        node_context = node_programs.node_context(store, state, node.name)
        proxy = shlex.join(proxy_command(node_context.namespace, PORT, node_context.holder))
        lines += [
            f"Host {' '.join(_names_and_addresses(node))}",
            f"    User {login_user()}",
            f"    Port {PORT}",
            f"    IdentityFile {directory / 'key'}",
            f"Match originalhost {','.join(_names_and_addresses(node))} {is_outside}",
            f"    ProxyCommand {proxy.replace('%', '%%')}",
        ]
    lines += [
        "Host *",
        "    ProxyUseFdpass yes",
        "    IdentitiesOnly yes",
        "    PreferredAuthentications publickey",
        f"    UserKnownHostsFile {directory / 'known_hosts'}",
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking yes",
        "    UpdateHostKeys no",
        "    SendEnv LANG LC_*",
    ]
    return "\n".join(lines) + "\n"
