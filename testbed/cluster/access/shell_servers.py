"""The sshd of each node: configuration, environment, start, and detection of a running one.

As root, an sshd has private versions of some files and directories, so that it neither depends on nor changes the machine's.
Without root, it runs as the user in a child of the cluster's user namespace, in which the user has the same uid as outside
and no privileges in the node: as root of the cluster's namespace, sshd would switch to an unprivileged user before
authentication, and that namespace maps no other user.
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

from testbed.cluster.access import node_programs
from testbed.cluster.records.state import State, Store
from testbed.errors import ConflictError, TestbedError, UnsupportedError
from testbed.kernel import daemons, processes, syscalls
from testbed.kernel.children import in_child, restore_signals
from testbed.kernel.filesystem import replace_file, write_setting
from testbed.kernel.processes import Identity, open_ports
from testbed.kernel.setns import NodeContext, enter
from testbed.kernel.userns import become_user
from testbed.spec.layout import Node

PORT: Final = 22

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_TIMEOUT: Final = 10.0  # s within which sshd must listen
_POLL_INTERVAL: Final = 0.002  # s
_PRIVSEP_DIRECTORY: Final = "/run/sshd"  # for sshd's privilege separation; must exist
_UNPRIVILEGED_PORT_START: Final = "/proc/sys/net/ipv4/ip_unprivileged_port_start"  # of the node's network namespace
_LOGIN_RECORDS: Final = ("/run/utmp", "/var/log/wtmp", "/var/log/lastlog")  # sshd records terminal sessions there


def login_user() -> str:
    """Return the user who logs in: the owner of the clusters. UnsupportedError if the uid has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise UnsupportedError(f"user {os.geteuid()} has no name on this machine, which sshd requires") from error


def find_sshd() -> str:
    """Return the absolute path of sshd, which sshd requires as its argv[0]. UnsupportedError without OpenSSH."""
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if sshd is None or not shutil.which("ssh-keygen"):
        raise UnsupportedError(
            "no OpenSSH server is installed: install a package with sshd, such as Debian's openssh-server"
        )
    return os.path.abspath(sshd)


