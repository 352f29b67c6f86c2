"""Looking at a cluster again and again: each look is a snapshot, or a sentence why there is nothing to be seen.

The cluster may go and come while it is looked at; without a name the one is meant that is up, as everywhere.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from testbed.cluster import names
from testbed.cluster.injecting import described
from testbed.cluster.injections import BOTH, DirectionName, Injection
from testbed.cluster.state import State, Store
from testbed.cluster.status import summary
from testbed.errors import KernelError, NotFoundError, TestbedError, reason_of
from testbed.kernel import namespaces
from testbed.observe.following import Tail
from testbed.observe.live.processing import Processing
from testbed.observe.live.snapshot import Absent, Direction, Fault, Link, Nic, Node, Program, Snapshot
from testbed.observe.live.wires import Carried, Place, Wires
from testbed.observe.telling import Told, told
from testbed.runtime import events
from testbed.spec import layout
from testbed.spec.layout_json import impairment_to_json

_EVENTS: Final = 200
"""The last so many are kept."""

_LOST: Final = ("dropped", "overflowed", "unsent", "down", "strangers", "refused")
"""What an agent tells beside its firmware's counters: frames that came to nothing, and host processes."""

Agents = Mapping[str, Mapping[str, Any] | None]
"""By node, what the agent of its NIC says; None where it does not answer."""


class Gathering:
    """What it holds open ends with `close`."""

    def __init__(self, store: Store, name: str | None = None) -> None:
        """name: of the cluster; None: the one that is up."""
        self._store = store
        self._name = name
        self._watched: _Watched | None = None

    def close(self) -> None:
        if self._watched is not None:
            self._watched.close()
            self._watched = None

    def look(self, *, agents: bool = True) -> Snapshot | Absent:
        """As it is now. Whatever stands in the way of looking is a sentence, and may be over at the next look. agents: ask
        those of shared NICs for their counters, which costs more than all else."""
        before = self._watched
        try:
            cluster = self._cluster()
            if before is None or before.cluster != cluster or not before.there():
                self.close()
                self._watched = _Watched(self._store, cluster)
            assert self._watched is not None
            return self._watched.look(agents=agents)
        except (TestbedError, OSError) as error:
            self.close()
            why = reason_of(error) if isinstance(error, OSError) else str(error)
            if before is None or before.cluster in self._store.names():
                return Absent(why)
            gone = f"{before.cluster} has been taken down"
            return Absent(gone if self._name is not None else f"{gone}; {why}")

    def _cluster(self) -> str:
        """The one that is meant. While the one that is watched is up it is that one, whatever else comes up."""
        if self._name is None and self._watched is not None and self._watched.there():
            return self._watched.cluster
        return self._store.existing(self._name)


class _Watched:
    """One cluster, from when it is first looked at."""

    def __init__(self, store: Store, cluster: str) -> None:
        self.cluster: Final = cluster
        self._store = store
        self._path = store.directory(cluster) / "state.json"
        self._directory = os.stat(self._path.parent)
        self._known: tuple[int, int] = (0, 0)  # of the state's file
        self._state: State | None = None
        self._wires: Wires | None = None
        self._processing = Processing()
        self._looked = 0
        self._carried: dict[Place, Carried] = {}
        self._impaired: dict[Place, tuple[str, str]] = {}
        self._tail = Tail(store.directory(cluster) / events.FILE)
        self._events: deque[Told] = deque(maxlen=_EVENTS)

    def close(self) -> None:
        self._tail.close()
        if self._wires is not None:
            self._wires.close()

    def there(self) -> bool:
        """Whether it is still that one, and not another of its name."""
        try:
            return self._path.exists() and os.path.samestat(os.stat(self._path.parent), self._directory)
        except FileNotFoundError:
            return False

    def look(self, *, agents: bool) -> Snapshot:
        """Raises NotFoundError where it is gone, OSError, KernelError."""
        state = self._read()
        now = time.monotonic_ns()
        wires, carried = self._wires_of(state).look(state)
        span = (now - self._looked) / 1e9 if self._looked else 0.0
        programs = self._processing.look({inode: key for key, inode in state.inodes.items()}, span)
        directions = {place: self._direction(place, one, span) for place, one in carried.items()}
        self._looked, self._carried = now, carried
        self._events += map(told, self._tail.read())
        said = self._agents(state) if agents else {}
        links = tuple(_link(link, wires[link.name].state, state, directions) for link in state.layout.links)
        return Snapshot(
            state.name,
            state.origin,
            time.time_ns(),
            max(0.0, time.time() - state.created),
            span,
            summary(state.layout),
            state.phase,
            _warning(state, [node for node, one in said.items() if one is None]),
            tuple(_nodes(state, links, programs, said)),
            links,
            tuple(_fault(one, now) for one in state.injected),
            tuple(programs.get(names.WIRE, ())),
            tuple(self._events),
        )

    def _read(self) -> State:
        """The state, which is read again only when it has been written."""
        found = os.stat(self._path)
        known = found.st_ino, found.st_mtime_ns
        if self._state is None or known != self._known:
            state = self._store.read(self.cluster)
            if state is None:
                raise NotFoundError(f"cluster {self.cluster} has been taken down")
            if self._wires is not None and not self._wires.fits(state):
                self._wires.close()
                self._wires, self._looked = None, 0
            self._state, self._known = state, known
            self._impaired = dict(_impairments(state))
        return self._state

    def _wires_of(self, state: State) -> Wires:
        if self._wires is None:
            if names.WIRE not in state.namespaces:
                raise KernelError(f"cluster {self.cluster} is being made")
            hidden = state.namespaces[names.WIRE].startswith(f"{namespaces.NAMES}/")
            keeper = state.keeper.pid if state.keeper is not None and hidden else 0
            if keeper and state.abandoned:
                raise NotFoundError(f"cluster {self.cluster} is gone: 'testbed gc' removes what is left of it")
            self._wires = Wires(state, self._path.parent, keeper)
        return self._wires

    def _agents(self, state: State) -> Agents:
        if state.nics is None:
            return {}
        from testbed.cluster.sharing import reports  # with what knows protocols

        return reports(self._store, state)

    def _direction(self, place: Place, now: Carried, span: float) -> Direction:
        before = self._carried.get(place, now)
        drops, dropped = sum(now.dropped.values()), sum(before.dropped.values())
        declared, injected = self._impaired.get(place, ("", ""))
        return Direction(
            now.frames,
            now.bytes,
            _rate(before.frames, now.frames, span),
            8 * _rate(before.bytes, now.bytes, span),
            now.dropped,
            _rate(dropped, drops, span),
            now.met,
            declared,
            injected,
        )


