"""Programs in nodes: their environment and start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster.records.state import State, Store, directory_source, file_source
from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.kernel import cgroups
from testbed.kernel.children import restore_signals
from testbed.kernel.setns import NodeContext, enter
from testbed.spec.layout import Node
from testbed.spec.selection import elsewhere

if TYPE_CHECKING:
    import subprocess

STATE = "TESTBED_STATE"
"""Environment variable of programs in nodes with the path of the cluster's directory."""

NODE = "TESTBED_NODE"
"""Environment variable of programs in nodes with the node's name. TESTBED_CLUSTER has the cluster's."""


class CommandError(TestbedError):
    """A program in a node ended with a non-zero code. returncode: the negated number of a signal that ended
    it, as in subprocess."""

    def __init__(self, node: str, command: Sequence[str], returncode: int, stdout: str, stderr: str) -> None:
        self.node = node
        self.command = list(command)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        how = f"ended with code {returncode}" if returncode >= 0 else f"was ended by signal {-returncode}"
        output = stderr.strip() or stdout.strip()
        super().__init__(f"{node}: {' '.join(command)} {how}" + (f":\n{output}" if output else ""))


class CommandTimeoutError(TestbedError):
    """A program in a node did not end in time and was killed. stdout, stderr: its output until then."""

    def __init__(self, message: str, stdout: str = "", stderr: str = "") -> None:
        self.stdout = stdout
        self.stderr = stderr
        output = stderr.strip() or stdout.strip()
        super().__init__(message + (f":\n{output}" if output else ""))


def node_of(state: State, name: str) -> Node:
    """Return the node of that name. NotFoundError lists the nodes."""
    for node in state.layout.nodes:
        if node.name == name:
            return node
    if sentence := elsewhere(state.layout, name):
        raise NotFoundError(sentence)
    names = [node.name for node in state.layout.nodes]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise NotFoundError(f"cluster {state.name} has no node {name!r}; it has {shown}")


def node_context(store: Store, state: State, name: str) -> NodeContext:
    """Return the context of programs in a node: namespace, files, variables, CPUs, cgroup. Raises NotFoundError for an
    unknown node, or if the node's namespace does not exist."""
    node = node_of(state, name)
    path = state.namespaces.get(name, "")
    exists = state.has_namespace(name)
    if (state.end_reason or not exists) and state.name not in store.names():
        raise NotFoundError(f"cluster {state.name} has been taken down")
    if state.end_reason:
        raise NotFoundError(state.end_reason)
    if not exists:
        raise NotFoundError(
            f"node {name} of cluster {state.name} is gone: its network namespace no longer exists; "
            f"'testbed up' makes it again, 'testbed down --name {state.name}' removes the rest"
        )
    directory = store.directory(state.name)
    files = {target: str(directory / file_source(name, target)) for target in node.files}
    if (client_config := store.ssh_directory(state.name) / "config").exists():
        files.setdefault("/etc/ssh/ssh_config", str(client_config))
    return NodeContext(
        namespace=path,
        host_name=name,
        hosts=str(directory / "hosts"),
        holder=state.mount_holder.pid if state.mount_holder is not None else 0,
        files=files,
        private_directories={
            target: str(directory / directory_source(name, target)) for target in sorted(node.private_directories)
        },
        environment={STATE: str(directory), "TESTBED_CLUSTER": state.name, NODE: name, **node.environment},
        cpus=node.cpus,
        group=cgroups.group(state.name, name) if node.cpu_share or node.memory else None,
    )


def environment(node_context: NodeContext, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a program: this process's, overridden by the node's and then by `extra`."""
    return {**os.environ, **node_context.environment, **(extra or {})}


def become(node_context: NodeContext, command: Sequence[str]) -> None:
    """Replace this process with a program in the node, which inherits its terminal and standard streams.

    Returns only by raising: TestbedError if this process cannot enter the node, OSError if the program cannot be
    started.
    """
    try:
        enter(node_context)
    except OSError as error:
        raise _entry_error(node_context, error) from error
    restore_signals()
    os.execvpe(command[0], list(command), environment(node_context))


def _entry_error(node_context: NodeContext, error: OSError) -> TestbedError:
    return TestbedError(f"{node_context.host_name}: the program could not enter the node: {reason_of(error)}")


def check_command(command: Sequence[str]) -> None:
    """Raise TypeError for a command that is a string or empty."""
    __tracebackhide__ = True
    if isinstance(command, str) or not command:
        raise TypeError(
            f"a command is a list of the program and its arguments, got {command!r}; for a shell: ['sh', '-c', {command!r}]"
        )


def start(
    node_context: NodeContext,
    command: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    group: bool = False,
    terminal: bool = False,
) -> subprocess.Popen[str]:
    """Start a program in the node; for other arguments see subprocess.Popen.

    group: make it the leader of a new session, and thus of a process group. terminal: also make its standard input, which
    must be a terminal, the session's controlling terminal. Raises NotFoundError if the program or `cwd` does not exist,
    TestbedError if it cannot be run or cannot enter the node.
    """
    import fcntl
    import subprocess
    import termios

    reader, writer = os.pipe()

    def enter_or_report() -> None:
        try:
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            enter(node_context)
        except OSError as error:  # subprocess would hide the reason
            os.write(writer, str(_entry_error(node_context, error)).encode())
            raise

    try:
        return subprocess.Popen(
            list(command),
            cwd=cwd,
            env=environment(node_context, env),
            start_new_session=group or terminal,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            preexec_fn=enter_or_report,
        )
    except FileNotFoundError as error:
        raise NotFoundError(f"{node_context.host_name}: there is no program or directory {error.filename}") from error
    except PermissionError as error:
        raise TestbedError(f"{node_context.host_name}: permission denied to run {error.filename}") from error
    except OSError as error:  # such as ENOEXEC, for a script without "#!"
        raise TestbedError(
            f"{node_context.host_name}: {command[0]} cannot be run: {error.strerror or error}"
        ) from error
    except subprocess.SubprocessError as error:
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            raise TestbedError(os.read(reader, 4096).decode(errors="replace")) from error
        raise TestbedError(f"{node_context.host_name}: the program could not enter the node: {error}") from error
    finally:
        os.close(reader)
        os.close(writer)