def start(store: Store, state: State, nodes: Collection[str], sshd: str) -> list[str]:
    """Start sshd on these nodes, unless one runs with the current configuration, and wait until all of them listen; return
    the names of the nodes on which it was started. sshd: path of the program.

    The cluster's lock must be held, and the keys must exist. Raises the errors of `secure_shell.ensure`.
    """
    directory = store.ssh_directory(state.name)
    starters: dict[str, Callable[[], Identity]] = {}
    deadline = time.monotonic() + _START_TIMEOUT
    for node in [node_programs.node_of(state, name) for name in nodes]:
        node_context = node_programs.node_context(store, state, node.name)
        configuration = _configuration(directory, node, node_context)
        path = directory / f"{node.name}.conf"
        running = _running_sshd(directory, state, node)
        if running is not None:
            # If the command that started it was killed, it may not listen yet, or may have failed.
            if path.exists() and path.read_text() == configuration and _wait_until_listening(running, deadline):
                continue
            processes.end(running)  # its sessions are other processes and continue
        replace_file(path, configuration)
        starters[node.name] = _starter(sshd, directory, node, _with_private_files(directory, node, node_context))
    # In a child process: sshd is then reparented, and this process need not wait for it.
    started = in_child(lambda: {name: starter() for name, starter in starters.items()}) if starters else {}
    deadline = time.monotonic() + _START_TIMEOUT
    for name, identity in started.items():
        if not _wait_until_listening(identity, deadline):
            last_lines = (directory / f"{name}.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise TestbedError("\n".join([f"sshd on node {name} did not start:", *last_lines]))
    return list(started)


def _configuration(directory: Path, node: Node, node_context: NodeContext) -> str:
    """Make the sshd configuration of a node."""
    return "\n".join(
        [
            f"Port {PORT}",
            f"HostKey {directory / 'host_key'}",
            f"AuthorizedKeysFile {directory / 'key.pub'}",
            f"AllowUsers {login_user()}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",  # PAM modules would register sessions on the machine
            "StrictModes no",  # the store checks its directory; sshd refuses parents such as /tmp, sticky or not
            "UseDNS no",
            "PidFile none",
            "PrintMotd no",
            "PrintLastLog no",
            "MaxStartups 256",
            "MaxSessions 256",
            "AcceptEnv LANG LC_*",
            "Subsystem sftp internal-sftp",
            f"SetEnv {' '.join(_variables(node, node_context.environment))}",
            "",
        ]
    )


def _variables(node: Node, environment: Mapping[str, str]) -> Iterator[str]:
    """Format the additional variables of a session: the node's, and a PATH that contains this Python and `testbed`."""
    for name, value in {"PATH": f"{Path(sys.executable).parent}:{_PATH}", **environment}.items():
        if "\n" in value:
            raise UnsupportedError(f"sshd cannot give sessions on {node.name} the variable {name}: it has a line break")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        yield f'"{name}={quoted}"'


def _with_private_files(directory: Path, node: Node, node_context: NodeContext) -> NodeContext:
    """Return the node's context with private versions of system files, so that sshd neither changes nor depends on the
    machine's."""
    files = dict(node_context.files)

    def replace_by(path: str, alter: Callable[[str], str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            text = Path(files.get(path, path)).read_text()
            if (altered_text := alter(text)) != text:
                private = directory / f"{node.name}.{Path(path).name}"
                replace_file(private, altered_text)
                files[path] = str(private)

    if node_context.holder:
        replace_by("/etc/group", _with_own_tty)
        return replace(node_context, files=files)
    replace_by("/etc/shadow", _with_unlocked_user)
    files |= {path: "/dev/null" for path in _LOGIN_RECORDS if os.path.exists(path) or path.endswith("lastlog")}
    return replace(node_context, files=files, directories=(_PRIVSEP_DIRECTORY,))


def _with_own_tty(groups: str) -> str:
    """Map the group tty to the user's group: sshd must be able to change the group of terminals to tty."""
    lines = groups.splitlines(keepends=True)
    return "".join(f"tty:x:{os.getegid()}:\n" if line.startswith("tty:") else line for line in lines)


def _with_unlocked_user(shadow: str) -> str:
    """Unlock the user's password: sshd refuses locked users even with a key, and root is locked on many machines."""
    lines = shadow.splitlines(keepends=True)
    locked = f"{login_user()}:!"
    return "".join(f"{login_user()}:*:{line.split(':', 2)[2]}" if line.startswith(locked) else line for line in lines)


def _starter(sshd: str, directory: Path, node: Node, node_context: NodeContext) -> Callable[[], Identity]:
    """Return a function that starts a node's sshd and returns its identity."""
    command = [sshd, "-D", "-e", "-f", str(directory / f"{node.name}.conf")]
    user, group = os.geteuid(), os.getegid()

    def prepare() -> None:
        syscalls.end_with_parent(signal.SIGKILL)  # until `_running_sshd` can find it by its pid file
        enter(node_context)
        if PORT in open_ports("self", "tcp"):
            raise ConflictError(f"another program listens on port {PORT} of node {node.name}")
        replace_file(directory / f"{node.name}.pid", str(processes.identity()))
        syscalls.end_with_parent(0)
        if node_context.holder:
            write_setting(_UNPRIVILEGED_PORT_START, str(PORT))
            become_user(user, group)

    def execute() -> None:
        restore_signals()
        os.execve(sshd, command, node_programs.environment(node_context))

    return lambda: daemons.start("testbed-sshd", (), prepare, execute, str(directory / f"{node.name}.log"))


def _running_sshd(directory: Path, state: State, node: Node) -> Identity | None:
    """Return the running sshd of a node, if any."""
    try:
        identity = Identity.parse((directory / f"{node.name}.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None
    is_inside = identity.is_alive and processes.network_namespace_of(identity.pid) == state.inodes.get(node.name)
    return identity if is_inside else None


def _wait_until_listening(identity: Identity, deadline: float) -> bool:
    """Wait until an sshd listens; False if it ends before, or does not listen by the deadline (`time.monotonic`)."""
    while PORT not in open_ports(identity.pid, "tcp"):
        if not identity.is_alive or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL)
    return True
