"""A cluster that is up, as a Python program sees it: nodes by name, programs in them, and its end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from testbed.cluster import programs, removal
from testbed.cluster.programs import CommandError, CommandTimeoutError
from testbed.cluster.state import State, Store
from testbed.spec.layout import Node


class RunningNode:
    """A node of a cluster that is up."""

    def __init__(self, store: Store, state: State, node: Node) -> None:
        self._store = store
        self._state = state
        self._node = node

    def __repr__(self) -> str:
        return f"<node {self.name} of {self._state.name}>"

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def layout(self) -> Node:
        """The node with its NICs, MACs, addresses and routes."""
        return self._node

    @property
    def address(self) -> str:
        """The address that the node's name resolves to, without prefix length; empty if it has none."""
        return self._node.address

    @property
    def namespace(self) -> str:
        """The path of the node's network namespace."""
        return self._state.namespaces[self.name]

    def run(
        self,
        command: Sequence[str],
        *,
        check: bool = True,
        timeout: float | None = None,
        input: str | None = None,  # noqa: A002  (subprocess.run's name)
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the node and wait for its end; its output is text in ``.stdout`` and ``.stderr``.

        command: the program and its arguments (no shell). timeout: seconds, None for no limit. input: text for its
        standard input, which is empty otherwise. env: variables beside ours and the node's own. check: raise
        CommandError when it ends with a code other than 0. CommandTimeoutError when it is still running at the timeout:
        it has been killed then.
        """
        process = self.popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                stdout, stderr = process.communicate(input, timeout)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise CommandTimeoutError(
                    f"{self.name}: {' '.join(command)} was still running after {timeout:g} s and has been killed"
                ) from error
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise CommandError(self.name, command, process.returncode, stdout, stderr)
        return subprocess.CompletedProcess(list(command), process.returncode, stdout, stderr)

    def popen(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> subprocess.Popen[str]:
        """Start a program in the node and return at once. It ends with the cluster at the latest."""
        place = programs.surroundings(self._store, self._state, self.name)
        return programs.start(place, command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


class RunningCluster:
    """A cluster that is up. As a context manager it is taken down at the end of the block."""

    def __init__(self, store: Store, state: State) -> None:
        self._store = store
        self._state = state
        self._nodes = {node.name: RunningNode(store, state, node) for node in state.layout.nodes}

    @classmethod
    def attach(cls, name: str | None = None) -> RunningCluster:
        """A cluster that is up already, by its name; without one, the only one that is up."""
        store = Store()
        return cls(store, store.choose(name))

    def __repr__(self) -> str:
        return f"<cluster {self.name} of {len(self._nodes)} nodes>"

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def state(self) -> State:
        """What is known of the cluster: its layout, its namespaces, its owner."""
        return self._state

    @property
    def nodes(self) -> Mapping[str, RunningNode]:
        return self._nodes

    def __getitem__(self, node: str) -> RunningNode:
        """The node of that name; NotFoundError says which there are."""
        programs.node_of(self._state, node)
        return self._nodes[node]

    def __iter__(self) -> Iterator[RunningNode]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def down(self, grace: float = removal.GRACE) -> None:
        """End all programs in the nodes (SIGTERM, then SIGKILL after `grace` seconds) and remove the cluster."""
        removal.down(self._store, self.name, grace)

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
