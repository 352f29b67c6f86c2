"""A cluster in one process, on a virtual clock: its links and switches, a NIC with its agent on each node, and programs.

    with Simulation(Description.star(2, delay="5us"), emp.plug(), folder=Path("results/first")) as simulation:
        sender = simulation.spawn("n1", send_all)    # async def send_all(endpoint, node): ...
        simulation.spawn("n2", receive_all)
        simulation.run(timeout=1_000_000_000)
        print(sender.result())

Nothing in it takes another course when it is run again: not in another process, not with another hash seed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

from protocols.core.firmware import Adapter, Plug
from protocols.core.profile import IDEAL, Profile
from testbed.engine.awaiting import DeadlockError
from testbed.engine.clocks import VirtualClock
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.engine.tasks import Task, Work
from testbed.errors import NotFoundError, TestbedError
from testbed.fields import known_fields
from testbed.sim.myrinet import AnyWay, MyrinetWay
from testbed.sim.network import BOTH, Network
from testbed.sim.nic import SimNic
from testbed.sim.node import SimNode
from testbed.sim.priced import PricedNic
from testbed.sim.recording import Recording, WatchedNic, WatchedPricedNic
from testbed.sim.way import DirectionName, ignore
from testbed.spec.layout import End, Impairment, Layout
from testbed.spec.layout import Node as NodeLayout
from testbed.spec.model import Description
from testbed.spec.resolving import resolve
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.myrinet.settings import USUAL, Settings
from testbed.wire.rules import RuleSet

Result = TypeVar("Result")
Endpoint = TypeVar("Endpoint")
Arguments = ParamSpec("Arguments")
Program = Callable[Concatenate[Endpoint, SimNode, Arguments], Coroutine[object, object, Result]]
"""``async def program(endpoint, node, ...)``: endpoint is the protocol's host library."""

_NO_ADDRESS: Final = bytes(6)  # of a node without a NIC
_NOTHING_LEFT: Final = "nothing is left that could happen"
_SELDOM: Final = (1_000_000, 20, 20)
"""Thresholds of Python's garbage collector within a run: what is under way is many objects and no cycles, and to look
through all of them takes long: with the usual ones a quarter of a large run, and a seventh with a tenth of the first."""

_SHOWN: Final = 100  # sentences in an error; a cluster has thousands


class StalledError(TestbedError):
    """Programs have not ended, and nothing is left that could happen (`final`), or too much time has passed: who waits for
    what. when: nanoseconds."""

    def __init__(self, message: str, when: int = 0, final: bool = False) -> None:
        super().__init__(message)
        self.when = when
        self.final = final


