"""Random faults, drawn from a seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from testbed.cluster.faults.injections import links_of
from testbed.controller.scenarios.targets import candidates
from testbed.engine.sources import Source, source
from testbed.errors import NotFoundError
from testbed.spec.fault_models import (
    MAX_TIMES,
    Churn,
    Cpu,
    Crash,
    Down,
    Fault,
    Flap,
    Impair,
    Incast,
    OnLinks,
    OnNodes,
    Partition,
    Pause,
    Reset,
    Restart,
)  # fmt: skip
from testbed.spec.layout import Layout
from testbed.spec.problems import MismatchError
from testbed.spec.scenario import RandomFaults
from testbed.spec.selection import expand_tags, nodes_of

_SECOND: Final = 1_000_000_000


def draw_faults(random: RandomFaults, layout: Layout, seed: int, horizon: int) -> list[Fault]:
    """Draw random faults, in the order of their beginnings. seed: used if `random` has no seed. horizon: end of the faults,
    nanoseconds since the programs began; used if `random` has no `to`. Raises NotFoundError if `on` has an unknown name, or
    selects no target for one of the kinds, MismatchError for too many faults."""
    rng = source(random.seed if random.seed is not None else seed, "random faults")
    nodes, links = _candidates(layout, random.on)
    makers = _MAKERS if "all" in random.on else _MAKERS | {"partition": _partition_among}
    for kind in random.kinds:
        if not (links if kind in _LINK_KINDS else nodes):
            element = "link" if kind in _LINK_KINDS else "node"
            raise NotFoundError(f"random faults: 'on' names no {element}, which {kind} needs")
    faults: list[Fault] = []
    for when in _times(rng, _SECOND / random.rate, random.from_, random.to if random.to is not None else horizon):
        kind = rng.choice(random.kinds)
        duration = random.shortest + rng.below(random.longest - random.shortest + 1)
        faults.append(makers[kind](rng, f"{when}ns", f"{duration}ns", nodes, links))
    return faults


def draw_restarts(churn: Churn, layout: Layout, seed: int, number: int, horizon: int) -> list[tuple[Restart, int, int]]:
    """Draw the restarts of a churn, each with its beginning and end, nanoseconds since the programs began. seed: used if the
    churn has no seed. number: index of the churn among the scenario's faults. horizon: end of the churn; used if it has
    none. Raises NotFoundError for an unknown name, MismatchError for too many restarts."""
    rng = source(churn.seed if churn.seed is not None else seed, f"churn {number}")
    nodes = nodes_of(layout, churn.on)
    last = churn.to if churn.to is not None else churn.begin + churn.for_ if churn.for_ is not None else horizon
    return [
        (Restart(on=rng.choice(nodes), at=f"{when}ns"), when, when + churn.away)
        for when in _times(rng, churn.mean, churn.begin, last)
    ]


def pick_targets(fault: Fault, layout: Layout, seed: int, number: int, count: int) -> Iterator[Fault]:
    """Yield a fault for each of `count` occurrences: with `pick`, on targets drawn for the occurrence. seed: used if the
    fault has no seed. number: index of the fault among the scenario's. Raises NotFoundError for an unknown name,
    MismatchError for a `pick` above the number of targets."""
    if not isinstance(fault, OnNodes | OnLinks) or fault.pick is None:
        yield from itertools.repeat(fault, count)
        return
    targets = candidates(layout, fault)
    if fault.pick > len(targets):
        raise MismatchError(f"'pick' of at most {len(targets)}, the number of targets in 'on'")
    rng = source(fault.seed if fault.seed is not None else seed, f"pick {number}")
    for _ in range(count):
        chosen = set(rng.sample(targets, fault.pick))
        on = tuple(name for name in targets if name in chosen)
        yield fault.model_copy(update={"on": on, "pick": None, "seed": None})


def _times(rng: Source, mean: float, begin: int, end: int) -> list[int]:
    """Draw the times of a Poisson process, nanoseconds. mean: mean time between two of them. Raises MismatchError for more
    than MAX_TIMES."""
    times: list[int] = []
    time = float(begin)
    while (time := time + rng.exponential(mean)) < end:
        times.append(int(time))
        if len(times) > MAX_TIMES:
            raise MismatchError(f"at most {MAX_TIMES:,} occurrences: rarer ones, or an earlier 'to'")
    return times


def _candidates(layout: Layout, on: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the nodes and links to draw from. Raises NotFoundError for an unknown name."""
    names = [node.name for node in layout.nodes]
    if "all" in on:
        return names, [link.name for link in layout.links]
    links = dict.fromkeys(link.name for target in on for link in links_of(layout, target))
    expanded = expand_tags(layout, on)
    return [name for name in names if name in expanded], list(links)