def _rate(before: int, now: int, span: float) -> float:
    """Per second. A counter that has begun anew, with another interface, has none yet."""
    return (now - before) / span if span and now > before else 0.0


def _impairments(state: State) -> Iterable[tuple[Place, tuple[str, str]]]:
    """What is declared on each direction, and what is injected there, in words."""
    for link in state.layout.links:
        for direction in BOTH:
            declared: layout.Impairment = getattr(link, direction)
            keys = {key: value for key, value in impairment_to_json(declared).items() if key != "rules"}
            injected = [text for one in state.injected if (text := _injected(one, link.name, direction))]
            yield (link.name, direction), (described(keys, declared.rules), "; ".join(injected))


def _injected(one: Injection, link: str, direction: DirectionName) -> str:
    here = (link, direction)
    rules = [text for place, text in one.rules if place == here]
    parts = [described(one.keys if here in one.places else {}, rules)]
    parts += [f"replay of {one.replay}"] if one.replay and here in one.places else []
    parts += ["down"] if link in one.down else []
    return ", ".join(part for part in parts if part)


def _link(link: layout.Link, state: str, cluster: State, directions: Mapping[Place, Direction]) -> Link:
    forward, backward = (directions.get((link.name, direction), Direction()) for direction in BOTH)
    carrier = cluster.datapaths.get(link.name, "direct")
    return Link(link.name, str(link.a), str(link.b), state, carrier, forward, backward, link.tags)


def _nodes(
    state: State, links: Iterable[Link], programs: Mapping[str, list[Program]], agents: Agents
) -> Iterable[Node]:
    by_end = {end: (link, end == link.a) for link in links for end in (link.a, link.b)}
    hidden = state.keeper is not None and state.namespaces.get(names.WIRE, "").startswith(f"{namespaces.NAMES}/")
    for node in state.layout.nodes:
        there = hidden or namespaces.is_namespace(state.namespaces.get(node.name, ""))
        yield Node(
            node.name,
            "up" if there else "GONE",
            tuple(
                _nic(nic, by_end.get(f"{node.name}:{nic.name}"), agents.get(node.name) if not number else None)
                for number, nic in enumerate(node.nics)
            ),
            tuple(programs.get(node.name, ())),
            node.tags,
        )


def _nic(nic: layout.Nic, at: tuple[Link, bool] | None, said: Mapping[str, Any] | None) -> Nic:
    """said: by the agent of a shared one."""
    counted = {name: said[name] for name in _LOST if said[name]} | dict(said["counted"]) if said is not None else {}
    if at is None:
        return Nic(nic.name, nic.mac, nic.addresses, "", agent=counted)
    link, is_a = at
    out, back = (link.forward, link.backward) if is_a else (link.backward, link.forward)
    return Nic(nic.name, nic.mac, nic.addresses, link.name, out, back, counted)


def _fault(one: Injection, now: int) -> Fault:
    left = max(0.0, (one.until - now) / 1e9) if one.until else None
    return Fault(one.number, one.what, tuple(sorted(one.links)), left)


def _warning(state: State, silent: Sequence[str]) -> str:
    """silent: nodes whose NIC's agent does not answer."""
    if state.phase != "up":
        if state.owner.alive:
            return f"process {state.owner.pid} is {state.phase} it"
        return f"left {state.phase}: 'testbed {'gc' if state.abandoned else 'up'}' puts it right"
    if "relay" in state.datapaths.values() and not (state.steward is not None and state.steward.alive):
        return "its relay is GONE, and links that it should carry pass nothing: 'testbed up' starts it again"
    if silent:
        shown = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
        return f"the agent of a shared NIC does not answer: {shown}"
    return ""
