"""Faults of a spread cluster: composed for the complete cluster, and put in force by each machine on its part.

A direction of a link is impaired on the machine where it arrives, like the impairments of the description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from testbed.cluster.faults.injections import DirectionKey, Injection, links_of
from testbed.errors import ConflictError, NotFoundError, TestbedError
from testbed.machines.parts import complete_layout
from testbed.machines.remote_workers import call_each, try_call_each
from testbed.machines.spread import Workers, workers_with
from testbed.spec.layout import Layout
from testbed.spec.layout_json import from_json

Compose = Callable[[Layout, Sequence[Injection]], Injection]
"""Composes an injection from the complete layout and the injections in force, as
`fault_injection.compose_impairment`."""


@dataclass(frozen=True, slots=True)
class SpreadState:
    """Merged state of a spread cluster. workers: of machines that have a part. parts: layouts of the parts, by machine.
    layout: the complete layout. injected: merged injections of all parts. issued: highest number of an injection so far."""

    workers: Workers
    parts: Mapping[str, Layout]
    layout: Layout
    injected: tuple[Injection, ...]
    issued: int


@dataclass(frozen=True, slots=True)
class SpreadInjected:
    """Result of an injection. datapaths: datapaths of the changed links. took: seconds until the injection was in force
    on the last machine."""

    injection: Injection
    datapaths: Mapping[str, str]
    took: float


def spread_state(running: Workers, name: str) -> SpreadState:
    """Read and merge the states of a cluster's parts. Raises NotFoundError if no machine has a part, or the cluster is not a
    spread one."""
    workers = workers_with(running, name)
    first = next(iter(workers))
    everywhere = {machine: machine == first for machine in workers}  # only one machine sends the nodes of all machines
    replies = call_each(workers, "part", name=dict.fromkeys(workers, name), everywhere=everywhere)
    parts = {machine: from_json(reply["layout"]) for machine, reply in replies.items()}
    complete = parts[first].part
    for machine, layout in parts.items():
        if layout.part is None or complete is None:
            raise NotFoundError(
                f"cluster {name} was not spread over machines: it is a cluster of machine {machine} alone"
            )
        parts[machine] = replace(layout, part=replace(layout.part, nodes=complete.nodes))
    injected = [[Injection.from_json(data) for data in reply["injected"]] for reply in replies.values()]
    issued = max(reply["issued"] for reply in replies.values())
    return SpreadState(workers, parts, complete_layout(parts.values()), merge_injections(injected), issued)


def merge_injections(injected: Iterable[Sequence[Injection]]) -> tuple[Injection, ...]:
    """Merge the injections of all parts; return them in the order of their numbers."""
    injections: dict[int, Injection] = {}
    for injection in (injection for part in injected for injection in part):
        merged = injections.get(injection.number)
        if merged is not None:
            down = tuple(dict.fromkeys((*merged.down, *injection.down)))
            injection = replace(
                merged, places=(*merged.places, *injection.places), rules=(*merged.rules, *injection.rules), down=down
            )
        injections[injection.number] = injection
    return tuple(injections[number] for number in sorted(injections))


def incoming_directions(part: Layout) -> set[DirectionKey]:
    """Return the directions of links that arrive on a part's machine, which impairs them."""
    remote = {tunnel.end for tunnel in part.part.tunnels} if part.part is not None else set()
    forward: set[DirectionKey] = {(link.name, "forward") for link in part.links if link.b not in remote}
    return forward | {(link.name, "backward") for link in part.links if link.a not in remote}


def share(injection: Injection, part: Layout) -> Injection | None:
    """Return a machine's share of an injection: the cut links that end there, and the directions that arrive there; None if
    the injection concerns none of them."""
    incoming = incoming_directions(part)
    local_share = replace(
        injection,
        places=tuple(place for place in injection.places if place in incoming),
        rules=tuple((place, text) for place, text in injection.rules if place in incoming),
        down=tuple(link.name for link in part.links if link.name in injection.down),
    )
    return local_share if local_share.links else None


def inject(running: Workers, name: str, compose: Compose, seconds: float = 0) -> SpreadInjected:
    """Put an injection in force concurrently on all machines that it concerns. If a machine fails, the injection is
    lifted from the others, and the error is raised. seconds: time after which the injection is lifted; 0: never."""
    state = spread_state(running, name)
    injection = replace(compose(state.layout, state.injected), number=state.issued + 1)
    shares = {
        machine: local_share
        for machine, part in state.parts.items()
        if (local_share := share(injection, part)) is not None
    }
    arguments: dict[str, Mapping[str, Any]] = {
        "injection": {machine: share.to_json() for machine, share in shares.items()},
        "seconds": dict.fromkeys(shares, seconds),
    }
    return _put_in_force(state, name, injection, "inject", [*shares], arguments)