def _impair(rng: Source, at: str, duration: str, _nodes: Sequence[str], links: Sequence[str]) -> Fault:
    keys: dict[str, object] = {}
    for key in rng.sample(("loss", "delay", "duplicate", "gemodel"), 1 + rng.below(2)):
        if key == "delay":
            keys[key] = f"{100 + rng.below(20_000)}us"
        elif key == "gemodel":
            keys[key] = f"{1 + rng.below(10)}% {20 + rng.below(60)}%"
        else:
            keys[key] = f"{1 + rng.below(30)}%"
    return Impair(on=rng.choice(links), at=at, for_=duration, **keys)


def _down(rng: Source, at: str, duration: str, _nodes: Sequence[str], links: Sequence[str]) -> Fault:
    return Down(on=rng.choice(links), at=at, for_=duration)


def _flap(rng: Source, at: str, duration: str, _nodes: Sequence[str], links: Sequence[str]) -> Fault:
    return Flap(on=rng.choice(links), at=at, for_=duration)


def _partition(rng: Source, at: str, duration: str, _nodes: Sequence[str], _links: Sequence[str]) -> Fault:
    shape = rng.choice(("halves", "ring-majority", "isolated"))
    return Partition(shape=shape, seed=rng.word(), at=at, for_=duration)


def _partition_among(rng: Source, at: str, duration: str, nodes: Sequence[str], _links: Sequence[str]) -> Fault:
    """Make a partition that separates one half of these nodes from the other, or one of them from all nodes."""
    if len(nodes) == 1 or rng.choice(("halves", "isolated")) == "isolated":
        return Partition(shape="isolated", node=rng.choice(nodes), at=at, for_=duration)
    order = list(nodes)
    rng.shuffle(order)
    half = len(order) // 2
    return Partition(groups=[order[:half], order[half:]], at=at, for_=duration)


def _crash(rng: Source, at: str, duration: str, nodes: Sequence[str], _links: Sequence[str]) -> Fault:
    return Crash(on=rng.choice(nodes), at=at, for_=duration)


def _restart(rng: Source, at: str, duration: str, nodes: Sequence[str], _links: Sequence[str]) -> Fault:  # noqa: ARG001
    return Restart(on=rng.choice(nodes), at=at)


def _reset(rng: Source, at: str, duration: str, nodes: Sequence[str], _links: Sequence[str]) -> Fault:  # noqa: ARG001
    return Reset(on=rng.choice(nodes), at=at)


def _pause(rng: Source, at: str, duration: str, nodes: Sequence[str], _links: Sequence[str]) -> Fault:
    return Pause(on=rng.choice(nodes), at=at, for_=duration)


def _cpu(rng: Source, at: str, duration: str, nodes: Sequence[str], _links: Sequence[str]) -> Fault:
    return Cpu(on=rng.choice(nodes), share=f"{10 + rng.below(90)}%", at=at, for_=duration)


def _incast(rng: Source, at: str, duration: str, nodes: Sequence[str], _links: Sequence[str]) -> Fault:
    return Incast(receiver=rng.choice(nodes), rate=f"{1 + rng.below(50)}mbit", at=at, for_=duration)


_LINK_KINDS: Final = frozenset({"impair", "down", "flap"})

_Maker = Callable[[Source, str, str, Sequence[str], Sequence[str]], Fault]
"""Draws a fault with this beginning and duration, on one of these nodes or links."""

_MAKERS: Final[dict[str, _Maker]] = {
    "impair": _impair, "down": _down, "flap": _flap, "partition": _partition, "crash": _crash, "restart": _restart,
    "reset": _reset, "pause": _pause, "cpu": _cpu, "incast": _incast,
}  # fmt: skip
