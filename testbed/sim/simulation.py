"""A cluster in one process, on a virtual clock: links, switches, a NIC with its agent on each node, and programs.

    with Simulation(Description.star(2, delay="5us"), emp.plug(), folder=Path("results/first")) as simulation:
        sender = simulation.spawn("n1", send_all)    # async def send_all(endpoint, node): ...
        simulation.spawn("n2", receive_all)
        simulation.run(timeout=1_000_000_000)
    print(sender.result())

A run is deterministic across processes and hash seeds.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from protocols.core.firmware import Adapter, Plug
from protocols.core.profile import IDEAL, Profile
from testbed.engine.coroutines import with_readable_stack
from testbed.engine.loop import POLL_TIME, Loop, VirtualClock
from testbed.engine.tasks import Task, Work
from testbed.engine.tracebacks import program_line
from testbed.engine.waitables import DeadlockError
from testbed.errors import NotFoundError, TestbedError, merge_equal
from testbed.fabric.interface import Fabric, Receive, discard
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fields import known_fields
from testbed.sim.network import Network
from testbed.sim.recorder import NicWatcher, Recording
from testbed.sim.sim_direction import SimDirection
from testbed.sim.sim_host import FunctionPort, PollAccounts, Prices, SimHost
from testbed.sim.sim_node import SimNode
from testbed.spec.layout import BOTH, DirectionName, End, Impairment, Layout
from testbed.spec.model import Description
from testbed.spec.placement import addresses_of, first_local_ranks, nodes_of, ranks_of
from testbed.spec.resolver import resolve

Result = TypeVar("Result")
Endpoint = TypeVar("Endpoint")
Arguments = ParamSpec("Arguments")
Program = Callable[Concatenate[Endpoint, SimNode, Arguments], Coroutine[object, object, Result]]
"""``async def program(endpoint, node, ...)``: endpoint is the protocol's host library."""

_NO_EVENT: Final = "no event is pending"
_GC_THRESHOLDS: Final = (1_000_000, 20, 20)
"""Thresholds of Python's garbage collector in `_rare_collections`. With a tenth of the first one, collections take a seventh
of a large run."""

_MAX_SENTENCES: Final = 100  # in an error message; a large cluster has thousands


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python's garbage collector run rarely: a run has many live objects and few cycles.

    A fat tree of 1,024 nodes, compiled, takes 0.91 to 1.28 s of processor time with this, 1.29 to 1.55 s with the default
    thresholds, and 1.14 to 1.25 s with those if the collector ignores the cluster's objects (`gc.freeze`). Three alternating
    turns; links that lose 1 %, 8 messages a node to random nodes.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class StalledError(TestbedError):
    """Programs have not ended, and no event is pending (`final`) or the timeout has passed. The message lists the conditions
    that they wait for. when: nanoseconds."""

    def __init__(self, message: str, when: int = 0, final: bool = False) -> None:
        super().__init__(message)
        self.when = when
        self.final = final