def load_processor(running: Workers, name: str, node: str, share_of_one: float, seconds: float = 0) -> SpreadInjected:
    """Use up a share of a node's processors, as `fault_injection.load_processor`. node: name of the node. share_of_one:
    share of one processor."""
    state = spread_state(running, name)
    machine = machine_of(state, name, node)
    injection = Injection(state.issued + 1, f"load of {share_of_one:.0%} of a processor on {node}")
    arguments: Mapping[str, Any] = {"node": node, "share": share_of_one, "seconds": seconds, "number": injection.number}
    return _put_in_force(
        state, name, injection, "load_processor", [machine], {key: {machine: value} for key, value in arguments.items()}
    )


def load_link(
    running: Workers, name: str, senders: Sequence[str], receiver: str, rate: int, seconds: float = 0
) -> SpreadInjected:
    """Send traffic from several nodes to one, as `fault_injection.load_link`; without senders, from all others."""
    state = spread_state(running, name)
    chosen = list(senders) or [node.name for node in state.layout.nodes if node.name != receiver]
    machines = list(dict.fromkeys(machine_of(state, name, node) for node in (receiver, *chosen)))
    injection = Injection(state.issued + 1, f"load from {', '.join(chosen)} to {receiver}")
    values = {"senders": chosen, "receiver": receiver, "rate": rate, "seconds": seconds, "number": injection.number}
    arguments = {key: dict.fromkeys(machines, value) for key, value in values.items()}
    return _put_in_force(state, name, injection, "load_link", machines, arguments)


def machine_of(state: SpreadState, name: str, node: str) -> str:
    """Return the machine that has a node. Raises NotFoundError, whose message lists nodes."""
    for machine, part in state.parts.items():
        if any(local_node.name == node for local_node in part.nodes):
            return machine
    names = ", ".join(node.name for node in state.layout.nodes[:8])
    raise NotFoundError(f"cluster {name} has no node {node!r}; its nodes include {names}")


def _put_in_force(
    state: SpreadState,
    name: str,
    injection: Injection,
    call: str,
    machines: Sequence[str],
    arguments: Mapping[str, Mapping[str, Any]],
) -> SpreadInjected:
    """Put an injection in force by a call on these machines; lift it again, and raise the error, if one fails. arguments:
    argument name -> machine -> value."""
    concerned = {machine: state.workers[machine] for machine in machines}
    replies = try_call_each(concerned, call, name=dict.fromkeys(concerned, name), **arguments)
    failures = [reply for reply in replies.values() if isinstance(reply, TestbedError)]
    numbers = {machine: [reply["number"]] for machine, reply in replies.items() if not isinstance(reply, TestbedError)}
    if len({number for (number,) in numbers.values()}) > 1:
        failures.append(ConflictError(f"cluster {name} got another injection at the same time: inject again"))
    if failures:
        succeeded = {machine: concerned[machine] for machine in numbers}
        try_call_each(succeeded, "heal", name=dict.fromkeys(succeeded, name), numbers=numbers)
        raise failures[0]
    injection = replace(injection, number=next((number for (number,) in numbers.values()), injection.number))
    datapaths = {link: datapath for reply in replies.values() for link, datapath in reply["datapaths"].items()}
    return SpreadInjected(injection, datapaths, max((reply["took"] for reply in replies.values()), default=0.0))


def heal(running: Workers, name: str, numbers: Sequence[int] = ()) -> tuple[Injection, ...]:
    """Lift injections on all machines; return the lifted injections. numbers: empty: all. Raises NotFoundError for the
    number of an injection that is not in force."""
    state = spread_state(running, name)
    in_force = [injection.number for injection in state.injected]
    if missing := sorted({*numbers} - {*in_force}):
        in_force_text = f"in force are {', '.join(map(str, in_force))}" if in_force else "nothing is"
        raise NotFoundError(f"cluster {name} has no injection {missing[0]} in force; {in_force_text}")
    return _lift(state, name, list(numbers) or in_force)


def heal_cut(running: Workers, name: str, target: str) -> tuple[Injection, ...]:
    """Lift the cuts of these links, at both ends, as `fault_injection.heal_cut`."""
    state = spread_state(running, name)
    links = {link.name for link in links_of(state.layout, target)}
    numbers = [injection.number for injection in state.injected if links & {*injection.down}]
    return _lift(state, name, numbers) if numbers else ()


def _lift(state: SpreadState, name: str, numbers: Sequence[int]) -> tuple[Injection, ...]:
    """Lift injections that are in force."""
    workers = state.workers
    call_each(workers, "heal", name=dict.fromkeys(workers, name), numbers=dict.fromkeys(workers, numbers))
    return tuple(injection for injection in state.injected if injection.number in numbers)
