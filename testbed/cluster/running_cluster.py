"""Running clusters for Python programs: nodes, the programs in them, fault injection and teardown."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from testbed.cluster import removal
from testbed.cluster.access import node_programs
from testbed.cluster.access.node_programs import CommandError, CommandTimeoutError
from testbed.cluster.faults import fault_injection
from testbed.cluster.records.paths import RoundTrip, round_trip
from testbed.cluster.records.state import State, Store
from testbed.errors import NotFoundError
from testbed.kernel import processes
from testbed.spec.layout import Node
from testbed.spec.selection import nodes_of
from testbed.spec.units import parse_rate

if TYPE_CHECKING:
    from testbed.observe.sniff.capture import Capture
    from testbed.spec.elements import ImpairmentKeys
    from testbed.ssh.node_connections import Connection, Group


class RunningNode:
    """A node of a running cluster."""

    def __init__(self, store: Store, state: State, node: Node) -> None:
        self._store = store
        self._state = state
        self._node = node
        self._connection: Connection | None = None

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
        """The address to which the node's name resolves, without prefix length; empty if the node has none."""
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
        """Run a program in the node and wait for it to end; ``.stdout`` and ``.stderr`` hold its output as text.

        command: the program and its arguments (no shell). timeout: seconds; None: no limit. input: text for standard
        input, which is empty by default. env: variables added to this process's and the node's. check: raise
        CommandError on a non-zero exit code. Raises CommandTimeoutError on timeout, after killing the program and all that
        it has started. If the program ends by itself, its background processes run until the cluster ends.
        """
        __tracebackhide__ = True
        node_programs.check_command(command)
        process = node_programs.start(
            node_programs.node_context(self._store, self._state, self.name),
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            group=True,
        )
        with process:
            try:
                stdout, stderr = process.communicate(input, timeout)
            except subprocess.TimeoutExpired as error:
                processes.end_session(process.pid)
                raise CommandTimeoutError(
                    f"{self.name}: {' '.join(command)} was still running after {timeout:g} s and has been killed",
                    (error.stdout or b"").decode(errors="replace"),  # bytes even with text=True
                    (error.stderr or b"").decode(errors="replace"),
                ) from error
            except BaseException:
                processes.end_session(process.pid)
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
        """Start a program in the node without waiting for it. It ends no later than the cluster. For arguments see `run` and
        `subprocess.Popen`."""
        __tracebackhide__ = True
        node_programs.check_command(command)
        node_context = node_programs.node_context(self._store, self._state, self.name)
        return node_programs.start(node_context, command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)

    @property
    def connection(self) -> Connection:
        """A Fabric connection to the node over ssh; the first access starts an sshd in the node::

            cluster["n1"].connection.run("hostname")

        The connection closes with the cluster or by its `close`, and reopens on use. Needs root. Raises the errors of
        `secure_shell.ensure`.
        """
        if self._connection is None:
            from testbed.cluster.access import secure_shell

            secure_shell.ensure(self._store, self._state.name, [self.name])
            self._connection = secure_shell.connect(self._store, self._state, self.name)
        return self._connection

    def disconnect(self) -> None:
        """Close the connection, if one is open."""
        if self._connection is not None:
            self._connection.close()


class Fault:
    """An injected fault. It ends with `lift`, the ``with`` block, `RunningCluster.heal`, or when its time is over."""

    def __init__(self, store: Store, cluster: str, number: int, what: str) -> None:
        self._store = store
        self._cluster = cluster
        self._number = number
        self._what = what

    def __repr__(self) -> str:
        return f"<fault {self._number}: {self._what}>"

    def lift(self) -> None:
        """Lift the fault; do nothing if it is no longer in force, or the cluster has ended."""
        with suppress(NotFoundError):
            fault_injection.heal(self._store, self._cluster, [self._number])

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lift()


