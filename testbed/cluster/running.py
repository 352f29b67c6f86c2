"""A cluster that is up, as a Python program sees it: nodes by name, programs in them, and its end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from testbed.cluster import injecting, programs, removal
from testbed.cluster.paths import RoundTrip, round_trip
from testbed.cluster.programs import CommandError, CommandTimeoutError
from testbed.cluster.state import State, Store
from testbed.spec.layout import Node

if TYPE_CHECKING:
    from testbed.machines.connections import Connection, Group
    from testbed.observe.capturing import Capture
    from testbed.spec.elements import ImpairmentKeys


class RunningNode:
    """A node of a cluster that is up."""

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

    @property
    def connection(self) -> Connection:
        """A Fabric connection to the node, by ssh; the node gets an sshd when it is first asked for::

            cluster["n1"].connection.run("hostname")

        It closes with the cluster, or by its own `close`, and opens again when it is used. As root. Raises what
        `secure_shell.ensure` does.
        """
        if self._connection is None:
            from testbed.cluster import secure_shell

            secure_shell.ensure(self._store, self._state.name, [self.name])
            self._connection = secure_shell.connect(self._store, self._state, self.name)
        return self._connection

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()


class Fault:
    """Something injected. It ends with `lift`, with the ``with`` block, with ``heal``, or by itself after its time."""

    def __init__(self, store: Store, cluster: str, number: int, what: str) -> None:
        self._store = store
        self._cluster = cluster
        self._number = number
        self._what = what

    def __repr__(self) -> str:
        return f"<fault {self._number}: {self._what}>"

    def lift(self) -> None:
        """Take it out of force; nothing happens if it is so already."""
        state = self._store.read(self._cluster)
        if state is not None and any(injection.number == self._number for injection in state.injected):
            injecting.heal(self._store, self._cluster, [self._number])

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lift()


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
        """What is known of the cluster now: its layout, its namespaces, its owner, what is injected."""
        return self._store.read(self.name) or self._state

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

    def inject(
        self,
        target: str,
        *,
        direction: str = "",
        replay: str | Path = "",
        seconds: float = 0,
        **impairments: Unpack[ImpairmentKeys],
    ) -> Fault:
        """Impair links while they run; only what is named is set::

            with cluster.inject("n1", loss="5%", delay="2ms"):
                ...
            cluster.inject("n1--s1", direction="n1-s1", rules=["drop udp and nth(3)"])

        target: a node or switch (all its links), a link, or "all". direction: "out" of the node or "in", "a-b" by the
        ends' names; both if not said. replay: a log of fates that decides instead of chance. seconds: after which it
        heals by itself. When this returns, the first frame offered sees it. Raises NotFoundError, DescriptionError,
        RuleError, UnsupportedError.
        """
        from testbed.spec.elements import Impairments  # parses; most programs never inject

        keys = Impairments(**impairments).said()
        rules = keys.pop("rules", ())
        return self._fault(
            injecting.inject(
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
        """Take links down, as if their cables were pulled; target as for `inject`."""
        return self._fault(injecting.cut(self._store, self.name, target, seconds))

    def partition(self, *groups: Sequence[str], seconds: float = 0) -> Fault:
        """Let nothing pass between groups of nodes: ``cluster.partition(["n1", "n2"], ["n3"])``."""
        return self._fault(injecting.partition(self._store, self.name, groups, seconds))

    def load_processor(self, node: str, share: float, seconds: float = 0) -> Fault:
        """Use up so much of a node's processors: 0.5 is half of one."""
        return self._fault(injecting.load_processor(self._store, self.name, node, share, seconds))

    def load_link(self, senders: Sequence[str], receiver: str, rate: str | int, seconds: float = 0) -> Fault:
        """Let nodes send datagrams to another, each at this rate; without senders all others do (incast)."""
        from testbed.spec.units import parse_rate

        return self._fault(injecting.load_link(self._store, self.name, senders, receiver, parse_rate(rate), seconds))

    def heal(self) -> None:
        """Lift everything that is injected; what the description declares stays."""
        injecting.heal(self._store, self.name)

    def capture(self, target: str, path: str | Path) -> Capture:
        """Capture frames into a file of pcapng for the time of a block, with a comment at each that met a fate::

            with cluster.capture("n1", "n1.pcapng") as capture:
                ...
            assert capture.result.whole

        target: a link, a node or a switch (all its links), or "all". Raises NotFoundError, and at the beginning of the
        block TestbedError when the file cannot be written or the links cannot be heard.
        """
        from testbed.observe.capturing import Capture

        return Capture(self._store, self.name, target, path)

    def ssh(self) -> Path:
        """Have an sshd in every node, and a configuration for clients, ``ssh -F PATH n1``: its path. In the nodes themselves
        ``ssh n2`` is enough. Raises what `secure_shell.ensure` does.
        """
        from testbed.cluster import secure_shell

        return secure_shell.ensure(self._store, self.name)

    def group(self, *nodes: str, threads: bool = False) -> Group:
        """Fabric's group of the connections to these nodes, names or ``@tag``, or to all::

            cluster.group("n1", "n2").run("uptime")

        threads: they work at the same time (ThreadingGroup), else one after the other (SerialGroup). Raises NotFoundError,
        and what `RunningNode.connection` does.
        """
        from testbed.cluster import secure_shell
        from testbed.machines.connections import group
        from testbed.spec.selecting import nodes_of

        meant = nodes_of(self._state.layout, nodes or ["all"])
        secure_shell.ensure(self._store, self.name, meant)
        return group([self[name].connection for name in meant], threads=threads)

    def round_trip(self, one: str, other: str) -> RoundTrip | None:
        """What a round trip between two nodes sees of declared and injected impairments; None where there is no way."""
        return round_trip(self.state, self[one].name, self[other].name)

    def _fault(self, injected: injecting.Injected) -> Fault:
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
