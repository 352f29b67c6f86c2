"""Inject faults into a running cluster: impair links, cut them, partition nodes, load nodes and links; and heal them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from testbed.cluster import lifecycle
from testbed.cluster.faults import background_load
from testbed.cluster.faults.injections import (
    DirectionKey,
    Injection,
    blocked_senders,
    in_force,
    links_of,
    rules_between,
    select_directions,
)
from testbed.cluster.records.state import State, Store
from testbed.errors import DescriptionError, NotFoundError, Problem
from testbed.fates.loss_models import long_run_loss
from testbed.kernel import processes, userns
from testbed.kernel.processes import Identity
from testbed.lazy_dataclass import dataclass
from testbed.runtime import event_log
from testbed.spec import units
from testbed.spec.contradictions import NEEDS_RATE, RATE_KEYS
from testbed.spec.layout import Layout
from testbed.spec.losses import format_gemodel
from testbed.spec.selection import SELECTOR, expand_tags, node_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Injected:
    """Result of an injection. state: state of the cluster, including the injection. took: seconds from the call until the
    injection was in force.
    """

    injection: Injection
    state: State
    took: float


def inject(
    store: Store,
    name: str,
    target: str | tuple[str, ...],
    keys: Mapping[str, object],
    *,
    rules: Sequence[str] = (),
    replay: str = "",
    direction: str = "",
    seconds: float = 0,
) -> Injected:
    """Set impairments on links of a running cluster, in both directions unless `direction` names one.

    target: one target or several, each as for `injections.links_of`. keys: impairment keys with canonical values, as from
    `Impairments.explicit`. replay: the path of a log of fates that replaces random decisions. direction: as for
    `injections.directions_of`. seconds: time after which the injection heals by itself; 0: never.

    The injection applies to the first frame offered after this returns. Raises NotFoundError, DescriptionError for
    contradictions, RuleError, UnsupportedError if no datapath of this machine supports it.
    """

    def make(state: State, number: int) -> Injection:
        composed = compose_impairment(
            state.layout, state.injected, target, keys, rules=rules, replay=replay, direction=direction
        )
        return replace(composed, number=number, until=_heal_time(seconds))

    return _add(store, name, make)


def compose_impairment(
    layout: Layout,
    injected: Sequence[Injection],
    target: str | tuple[str, ...],
    keys: Mapping[str, object],
    *,
    rules: Sequence[str] = (),
    replay: str = "",
    direction: str = "",
) -> Injection:
    """Compose the injection of `inject`, without a number, for `apply_injection`. injected: the injections in force."""
    if not (keys or rules or replay):
        raise DescriptionError("nothing to inject", [Problem("", "", "an impairment (--loss 5%) or a rule")])
    directions = select_directions(layout, target, direction)
    _check_rate(layout, injected, directions, keys)
    impairments = [describe_impairments(keys, rules)] if keys or rules else []
    impairments += [f"replay of {replay}"] if replay else []
    target_text = target if isinstance(target, str) else ", ".join(target)
    what = f"{', '.join(impairments)} on {target_text}" + (f" ({direction})" if direction else "")
    directed_rules = tuple((key, text) for key in directions for text in rules)
    return Injection(0, what, directions if keys or replay else (), dict(keys), directed_rules, replay)


def _check_rate(
    layout: Layout, injected: Sequence[Injection], directions: Sequence[DirectionKey], keys: Mapping[str, object]
) -> None:
    """Raise DescriptionError for keys that need a rate if none of the directions has one."""
    dependent = [key for key in RATE_KEYS if keys.get(key)]
    if not dependent or "rate" in keys or "rate_trace" in keys:
        return
    links = {link.name: link for link in layout.links}
    impairments = [in_force(links[link], direction, injected).impairment for link, direction in directions]
    if not any(impairment.rate or impairment.rate_trace for impairment in impairments):
        problems = [Problem(key, f"{key} without a rate", NEEDS_RATE) for key in dependent]
        raise DescriptionError("the injection", problems)


def cut(store: Store, name: str, target: str, seconds: float = 0) -> Injected:
    """Take links down: they carry nothing, and the NICs at their ends lose their carrier. For arguments see `inject`."""

    def make(state: State, number: int) -> Injection:
        return replace(compose_cut(state.layout, target), number=number, until=_heal_time(seconds))

    return _add(store, name, make)


def compose_cut(layout: Layout, target: str) -> Injection:
    """Compose the injection of `cut`, without a number, for `apply_injection`."""
    return Injection(0, f"down: {target}", down=tuple(link.name for link in links_of(layout, target)))


def partition(store: Store, name: str, groups: Sequence[Sequence[str]], seconds: float = 0) -> Injected:
    """Block all traffic between groups of nodes. Traffic within a group, and with nodes in no group, is unaffected.

    seconds: as for `inject`. Raises NotFoundError for an unknown node, DescriptionError for invalid groups.
    """

    def make(state: State, number: int) -> Injection:
        return replace(compose_partition(state.layout, groups), number=number, until=_heal_time(seconds))

    return _add(store, name, make)


def compose_partition(layout: Layout, groups: Sequence[Sequence[str]]) -> Injection:
    """Compose the injection of `partition`, without a number, for `apply_injection`."""
    expanded = [expand_tags(layout, group) for group in groups]
    _check_groups(layout, expanded)
    what = "partition " + " / ".join(",".join(group) for group in groups)
    return Injection(0, what, rules=rules_between(layout, blocked_senders(expanded)))


def apply_injection(store: Store, name: str, injection: Injection, seconds: float = 0) -> Injected:
    """Put a composed injection in force.

    It gets the cluster's next number unless its own is higher. seconds: time after which it heals by itself; 0: at the time
    in its `until`.
    """

    def make(_: State, number: int) -> Injection:
        return replace(injection, number=max(number, injection.number), until=_heal_time(seconds) or injection.until)

    return _add(store, name, make)


def load_processor(store: Store, name: str, node: str, share: float, seconds: float = 0, number: int = 0) -> Injected:
    """Use up processor time on a node.

    node: a name, or a tag for all nodes that have it. share: 0.5 is half of a processor, 2 is two processors. seconds: as
    for `inject`. number: minimum number of the injection.
    """

    def start(state: State) -> list[Identity]:
        return background_load.use_processor(store, state, expand_tags(state.layout, [node]), share, seconds)

    return _load(store, name, f"load of {share:.0%} of a processor on {node}", start, seconds, number)


def load_link(
    store: Store, name: str, senders: Sequence[str], receiver: str, rate: int, seconds: float = 0, number: int = 0
) -> Injected:
    """Send traffic from several nodes to one.

    senders: empty: all other nodes (incast). rate: of each sender, bit/s. seconds: as for `inject`. number: as for
    `load_processor`.
    """
    layout = store.choose(name).layout
    receiving_node = node_of(layout, receiver) if receiver.startswith(SELECTOR) else receiver
    chosen = expand_tags(layout, senders) or [node.name for node in layout.nodes if node.name != receiving_node]
    senders_text = ", ".join(chosen[:4]) + (f" and {len(chosen) - 4} more" if len(chosen) > 4 else "")

    def start(state: State) -> list[Identity]:
        return background_load.send_traffic(store, state, chosen, receiving_node, rate, seconds)

    return _load(
        store, name, f"load of {units.format_rate(rate)} from {senders_text} to {receiver}", start, seconds, number
    )


def _load(
    store: Store, name: str, what: str, start: Callable[[State], list[Identity]], seconds: float, min_number: int
) -> Injected:
    def make(state: State, number: int) -> Injection:
        return Injection(max(number, min_number), what, programs=tuple(start(state)), until=_heal_time(seconds))

    return _add(store, name, make)


def _check_groups(layout: Layout, groups: Sequence[Sequence[str]]) -> None:
    nodes = {node.name for node in layout.nodes}
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
    if unknown := sorted(seen - nodes):
        known_names = ", ".join(node.name for node in layout.nodes[:8]) + (", ..." if len(nodes) > 8 else "")
        raise NotFoundError(f"cluster {layout.name} has no node {unknown[0]!r}; it has {known_names}")


def heal(store: Store, name: str, numbers: Sequence[int] = ()) -> tuple[Injection, ...]:
    """Lift injections; return them. numbers: of the injections; empty: all. Raises NotFoundError for a number that is not in
    force, and the errors of `lifecycle.alter`."""
    active = {injection.number for injection in store.choose(name).injected}
    if unknown := sorted(set(numbers) - active):
        alternatives = f"in force are {', '.join(map(str, sorted(active)))}" if active else "none is in force"
        raise NotFoundError(f"cluster {name} has no injection {unknown[0]}; {alternatives}")
    if not active:
        return ()
    return run_in_user_namespace(store, name, partial(lifecycle.heal, store, name, *numbers))


def heal_cut(store: Store, name: str, target: str) -> tuple[Injection, ...]:
    """Lift the cuts of a target's links. A cut of several links is lifted as a whole."""
    state = store.choose(name)
    links = {link.name for link in links_of(state.layout, target)}
    numbers = [injection.number for injection in state.injected if links & set(injection.down)]
    return heal(store, name, numbers) if numbers else ()