class Simulation:
    """One run. nodes: by name; those that have a NIC have an agent on their first one. now: nanoseconds."""

    def __init__(
        self,
        cluster: Description | Layout,
        plug: Plug,
        *,
        profile: Profile = IDEAL,
        seed: int | None = None,
        rules: RuleSet | None = None,
        fields: Fields | None = None,
        files: Mapping[str, str] | None = None,
        folder: Path | None = None,
        log: Callable[[Record], object] | None = None,
        myrinet: Settings = USUAL,
    ) -> None:
        """seed: another than the description's. rules: those that are in force and those that will be injected; without
        them, none can be. fields: which protocols name flow keys, if not those that are known; rules bring theirs.
        files: path -> text of the files that impairments name. folder: where the capture, the fates and the trace are
        written; without one, nothing is.
        log: is given every fate that is not a pass. myrinet: what the switches of a Myrinet network are like.
        """
        self.layout: Final = resolve(cluster) if isinstance(cluster, Description) else cluster
        self.profile: Final = profile
        self.loop: Final = Loop(VirtualClock())
        self.now: Final = self.loop.now
        self.nodes: Final[dict[str, SimNode]] = {}
        self._plug = plug
        self._files = files
        self._log = log
        self._tasks: list[Task[object]] = []
        self._programs: dict[str, list[tuple[Task[object], Callable[[], Task[object]]]]] = {}
        self._open = 0  # programs that have not ended
        self._nics = {node.name: End(node.name, node.nics[0].name) for node in self.layout.nodes if node.nics}
        self._recording = Recording(folder, list(self._nics.values()), self.layout) if folder is not None else None
        self.network: Final = Network(
            self.loop,
            self.layout,
            known_fields() if fields is None else fields,
            seed=self.layout.seed if seed is None else seed,
            rules=rules,
            files=files,
            recording=self._recording,
            log=self._fate if self._recording is not None else log,
            myrinet=myrinet,
        )
        self._of_one_mtu = len({node.nics[0].mtu for node in self.layout.nodes if node.nics}) <= 1
        addresses = tuple([_address(node) for node in self.layout.nodes])
        routed, ordered = self.layout.routed(), self.layout.keeps_order()
        for number, node in enumerate(self.layout.nodes):
            if node.nics:
                core = Server(f"core of {node.name}", self.loop)
                self.nodes[node.name] = one = SimNode(self.loop, node.name, number, core)
                adapter = Adapter(
                    number,
                    addresses,
                    node.nics[0].mtu,
                    pages_apart=profile.pages_apart,
                    routed=node.name in routed,
                    ordered=ordered,
                )
                self._start(one, adapter)

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the programs where they wait, and complete the files."""
        self.loop.close()
        if self._recording is not None:
            self._recording.close()

    def spawn(
        self,
        node: str,
        program: Program[Endpoint, Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Task[Result]:
        """Begin a program on a node. What it raises ends the run, unless the task is awaited."""
        one = self._node(node)

        async def carry() -> Result:
            try:
                return await program(cast(Endpoint, one.endpoint), one, *arguments, **named)
            finally:
                self._ended()

        def again() -> Task[object]:
            return cast("Task[object]", self.spawn(node, program, *arguments, **named))

        task = self.loop.spawn(cast(Work[Result], carry()), f"{program.__name__} on {node}")
        self._tasks.append(cast(Task[object], task))
        self._programs.setdefault(node, []).append((cast("Task[object]", task), again))
        self._open += 1
        return task

    def programs(self, node: str) -> list[Task[object]]:
        """Those that were begun there, without those that a crash has ended."""
        return [task for task, _ in self._programs.get(node, ())]

    def run(self, timeout: int | None = None) -> None:
        """Let time pass until all programs have ended. Raises StalledError if they do not: because nothing is left that
        could happen, or because timeout nanoseconds have passed."""
        self._tasks = [task for task in self._tasks if not task.done]
        self._open = len(self._tasks)  # one that was cancelled before it began has not told of its end
        if not self._open:
            return
        timer = self.loop.timer(lambda _: self.loop.stop())
        if timeout is not None:
            timer.set(self.now() + timeout)
        usual = gc.get_threshold()
        gc.set_threshold(*_SELDOM)
        try:
            self.loop.run()
        except DeadlockError:
            raise self._stalled(_NOTHING_LEFT) from None
        finally:
            gc.set_threshold(*usual)
            timer.set(None)
        if not all(task.done for task in self._tasks):
            raise self._stalled(f"{timeout} ns have passed" if self.loop.heap else _NOTHING_LEFT)

    def run_until(self, when: int) -> None:
        """Let time pass until then, whatever the programs do. What was set for that very time after this call is still to
        come."""
        timer = self.loop.timer(lambda _: self.loop.stop())
        timer.set(max(when, self.now()))
        while timer.when is not None:  # programs that end stop the loop, too
            self.loop.run()

    def restart(self, node: str) -> SimNode:
        """Start a node's NIC again, with the next incarnation: what the old one knew, and what was under way in it, is
        gone. Programs that wait on the old endpoint wait for ever; begin or cancel them as the case may be."""
        one = self._node(node)
        self._end(one)
        before = one.adapter
        incarnation = before.incarnation % 0xFFFF_FFFF + 1  # a serial number of 32 bits, not 0
        self._start(one, before.of_incarnation(incarnation))
        return one

    def crash(self, node: str, *, returns: bool = False) -> Callable[[], object]:
        """A node's process is killed: its programs end where they wait, its NIC with all that it knew, and what comes is
        lost. Gives what starts it again: its NIC as in `restart`, and the programs that had not ended from the beginning.
        returns: it will be, and programs have not ended before that."""
        one = self._node(node)
        programs = self._programs.pop(node, [])
        broken = [(task, again) for task, again in programs if not task.done]
        self._programs[node] = [(task, again) for task, again in programs if task.done]
        self._end(one)
        self.network.arriving(self._nics[node]).lead_to(ignore)
        for task, _ in broken:
            task.cancel()
        if returns:
            self._open += len(broken)

        def start_again() -> None:
            self.restart(node)
            if returns:
                self._open -= len(broken)
            for _, again in broken:
                again()

        return start_again

    def change(
        self,
        link: str,
        impairment: Impairment,
        direction: DirectionName | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Another impairment, for frames from now on; both directions if none is said. files: beside those that were given
        at the beginning."""
        texts = {**(self._files or {}), **files} if files else self._files
        for way in self._ways(link, direction):
            self._say(way.source.owner, "changes", link)
            way.change(self.now(), impairment, texts)

    def cut(self, link: str) -> None:
        """Pull a cable out: what is sent from now on is lost; what is under way arrives."""
        for way in self._ways(link):
            self._say(way.source.owner, "is cut off", link)
            way.is_cut = True

    def mend(self, link: str) -> None:
        """Plug it in again."""
        for way in self._ways(link):
            self._say(way.source.owner, "is no longer cut off", link)
            way.is_cut = False

    def waiting(self) -> list[str]:
        """A sentence for everything that a program, a host or a firmware waits for."""
        tasks = [f"{task.name} waits for {task.waits_for}" for task in self._tasks if not task.done]
        return tasks + [sentence for node in self.nodes.values() for sentence in node.waiting()]

    def _start(self, node: SimNode, adapter: Adapter) -> None:
        """Put a NIC with its agent on a node."""
        end = self._nics[node.name]
        out = self.network.leaving(end)
        if not self.profile.is_free:
            priced = PricedNic if self._recording is None else WatchedPricedNic
            nic: SimNic = priced(self.loop, node.name, out, node.core, self.profile, adapter.mtu)
        elif self._recording is None:
            nic = SimNic(self.loop, out, adapter.mtu)
        else:
            nic = WatchedNic(self.loop, out, adapter.mtu)
        if self._recording is not None:
            assert isinstance(nic, WatchedNic)
            nic.tell(self._recording, node.name)
        node.nic, node.adapter, node.agent = nic, adapter, self._plug(adapter, nic)
        nic.begin(self.now(), node.agent)
        self.network.arriving(end).lead_to(nic.receive if self._of_one_mtu else nic.receive_what_fits)

    def _end(self, node: SimNode) -> None:
        """A node's NIC is off, and what was to leave it is gone."""
        node.nic.end(self.now())
        out = self.network.leaving(self._nics[node.name])
        if isinstance(out, MyrinetWay):
            out.forget()

    def _ended(self) -> None:
        """A program has. Not told by a callback on its task: somebody would hear what it raised."""
        self._open -= 1
        if not self._open:
            self.loop.stop()

    def _stalled(self, why: str) -> StalledError:
        sentences = self.waiting()
        shown = [f"  {sentence}" for sentence in sentences[:_SHOWN]]
        if len(sentences) > _SHOWN:
            shown.append(f"  and {len(sentences) - _SHOWN:,} more")
        count = sum(not task.done for task in self._tasks)
        programs = "1 program has" if count == 1 else f"{count:,} programs have"
        said = "\n".join([f"at {self.now()} ns: {why}, and {programs} not ended", *shown])
        return StalledError(said, self.now(), why == _NOTHING_LEFT)

    def _fate(self, record: Record) -> None:
        if self._recording is not None:
            self._recording.fate(record)
        if self._log is not None:
            self._log(record)

    def _say(self, node: str, what: str, link: str) -> None:
        if self._recording is not None:
            self._recording.say(self.now(), node, what, link=link)

    def _node(self, name: str) -> SimNode:
        node = self.nodes.get(name)
        if node is None:
            raise NotFoundError(f"no node {name!r} with a NIC: there are {', '.join(list(self.nodes)[:20])}")
        return node

    def _ways(self, link: str, direction: DirectionName | None = None) -> list[AnyWay]:
        if (link, "forward") not in self.network.ways:
            names = [name for name, way in self.network.ways if way == "forward"]
            raise NotFoundError(f"no link {link!r}: there are {', '.join(names[:20])}")
        return [self.network.ways[link, one] for one in BOTH if direction in (None, one)]


def _address(node: NodeLayout) -> bytes:
    """Of a node's first NIC."""
    return bytes.fromhex(node.nics[0].mac.replace(":", "")) if node.nics else _NO_ADDRESS
