"""Feasibility of a scenario on a cluster, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.cluster.faults.injections import Injection, in_force
from testbed.cluster.plan.link_decisions import decide
from testbed.controller.scenarios.random_faults import draw_faults
from testbed.controller.scenarios.targets import candidates, injection_of, senders_of, touched_nodes
from testbed.errors import DescriptionError, NotFoundError, Problem, TestbedError, UnsupportedError, reason_of
from testbed.fates.rules import Rule
from testbed.fates.tokens import RuleError
from testbed.fields import known_fields
from testbed.kernel import userns
from testbed.kernel.filesystem import read_text
from testbed.spec.fault_models import (
    Churn,
    Crash,
    Fault,
    Impair,
    Incast,
    OnLinks,
    OnNodes,
    Reset,
    Restart,
    Slow,
    Traffic,
)
from testbed.spec.kinds import Kind
from testbed.spec.layout import Asked, Layout
from testbed.spec.problems import item
from testbed.spec.scenario import Scenario, slow_fault
from testbed.spec.selection import node_of


def check(
    scenario: Scenario,
    layout: Layout,
    mode: str,
    *,
    over_kernel: bool = False,
    commands: bool = False,
    asked: Asked = "auto",
    slow: int = 0,
    lasting: str = "",
) -> None:
    """Check that a scenario can be carried out. over_kernel: beside programs that use the kernel's sockets. commands:
    beside commands. asked: the requested datapath of links. slow: the factor by which time is slowed, 0 where it is not.
    lasting: the name of a workload whose programs cannot restart.

    Raises DescriptionError with all names and values that are wrong, then UnsupportedError with all faults that this
    mode, machine or user cannot have.
    """
    problems: list[Problem] = []
    refusals: list[str] = []
    named = [(item("fault", number), fault) for number, fault in enumerate(scenario.faults)]
    for name, fault in named:
        for look in (_nodes, _links, _check_pick):
            try:
                look(fault, layout)
            except (NotFoundError, RuleError, DescriptionError) as error:
                problems += _as_problems(name, error)
    if scenario.random is not None:
        try:
            draw_faults(scenario.random, layout, 0, 0)
        except NotFoundError as error:
            problems += _as_problems("random", error)
    if problems:
        raise DescriptionError(f"{scenario.name}, on {layout.name}", problems)
    for name, fault in named:
        refusals += [f"  {name}: {reason}" for reason in _refusals(fault, layout, mode, over_kernel, commands, asked)]
        refusals += [f"  {name}: {reason}" for reason in _not_slowed(fault, slow)]
        if lasting and _starts_again(fault):
            refusals.append(f"  {name}: {_RESTARTS.format(kind=fault.kind, workload=lasting)}")
    chance = scenario.random.kinds if scenario.random is not None else ()
    if over_kernel and _AGAIN & set(chance):
        refusals.append(f"  random: {_CONNECTIONS}")
    if lasting and (again := sorted(_AGAIN & set(chance))):
        refusals.append(f"  random: {_RESTARTS.format(kind=', '.join(again), workload=lasting)}")
    if commands and "reset" in chance:
        refusals.append(f"  random: {_FIRMWARE.format(kind='reset')}")
    if refusals:
        raise UnsupportedError("\n".join([f"{scenario.name} cannot be carried out in {mode}:", *refusals]))


def texts_of(faults: Sequence[Fault]) -> Mapping[str, str]:
    """Read the files that faults name, by path. Raises NotFoundError, TestbedError."""
    texts = {}
    for fault in faults:
        for path in (fault.jitter_file, fault.rate_trace) if isinstance(fault, Impair) else ():
            if path is not None:
                try:
                    texts[path] = read_text(Path(path))
                except FileNotFoundError as error:
                    raise NotFoundError(reason_of(error)) from error
                except (OSError, UnicodeDecodeError) as error:
                    raise TestbedError(
                        reason_of(error) if isinstance(error, OSError) else f"{path} is no text"
                    ) from error
    return texts


def restarts_nics(scenario: Scenario) -> bool:
    """Whether a NIC restarts, or may restart by chance."""
    chance = scenario.random.kinds if scenario.random is not None else ()
    return bool(_AGAIN & set(chance)) or any(_starts_again(fault) for fault in scenario.faults)


_AGAIN = frozenset({"crash", "restart", "reset"})
"""Kinds of random faults after which a program restarts."""

_CONNECTIONS = "a program that starts again cannot make anew the kernel's connections, which its peers still have"

_FIRMWARE = "{kind}: only a NIC's firmware has it, and beside commands there is none: it goes with a workload on NICs"


_RESTARTS = (
    "{kind}: workload {workload} does not support restarts of a node's program; workload churn does, or one of your "
    "own with bears_restarts = True"
)


def _nodes(fault: Fault, layout: Layout) -> None:
    nics = {node.name: bool(node.nics) for node in layout.nodes}
    names = touched_nodes(layout, fault)
    if isinstance(fault, Traffic | Incast):
        senders = senders_of(layout, fault)
        if node_of(layout, fault.receiver) in senders:
            raise DescriptionError("", [Problem("senders", f"{fault.receiver} to itself", "other nodes")])
    for name in names:
        if not nics[name]:
            raise NotFoundError(f"node {name} has no NIC")


def _check_pick(fault: Fault, layout: Layout) -> None:
    if isinstance(fault, OnNodes | OnLinks) and fault.pick is not None:
        available = len(candidates(layout, fault))
        if fault.pick > available:
            raise DescriptionError(
                "", [Problem("pick", str(fault.pick), f"at most {available}, which is what 'on' means")]
            )


def _links(fault: Fault, layout: Layout) -> None:
    injection = injection_of(fault, layout)
    if injection is None:
        return
    links = {link.name: link for link in layout.links}
    for text in dict.fromkeys(text for _, text in injection.rules):
        Rule.parse(text, known_fields(), links)
    for link, direction in injection.places:
        in_force(links[link], direction, [injection])


def _as_problems(name: str, error: TestbedError) -> list[Problem]:
    if isinstance(error, DescriptionError):
        return [
            Problem(
                f"{name}{f'.{problem.path}' if problem.path else ''}",
                problem.found,
                problem.expected,
                problem.suggestion,
            )
            for problem in error.problems
        ]
    what = "name" if isinstance(error, NotFoundError) else "rule"
    return [Problem(name, f"a wrong {what}", f"a right one: {str(error).splitlines()[0]}")]


def _refusals(fault: Fault, layout: Layout, mode: str, over_kernel: bool, commands: bool, asked: Asked) -> list[str]:
    if commands and isinstance(fault, Reset | Slow):
        return [_FIRMWARE.format(kind=fault.kind)]
    if over_kernel and _starts_again(fault):
        return [_CONNECTIONS]
    if isinstance(fault, Traffic | Incast) and (framed := _framed(fault, layout)):
        return [f"{fault.kind}: {', '.join(framed)}: {next(iter(framed.values())).refusal}"]
    if mode == "sim":
        return _meaningless(fault, layout)
    if isinstance(fault, Slow) and mode != "dilated":
        return [
            "slow: a NIC's processor takes its time in a cost model, which only the simulation has (--profile): in "
            "namespaces a firmware runs in its host's process, and what slowed it would slow the programs there, too"
        ]
    injection = injection_of(fault, layout)
    return _not_carried(injection, layout, asked) if injection is not None else []


def _not_slowed(fault: Fault, slow: int) -> list[str]:
    try:
        if slow:
            slow_fault(fault, slow)
    except UnsupportedError as error:
        return [str(error)]
    return []


def _starts_again(fault: Fault) -> bool:
    """Whether a program restarts after the fault."""
    if isinstance(fault, Crash):
        return fault.to is not None or fault.for_ is not None
    return isinstance(fault, Restart | Reset | Churn)


def _framed(fault: Traffic | Incast, layout: Layout) -> dict[str, Kind]:
    """Return the nodes of a load at switches that forward by source routes, with the kinds of these switches."""
    framed = layout.framed()
    names = (*senders_of(layout, fault), node_of(layout, fault.receiver))
    return {name: framed[name] for name in names if name in framed}


def _meaningless(fault: Fault, layout: Layout) -> list[str]:
    """Name links at modelled switches that cannot have the impairment on any datapath."""
    injection = injection_of(fault, layout)
    if injection is None:
        return []
    refusals, modelled = [], layout.modelled()
    for link, direction in injection.places:
        cable = next(cable for cable in layout.links if cable.name == link)
        kind = modelled.get(cable.a.owner) or modelled.get(cable.b.owner)
        if kind and (keys := kind.unsupported(in_force(cable, direction, (injection,)).impairment)):
            refusals.append(f"{link}: {kind.why_lacks}: it can have no {', '.join(keys)}")
    return list(dict.fromkeys(refusals))


def _not_carried(injection: Injection, layout: Layout, asked: Asked) -> list[str]:
    """Name links that cannot have the impairment on this machine."""
    if not userns.is_root():  # a user namespace's capabilities are probed in it, when the cluster is up
        direct = [link.name for link in layout.links if link.name in injection.links and link.datapath == "direct"]
        return [f'{", ".join(direct)}: declared datapath = "direct", with nothing in between'] if direct else []
    try:
        decide(layout, (injection,), asked, Path.cwd())
    except UnsupportedError as error:
        return [" ".join(line.strip() for line in str(error).splitlines()[1:])]
    return []