class RunningCluster:
    """A running cluster. As a context manager, it is taken down at the end of the block."""

    def __init__(self, store: Store, state: State) -> None:
        self._store = store
        self._state = state
        self._nodes = {node.name: RunningNode(store, state, node) for node in state.layout.nodes}

    @classmethod
    def attach(cls, name: str | None = None) -> RunningCluster:
        """Attach to a running cluster. name: None: the only cluster, or the only one that stays until it is taken down.
        Raises NotFoundError, and the errors of `Store.read`."""
        store = Store()
        return cls(store, store.choose(name))

    def __repr__(self) -> str:
        return f"<cluster {self.name} of {len(self._nodes)} nodes>"

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def state(self) -> State:
        """The current state, with layout, namespaces, owner and injected faults; the last known one after the cluster's
        end."""
        return self._store.read(self.name) or self._state

    @property
    def nodes(self) -> Mapping[str, RunningNode]:
        return self._nodes

    def __getitem__(self, node: str) -> RunningNode:
        """Return the node of that name. NotFoundError lists the nodes."""
        node_programs.node_of(self._state, node)
        return self._nodes[node]

    def __iter__(self) -> Iterator[RunningNode]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def inject(
        self,
        target: str,
        *,
        direction: str = "",
        replay: str | Path = "",
        seconds: float = 0,
        **impairments: Unpack[ImpairmentKeys],
    ) -> Fault:
        """Impair running links; only the given values change::

            with cluster.inject("n1", loss="5%", delay="2ms"):
                ...
            cluster.inject("n1--s1", direction="n1-s1", rules=["drop udp and nth(3)"])

        target: a node or switch (all its links), a link, or "all". direction: "out" of the node or "in", or "a-b" by
        the names of the ends; default: both. replay: a log of fates that replaces random decisions. seconds: time after
        which the fault heals by itself; 0: never. The injection applies to the first frame offered after this returns.
        Raises NotFoundError, DescriptionError, RuleError, UnsupportedError.
        """
        from testbed.spec.elements import Impairments  # parses; most programs never inject

        keys = Impairments(**impairments).explicit()
        rules = keys.pop("rules", ())
        return self._fault(
            fault_injection.inject(
                self._store,
                self.name,
                target,
                keys,
                rules=rules,
                replay=str(replay and Path(replay).absolute()),
                direction=direction,
                seconds=seconds,
            )
        )

    def cut(self, target: str, seconds: float = 0) -> Fault:
        """Take links down, as if their cables were pulled. target, seconds: as for `inject`."""
        return self._fault(fault_injection.cut(self._store, self.name, target, seconds))

    def partition(self, *groups: Sequence[str], seconds: float = 0) -> Fault:
        """Block all traffic between groups of nodes: ``cluster.partition(["n1", "n2"], ["n3"])``. seconds: as for
        `inject`."""
        return self._fault(fault_injection.partition(self._store, self.name, groups, seconds))

    def load_processor(self, node: str, share: float, seconds: float = 0) -> Fault:
        """Use up processor time on a node. share: 0.5 is half of a processor, 2 is two processors. seconds: as for
        `inject`."""
        return self._fault(fault_injection.load_processor(self._store, self.name, node, share, seconds))

    def load_link(self, senders: Sequence[str], receiver: str, rate: str | int, seconds: float = 0) -> Fault:
        """Send UDP datagrams from several nodes to one. senders: empty: all other nodes (incast). rate: of each sender, such
        as "100mbit". seconds: as for `inject`."""
        return self._fault(
            fault_injection.load_link(self._store, self.name, senders, receiver, parse_rate(rate), seconds)
        )

    def heal(self) -> None:
        """Lift all injections; the impairments in the description stay."""
        fault_injection.heal(self._store, self.name)

    def capture(self, target: str, path: str | Path) -> Capture:
        """Capture frames to a pcapng file for the duration of a block; frames with a fate carry a comment::

            with cluster.capture("n1", "n1.pcapng") as capture:
                ...
            assert capture.result.complete

        target: a link, a node or switch (all its links), or "all". Raises NotFoundError; entering the block raises
        TestbedError if the file cannot be written or the links cannot be captured.
        """
        from testbed.observe.sniff.capture import Capture

        return Capture(self._store, self.name, target, path)

    def ssh(self) -> Path:
        """Run an sshd in every node; return the path of the client configuration (``ssh -F PATH n1``).

        Inside the nodes, ``ssh n2`` is enough. Raises the errors of `secure_shell.ensure`.
        """
        from testbed.cluster.access import secure_shell

        return secure_shell.ensure(self._store, self.name)

    def group(self, *nodes: str, threads: bool = False) -> Group:
        """Make a Fabric group of connections to these nodes (names or ``@tag``), by default to all nodes::

            cluster.group("n1", "n2").run("uptime")

        threads: run in parallel (ThreadingGroup) instead of in sequence (SerialGroup). Raises NotFoundError, and
        the errors of `RunningNode.connection`.
        """
        from testbed.cluster.access import secure_shell
        from testbed.ssh.node_connections import group

        names = nodes_of(self._state.layout, nodes or ["all"])
        secure_shell.ensure(self._store, self.name, names)
        return group([self[name].connection for name in names], threads=threads)

    def round_trip(self, source: str, destination: str) -> RoundTrip | None:
        """Sum up the declared and injected impairments of a round trip between two nodes; None if no path connects
        them."""
        return round_trip(self.state, self[source].name, self[destination].name)

    def _fault(self, injected: fault_injection.Injected) -> Fault:
        return Fault(self._store, self.name, injected.injection.number, injected.injection.what)

    def down(self, grace: float = removal.GRACE) -> None:
        """End all programs in the nodes (SIGTERM, then SIGKILL after `grace` seconds) and remove the cluster."""
        for node in self:
            node.disconnect()
        removal.down(self._store, self.name, grace)

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
