"""Injecting into the links of a running cluster, cutting them, partitioning it, and healing all that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from testbed.cluster import contention, lifecycle
from testbed.cluster.injections import Injection, links_of, places
from testbed.cluster.partitions import deaf_across, rules_between
from testbed.cluster.state import State, Store
from testbed.errors import DescriptionError, NotFoundError, Problem
from testbed.kernel import processes, userns
from testbed.kernel.processes import Identity
from testbed.runtime import events
from testbed.spec import units
from testbed.spec.losses import format_gemodel
from testbed.spec.selecting import SELECTOR, expanded, node_of
from testbed.wire.losses import long_run_loss

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Injected:
    """injection: what is in force now. state: of the cluster with it. took: seconds from the call until it was."""

    injection: Injection
    state: State
    took: float


def inject(
    store: Store,
    name: str,
    target: str,
    keys: Mapping[str, object],
    *,
    rules: Sequence[str] = (),
    replay: str = "",
    direction: str = "",
    seconds: float = 0,
) -> Injected:
    """Set what `keys` name on links of a running cluster; both directions unless `direction` says one.

    target: what `injections.links_of` understands. keys: canonical values, as `Impairments.said` gives them. replay: the
    path of a log of fates, which decides instead of chance. seconds: after which it heals by itself; 0: never. When this
    returns, the first frame offered sees it. Raises NotFoundError, DescriptionError for contradictions, RuleError,
    UnsupportedError for what no datapath can do here.
    """
    if not (keys or rules or replay):
        raise DescriptionError("nothing to inject", [Problem("", "", "an impairment (--loss 5%) or a rule")])

    def make(state: State, number: int) -> Injection:
        where = places(state.layout, target, direction)
        said = [described(keys, rules)] if keys or rules else []
        said += [f"replay of {replay}"] if replay else []
        what = f"{', '.join(said)} on {target}" + (f" ({direction})" if direction else "")
        placed = tuple((place, text) for place in where for text in rules)
        return Injection(
            number, what, where if keys or replay else (), dict(keys), placed, replay, until=_until(seconds)
        )

    return _add(store, name, make)


def cut(store: Store, name: str, target: str, seconds: float = 0) -> Injected:
    """Take links down: they carry nothing, and the NICs at their ends have no carrier."""

    def make(state: State, number: int) -> Injection:
        links = tuple(link.name for link in links_of(state.layout, target))
        return Injection(number, f"down: {target}", down=links, until=_until(seconds))

    return _add(store, name, make)


def partition(store: Store, name: str, groups: Sequence[Sequence[str]], seconds: float = 0) -> Injected:
    """Let nothing pass between groups of nodes; within a group, and to nodes that are in none, all passes as before.

    Raises NotFoundError for a node that there is not, DescriptionError for groups that are none.
    """
    state = store.choose(name)
    meant = [expanded(state.layout, group) for group in groups]
    _check_groups(state, meant)
    what = "partition " + " / ".join(",".join(group) for group in groups)

    def make(state: State, number: int) -> Injection:
        return Injection(number, what, rules=rules_between(state.layout, deaf_across(meant)), until=_until(seconds))

    return _add(store, name, make)


def lay(store: Store, name: str, injection: Injection) -> Injected:
    """Put in force what somebody has composed of `injections` and `partitions`; it gets a number of its own."""
    return _add(store, name, lambda _, number: replace(injection, number=number))


def load_processor(store: Store, name: str, node: str, share: float, seconds: float = 0) -> Injected:
    """Use up so much of a node's processors: 0.5 is half of one. node: or a tag, and so much of each that has it."""

    def start(state: State) -> list[Identity]:
        return contention.use_processor(store, state, expanded(state.layout, [node]), share, seconds)

    return _load(store, name, f"load of {share:.0%} of a processor on {node}", start, seconds)


def load_link(
    store: Store, name: str, senders: Sequence[str], receiver: str, rate: int, seconds: float = 0
) -> Injected:
    """Let nodes send to another, each at this rate in bit/s. Without senders all others do (incast)."""
    layout = store.choose(name).layout
    one = node_of(layout, receiver) if receiver.startswith(SELECTOR) else receiver
    chosen = expanded(layout, senders) or [node.name for node in layout.nodes if node.name != one]
    who = ", ".join(chosen[:4]) + (f" and {len(chosen) - 4} more" if len(chosen) > 4 else "")

    def start(state: State) -> list[Identity]:
        return contention.send_traffic(store, state, chosen, one, rate, seconds)

    return _load(store, name, f"load of {units.format_rate(rate)} from {who} to {receiver}", start, seconds)