class Simulation:
    """A simulated run. hosts: name of the node -> computer, for nodes with a NIC; the agents are on the first NIC. nodes:
    name of the rank -> its environment; a node's only rank has the node's name. now: returns the time, ns."""

    def __init__(
        self,
        cluster: Description | Layout,
        plug: Plug,
        *,
        profile: Profile | Prices = IDEAL,
        seed: int | None = None,
        rules: RuleSet | None = None,
        files: Mapping[str, str] | None = None,
        folder: Path | None = None,
        log: Callable[[Record], object] | None = None,
        fabrics: Mapping[str, Fabric] | None = None,
    ) -> None:
        """Build the cluster.

        plug: makes the agents of NICs: the protocol. profile: costs of all nodes, or of each. seed: replaces the seed of the
        cluster. rules: the rule set for injected rules; None: no rules can be injected. files: path -> text of the files
        that impairments name. folder: folder of the capture, the fates and the trace; None: they are not written. log:
        called with every fate that is not a pass. fabrics: replace the registered fabrics, by kind of link and switch, for
        example by fabrics with other delays.
        """
        self.layout: Final = resolve(cluster) if isinstance(cluster, Description) else cluster
        prices = profile if isinstance(profile, Prices) else Prices(profile)
        self._clock = VirtualClock()
        self.loop: Final = Loop(self._clock, prices.default.poll or POLL_TIME)
        self.now: Final = self.loop.now
        self.nodes: Final[dict[str, SimNode]] = {}
        self._plug = plug
        self._files = files
        self._log = log
        self._tasks: list[Task[object]] = []
        self._programs: dict[str, list[tuple[Task[object], Callable[[], Task[object]]]]] = {}
        self._unfinished = 0  # programs that have not ended
        self._polls = PollAccounts(self.loop)
        self._nics = {node.name: End(node.name, node.nics[0].name) for node in self.layout.nodes if node.nics}
        self._recording = Recording(folder, list(self._nics.values()), self.layout) if folder is not None else None
        self.network: Final = Network(
            self.loop,
            self.layout,
            known_fields(),
            seed=self.layout.seed if seed is None else seed,
            rules=rules,
            files=files,
            recording=self._recording,
            log=self._record_fate if self._recording is not None else log,
            overrides=fabrics,
        )
        self._has_uniform_mtu = len({node.nics[0].mtu for node in self.layout.nodes if node.nics}) <= 1
        self.hosts: Final[dict[str, SimHost]] = {}
        for node in self.layout.nodes:
            if node.nics:
                out = self.network.outgoing(self._nics[node.name])
                self.hosts[node.name] = SimHost(
                    self._clock, self.loop, node, prices.of(node.name), out, prices.steering
                )
        ranks = ranks_of(self.layout)
        addresses, hosts, names = addresses_of(self.layout, ranks), first_local_ranks(ranks), nodes_of(ranks)
        routed, ordered = self.layout.source_routed_nodes(), self.layout.keeps_order()
        mtus = {node.name: node.nics[0].mtu for node in self.layout.nodes if node.nics}
        for rank in ranks:
            host = self.hosts.get(rank.node)
            if host is None:
                continue
            self.nodes[rank.name] = sim_node = SimNode(self._clock, self.loop, rank, host.cores[rank.core])
            host.ranks.append(sim_node)
            adapter = Adapter(
                rank.number,
                addresses,
                mtus[rank.node],
                pages_apart=host.profile.pages_apart,
                routed=rank.node in routed,
                ordered=ordered,
                hosts=hosts,
                names=names,
            )
            self._start(sim_node, adapter)

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the programs and complete the files."""
        self.loop.close()
        if self._recording is not None:
            self._recording.close()

    def spawn(
        self,
        node: str,
        program: Program[Endpoint, Arguments, Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Task[Result]:
        """Start a program on a node. Its exceptions end the run, unless the task is awaited."""
        sim_node = self._rank(node)

        def start() -> Awaitable[Result]:
            return program(cast(Endpoint, sim_node.endpoint), sim_node, *arguments, **keywords)

        def respawn() -> Task[object]:
            return cast("Task[object]", self.spawn(node, program, *arguments, **keywords))

        work = with_readable_stack(start, self._on_program_end)
        task = self.loop.spawn(cast(Work[Result], work), f"{program.__name__} on {node}")
        self.adopt(task, sim_node)
        self._tasks.append(cast(Task[object], task))
        self._programs.setdefault(node, []).append((cast("Task[object]", task), respawn))
        self._unfinished += 1
        return task

    def programs(self, node: str) -> list[Task[object]]:
        """Return the programs started on a rank, or on all ranks of a node, except those ended by a crash."""
        names = [rank.name for rank in self.hosts[node].ranks] if node in self.hosts else [node]
        return [task for name in names for task, _ in self._programs.get(name, ())]

    def run(self, timeout: int | None = None) -> None:
        """Run until all programs have ended.

        timeout: nanoseconds. Raises StalledError on timeout, or if no event is left before all programs have ended.
        """
        self._tasks = [task for task in self._tasks if not task.done]
        self._unfinished = len(self._tasks)  # tasks cancelled before they began did not report their end
        if not self._unfinished:
            return
        self.loop.stop_at(self.now() + timeout if timeout is not None else None)
        try:
            with _rare_collections():
                self.loop.run()
        except DeadlockError:
            raise self._stalled(_NO_EVENT) from None
        finally:
            self.loop.stop_at(None)
        if not all(task.done for task in self._tasks):
            raise self._stalled(f"{timeout} ns have passed" if self.loop.events else _NO_EVENT)

    def run_until(self, when: int) -> None:
        """Run until time `when`, ns, whether or not programs end. Events that are scheduled for that exact time after this
        call stay pending."""
        self.loop.stop_at(max(when, self.now()))
        while self.loop.stop_time is not None:  # programs that end stop the loop, too
            self.loop.run()

    def settle(self, nanoseconds: int) -> None:
        """End all programs and run for this time, so that frames in flight arrive."""
        self.loop.close()
        self.run_until(self.now() + nanoseconds)

    def restart(self, node: str) -> SimNode:
        """Restart a node's NIC as the next incarnation: its state and pending actions are lost. Return the first rank.

        Programs that wait on the old endpoint wait forever; cancel them, and start others, as needed.
        """
        host = self._host(node)
        self._end(host)
        host.reset_hardware()
        for rank in host.ranks:
            previous = rank.adapter
            incarnation = previous.incarnation % 0xFFFF_FFFF + 1  # a serial number of 32 bits, not 0
            self._start(rank, previous.with_incarnation(incarnation, is_restarted=True))
        return host.ranks[0]

    def crash(self, node: str, *, restarts: bool = False) -> Callable[[], object]:
        """Kill a node's processes: the programs are cancelled, the NIC loses its state, and arriving frames are lost.

        Returns a function that restarts the node: the NIC as by `restart`, and the unfinished programs from the beginning.
        restarts: whether that function will be called; `run` then waits for these programs.
        """
        host = self._host(node)
        interrupted_programs = []
        for rank in host.ranks:
            programs = self._programs.pop(rank.name, [])
            interrupted_programs += [(task, respawn) for task, respawn in programs if not task.done]
            self._programs[rank.name] = [(task, respawn) for task, respawn in programs if task.done]
        self._end(host)
        self.network.set_receiver(host.end, discard)
        for task, _ in interrupted_programs:
            task.cancel()
        for rank in host.ranks:
            rank.end_tasks()
        for rank in host.ranks:
            for peer in self.nodes.values():
                for callback in peer.crash_callbacks:
                    callback(rank.number, restarts)
        if restarts:
            self._unfinished += len(interrupted_programs)

        def restart_node() -> None:
            self.restart(node)
            if restarts:
                self._unfinished -= len(interrupted_programs)
            for _, respawn in interrupted_programs:
                respawn()

        return restart_node

    def change(
        self,
        link: str,
        impairment: Impairment,
        direction: DirectionName | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Change the impairment of a link for frames from now on. direction: None: both. files: in addition to those of the
        constructor."""
        texts = {**(self._files or {}), **files} if files else self._files
        for link_direction in self._link_directions(link, direction):
            self._trace(link_direction.source.owner, "changes", link)
            link_direction.change(self.now(), impairment, texts)

    def cut(self, link: str) -> None:
        """Pull a cable: frames sent from now on are lost, frames in flight arrive."""
        for link_direction in self._link_directions(link):
            self._trace(link_direction.source.owner, "is cut off", link)
            link_direction.is_cut = True

    def restore(self, link: str) -> None:
        """Plug in a pulled cable."""
        for link_direction in self._link_directions(link):
            self._trace(link_direction.source.owner, "is no longer cut off", link)
            link_direction.is_cut = False

    def pending_work(self, innermost: FrameType | None = None) -> list[str]:
        """Describe each condition that a program, a host or a firmware waits for, in a sentence. Sentences on dropped
        frames, which may be the cause, come first. innermost: innermost frame of the running stack, if a program runs."""
        frames = self.loop.task_frames(innermost)
        current = self.loop.current if frames else None
        tasks = [task for task in self._tasks if not task.done]
        sentences = [f"{task.name} {task.state}" for task in tasks if task is not current]
        if current is not None:
            line = program_line(frames) or program_line(current.frames())
            last_poll = f"; it polled last at {current.last_poll} ns" if current.last_poll is not None else ""
            sentences.insert(0, f"{current.name} runs" + (f", at {line}" if line else "") + last_poll)
        drops = [sentence for node in self.nodes.values() for sentence in node.oversize_drops()]
        return drops + sentences + [sentence for node in self.nodes.values() for sentence in node.pending_work()]

    def last_transfer(self) -> str:
        """Describe when and where the last transfer ended, in a sentence."""
        ended = [
            (node.nic.last_transfer_time, name)
            for name, node in self.nodes.items()
            if node.nic.last_transfer_time is not None
        ]
        if not ended:
            return "no transfer has ended"
        when, name = max(ended)
        return f"the last transfer ended at {when} ns, on {name}"

    def stall_report(self, reason: str, innermost: FrameType | None = None) -> str:
        """Format a report of the unfinished programs and of the conditions that they wait for. innermost: see
        `pending_work`."""
        sentences = merge_equal(self.pending_work(innermost))
        lines = [f"  {sentence}" for sentence in sentences[:_MAX_SENTENCES]]
        if len(sentences) > _MAX_SENTENCES:
            lines.append(f"  and {len(sentences) - _MAX_SENTENCES:,} more")
        count = sum(not task.done for task in self._tasks)
        programs = "1 program has" if count == 1 else f"{count:,} programs have"
        return "\n".join([f"at {self.now()} ns: {reason}, and {programs} not ended; {self.last_transfer()}", *lines])

    def _start(self, node: SimNode, adapter: Adapter) -> None:
        """Put a NIC with its agent on a node."""
        host = self.hosts[node.rank.node]
        port = host.port
        nic = host.nic(node, adapter)
        nic.node_name = node.name
        receive: Receive = nic.receive if self._has_uniform_mtu else nic.receive_within_mtu
        if self._recording is None:
            node.agent = self._plug(adapter, nic)
        else:
            watcher = NicWatcher(nic, self._recording, node.name)
            node.agent = self._plug(adapter, watcher)
            self._recording.trace(self.now(), node.name, "begins")
            receive = watcher.record_dropped(receive)
        node.nic, node.adapter = nic, adapter
        nic.begin(self.now(), node.agent)
        if isinstance(port, FunctionPort):
            port.set_receiver(adapter.address, receive)
            receive = port.receive
        self.network.set_receiver(host.end, receive)

    def adopt(self, task: Task[Any], node: SimNode) -> None:
        """Account a task's polls to a rank: a poll takes the time of the node's profile and keeps the rank's core busy."""
        self._polls.adopt(task, node, self.hosts[node.rank.node].profile)

    def _end(self, host: SimHost) -> None:
        """Switch a node's NIC off and drop its unsent frames."""
        for rank in host.ranks:
            if self._recording is not None:
                self._recording.trace(self.now(), rank.name, "ends")
            rank.nic.end(self.now())
        self.network.outgoing(host.end).drop_unsent()

    def _on_program_end(self) -> None:
        """Count the end of a program. A callback on the task would mark its exception as handled."""
        self._unfinished -= 1
        if not self._unfinished:
            self.loop.stop()

    def _stalled(self, reason: str) -> StalledError:
        return StalledError(self.stall_report(reason), self.now(), reason == _NO_EVENT)

    def _record_fate(self, record: Record) -> None:
        if self._recording is not None:
            self._recording.record_fate(record)
        if self._log is not None:
            self._log(record)

    def _trace(self, node: str, event: str, link: str) -> None:
        if self._recording is not None:
            self._recording.trace(self.now(), node, event, link=link)

    def _rank(self, name: str) -> SimNode:
        rank = self.nodes.get(name)
        if rank is None:
            raise NotFoundError(f"no node {name!r} with a NIC: there are {', '.join(list(self.nodes)[:20])}")
        return rank

    def _host(self, name: str) -> SimHost:
        host = self.hosts.get(name)
        if host is None:
            raise NotFoundError(f"no node {name!r} with a NIC: there are {', '.join(list(self.hosts)[:20])}")
        return host

    def _link_directions(self, link: str, direction: DirectionName | None = None) -> list[SimDirection]:
        if (link, "forward") not in self.network.link_directions:
            names = [name for name, direction_name in self.network.link_directions if direction_name == "forward"]
            raise NotFoundError(f"no link {link!r}: there are {', '.join(names[:20])}")
        return [self.network.link_directions[link, name] for name in BOTH if direction in (None, name)]