def _add(store: Store, name: str, make: Callable[[State, int], Injection]) -> Injected:
    started = time.monotonic()
    state = run_in_user_namespace(store, name, partial(_alter, store, name, make))
    injection = state.injected[-1]
    took = time.monotonic() - started
    event_log.record(
        store.directory(name),
        "inject",
        number=injection.number,
        what=injection.what,
        links=sorted(injection.links),
        down=sorted(injection.down),
        until=injection.until,
        took=took,
    )
    return Injected(injection, state, took)


def _alter(store: Store, name: str, make: Callable[[State, int], Injection]) -> State:
    new: list[Injection] = []

    def edit(state: State) -> tuple[Injection, ...]:
        new.append(make(state, state.issued + 1))
        return (*state.injected, *new)

    try:
        return lifecycle.alter(store, name, edit).state
    except BaseException:
        for program in (program for injection in new for program in injection.programs):
            processes.end(program)
        raise


def run_in_user_namespace(store: Store, name: str, act: Callable[[], T]) -> T:
    """Call `act` directly as root, otherwise in the cluster's user namespace; return its result. Raises NotFoundError if
    the cluster has ended."""
    if userns.is_root():
        return act()
    state = store.choose(name)
    if state.end_reason:
        raise NotFoundError(state.end_reason)
    if state.holder is None:
        raise NotFoundError(f"cluster {name} is gone: 'testbed gc' removes what is left of it")
    return userns.call_inside(state.holder.pid, act)


def _heal_time(seconds: float) -> int:
    """Return the `until` of an injection that lasts for this time. seconds: 0: without end."""
    return time.monotonic_ns() + round(seconds * 1e9) if seconds else 0


def describe_impairments(keys: Mapping[str, object], rules: Sequence[str]) -> str:
    """Format impairments with the keys and units that users write: "delay 2ms, loss 5%"."""
    return ", ".join(
        [f"{key} {_format_value(key, value)}" for key, value in keys.items()] + [f"rule {rule!r}" for rule in rules]
    )


def _format_value(key: str, value: object) -> str:
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