def _load(store: Store, name: str, what: str, start: Callable[[State], list[Identity]], seconds: float) -> Injected:
    def make(state: State, number: int) -> Injection:
        return Injection(number, what, programs=tuple(start(state)), until=_until(seconds))

    return _add(store, name, make)


def _check_groups(state: State, groups: Sequence[Sequence[str]]) -> None:
    nodes = {node.name for node in state.layout.nodes}
    problems = []
    if len(groups) < 2 or not all(groups):
        problems.append(Problem("", " / ".join(",".join(group) for group in groups), "two groups of nodes or more"))
    seen: set[str] = set()
    for node in (node for group in groups for node in group):
        if node in seen:
            problems.append(Problem("", f"{node} twice", "every node in one group"))
        seen.add(node)
    if problems:
        raise DescriptionError("the partition", problems)
    if missing := sorted(seen - nodes):
        there = ", ".join(node.name for node in state.layout.nodes[:8]) + (", ..." if len(nodes) > 8 else "")
        raise NotFoundError(f"cluster {state.name} has no node {missing[0]!r}; it has {there}")


def heal(store: Store, name: str, numbers: Sequence[int] = ()) -> tuple[Injection, ...]:
    """Lift what was injected, all of it or some; what was lifted. NotFoundError for a number that is not in force."""
    known = {injection.number for injection in store.choose(name).injected}
    if missing := sorted(set(numbers) - known):
        there = f"in force are {', '.join(map(str, sorted(known)))}" if known else "nothing is"
        raise NotFoundError(f"cluster {name} has no injection {missing[0]} in force; {there}")
    if not known:
        return ()
    return as_whoever_may(store, name, partial(lifecycle.heal, store, name, *numbers))


def heal_cut(store: Store, name: str, target: str) -> tuple[Injection, ...]:
    """Lift the cuts of these links (of cuts of several links at once, the whole cut)."""
    state = store.choose(name)
    links = {link.name for link in links_of(state.layout, target)}
    numbers = [injection.number for injection in state.injected if links & set(injection.down)]
    return heal(store, name, numbers) if numbers else ()


def _add(store: Store, name: str, make: Callable[[State, int], Injection]) -> Injected:
    begun = time.monotonic()
    outcome = as_whoever_may(store, name, partial(_alter, store, name, make))
    injection = outcome.injected[-1]
    took = time.monotonic() - begun
    events.record(
        store.directory(name),
        "inject",
        number=injection.number,
        what=injection.what,
        links=sorted(injection.links),
        down=sorted(injection.down),
        until=injection.until,
        took=took,
    )
    return Injected(injection, outcome, took)


def _alter(store: Store, name: str, make: Callable[[State, int], Injection]) -> State:
    made: list[Injection] = []

    def edit(state: State) -> tuple[Injection, ...]:
        made.append(make(state, state.issued + 1))
        return (*state.injected, *made)

    try:
        return lifecycle.alter(store, name, edit).state
    except BaseException:
        for program in (program for injection in made for program in injection.programs):
            processes.end(program)
        raise


def as_whoever_may(store: Store, name: str, act: Callable[[], T]) -> T:
    """As root here, without root in the cluster's user namespace."""
    if userns.is_root():
        return act()
    state = store.choose(name)
    if state.keeper is None or not state.keeper.alive:
        raise NotFoundError(f"cluster {name} is gone: 'testbed gc' removes what is left of it")
    return userns.call_inside(state.keeper.pid, act)


def _until(seconds: float) -> int:
    return time.monotonic_ns() + round(seconds * 1e9) if seconds else 0


def described(keys: Mapping[str, object], rules: Sequence[str]) -> str:
    """Impairments in a user's words: "delay 2ms, loss 5%"."""
    return ", ".join(
        [f"{key} {_text(key, value)}" for key, value in keys.items()] + [f"rule {rule!r}" for rule in rules]
    )


def _text(key: str, value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"{format_gemodel(value)} ({100 * long_run_loss(tuple(value)):.3g}% in the long run)"
    if key in ("queue", "minimum_frame", "cell_size") and isinstance(value, int):
        return units.format_size(value)
    if key in ("delay", "jitter") and isinstance(value, int):
        return units.format_duration(value)
    if key == "rate" and isinstance(value, int):
        return units.format_limit(value)
    if isinstance(value, float):
        return units.format_probability(value)
    return str(value)
