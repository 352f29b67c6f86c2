"""Feasibility of a scenario on a cluster, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

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
    Partition,
    Reset,
    Restart,
    Slow,
    Traffic,
)
from testbed.spec.kinds import Kind
from testbed.spec.layout import ConfiguredDatapath, Layout
from testbed.spec.problems import MismatchError, item
from testbed.spec.scenario import RandomFaults, Scenario, slow_fault
from testbed.spec.selection import node_of

_RESTARTING: Final = frozenset({"crash", "restart", "reset"})
"""Kinds of random faults after which a program restarts."""

_NO_RECONNECTION: Final = "a restarted program cannot restore connections of the kernel, which its peers still have"

_NO_FIRMWARE: Final = "{kind}: this fault acts on a NIC's firmware, which commands do not have: use a workload on NICs"

_NO_RESTARTS: Final = (
    "{kind}: workload {workload} does not support restarts of a node's program: use workload churn, or your own with "
    "supports_restarts = True"
)


def check(
    scenario: Scenario,
    layout: Layout,
    mode: str,
    *,
    over_kernel: bool = False,
    commands: bool = False,
    datapath: ConfiguredDatapath = "auto",
    factor: int = 0,
    no_restarts: str = "",
) -> None:
    """Check that a scenario is feasible. over_kernel: whether programs use the kernel's sockets. commands: whether programs
    are commands. datapath: requested for links. factor: factor by which time is slowed; 0 unless the run is dilated.
    no_restarts: name of a workload whose programs cannot restart, or empty.

    Raises DescriptionError with all wrong names and values, or UnsupportedError with all faults that this mode, machine or
    user does not support.
    """
    problems: list[Problem] = []
    refusals: list[str] = []
    named_faults = [(item("fault", number), fault) for number, fault in enumerate(scenario.faults)]
    for name, fault in named_faults:
        for check_names in (_check_nodes, _check_links, _check_pick):
            try:
                check_names(fault, layout)
            except (NotFoundError, RuleError, DescriptionError) as error:
                problems += _as_problems(name, error)
    if scenario.random is not None:
        try:
            draw_faults(scenario.random, layout, 0, 0)
        except NotFoundError as error:
            problems += _as_problems("random", error)
        except MismatchError as error:
            problems.append(Problem("random", "", error.expected))
    if problems:
        raise DescriptionError(f"{scenario.name}, on {layout.name}", problems)
    for name, fault in named_faults:
        refusals += [
            f"  {name}: {reason}" for reason in _refusals(fault, layout, mode, over_kernel, commands, datapath)
        ]
        refusals += [f"  {name}: {reason}" for reason in _dilation_refusals(fault, factor)]
        if no_restarts and _restarts_program(fault):
            refusals.append(f"  {name}: {_NO_RESTARTS.format(kind=fault.kind, workload=no_restarts)}")
    random_kinds = scenario.random.kinds if scenario.random is not None else ()
    refusals += [
        f"  random: {reason}"
        for fault in _random_examples(scenario.random, layout)
        for reason in _refusals(fault, layout, mode, over_kernel, commands, datapath)
    ]
    if over_kernel and _RESTARTING & set(random_kinds):
        refusals.append(f"  random: {_NO_RECONNECTION}")
    if no_restarts and (restarting := sorted(_RESTARTING & set(random_kinds))):
        refusals.append(f"  random: {_NO_RESTARTS.format(kind=', '.join(restarting), workload=no_restarts)}")
    if commands and "reset" in random_kinds:
        refusals.append(f"  random: {_NO_FIRMWARE.format(kind='reset')}")
    if refusals:
        raise UnsupportedError("\n".join([f"{scenario.name} is not supported in {mode}:", *refusals]))


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
                        reason_of(error) if isinstance(error, OSError) else f"{path} is not a text file"
                    ) from error
    return texts


def restarts_nics(scenario: Scenario) -> bool:
    """Whether a scenario restarts NICs, or may do so at random."""
    random_kinds = scenario.random.kinds if scenario.random is not None else ()
    return bool(_RESTARTING & set(random_kinds)) or any(_restarts_program(fault) for fault in scenario.faults)


def _check_nodes(fault: Fault, layout: Layout) -> None:
    has_nic = {node.name: bool(node.nics) for node in layout.nodes}
    names = touched_nodes(layout, fault)
    if isinstance(fault, Traffic | Incast):
        senders = senders_of(layout, fault)
        if node_of(layout, fault.receiver) in senders:
            raise DescriptionError("", [Problem("senders", f"{fault.receiver} to itself", "other nodes")])
    for name in names:
        if not has_nic[name]:
            raise NotFoundError(f"node {name} has no NIC")


def _check_pick(fault: Fault, layout: Layout) -> None:
    if isinstance(fault, OnNodes | OnLinks) and fault.pick is not None:
        available = len(candidates(layout, fault))
        if fault.pick > available:
            raise DescriptionError(
                "", [Problem("pick", str(fault.pick), f"at most {available}, the number of targets in 'on'")]
            )


def _check_links(fault: Fault, layout: Layout) -> None:
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
    kind = "name" if isinstance(error, NotFoundError) else "rule"
    return [Problem(name, f"a wrong {kind}", f"a valid one: {str(error).splitlines()[0]}")]


def _refusals(
    fault: Fault, layout: Layout, mode: str, over_kernel: bool, commands: bool, datapath: ConfiguredDatapath
) -> list[str]:
    if commands and isinstance(fault, Reset | Slow):
        return [_NO_FIRMWARE.format(kind=fault.kind)]
    if over_kernel and _restarts_program(fault):
        return [_NO_RECONNECTION]
    if isinstance(fault, Traffic | Incast) and (framed := _framed(fault, layout)):
        return [f"{fault.kind}: {', '.join(framed)}: {next(iter(framed.values())).refusal}"]
    if mode == "sim":
        return _unsupported_impairments(fault, layout)
    if isinstance(fault, Slow) and mode != "dilated":
        return [
            "slow: only a cost model can slow a NIC, in simulated and dilated runs (--profile): in live, firmware runs in "
            "the process of its host, and slowing it would also slow the host's program"
        ]
    injection = injection_of(fault, layout)
    return _datapath_refusals(injection, layout, datapath) if injection is not None else []


def _random_examples(random: RandomFaults | None, layout: Layout) -> list[Fault]:
    """Return an example of each kind of random fault that some networks or datapaths do not support."""
    if random is None:
        return []
    examples = {
        "impair": Impair(on=random.on, at=0, delay="1ms", loss="1%", duplicate="1%"),
        "partition": Partition(shape="halves", at=0),
        "incast": Incast(receiver=layout.nodes[0].name, rate="1mbit", at=0),
    }
    return [fault for kind, fault in examples.items() if kind in random.kinds]


def _dilation_refusals(fault: Fault, factor: int) -> list[str]:
    try:
        if factor:
            slow_fault(fault, factor)
    except UnsupportedError as error:
        return [str(error)]
    return []


def _restarts_program(fault: Fault) -> bool:
    """Whether a program restarts after the fault."""
    if isinstance(fault, Crash):
        return fault.to is not None or fault.for_ is not None
    return isinstance(fault, Restart | Reset | Churn)


def _framed(fault: Traffic | Incast, layout: Layout) -> dict[str, Kind]:
    """Return the nodes of a load that are in networks with a framing, with the kinds of these networks."""
    framed = layout.framed_nodes()
    names = (*senders_of(layout, fault), node_of(layout, fault.receiver))
    return {name: framed[name] for name in names if name in framed}


def _unsupported_impairments(fault: Fault, layout: Layout) -> list[str]:
    """Return a reason for each link of a modelled network that does not support the impairment on any datapath."""
    injection = injection_of(fault, layout)
    if injection is None:
        return []
    refusals = []
    for link, direction in injection.places:
        cable = next(cable for cable in layout.links if cable.name == link)
        if (kind := cable.model) and (keys := kind.unsupported(in_force(cable, direction, (injection,)).impairment)):
            refusals.append(f"{link}: {kind.why_lacks}: it can have no {', '.join(keys)}")
    return list(dict.fromkeys(refusals))


def _datapath_refusals(injection: Injection, layout: Layout, datapath: ConfiguredDatapath) -> list[str]:
    """Return the reasons why links cannot have the impairment on this machine."""
    if not userns.is_root():  # a user namespace's capabilities are probed in it, when the cluster is up
        direct = [link.name for link in layout.links if link.name in injection.links and link.datapath == "direct"]
        return [f'{", ".join(direct)}: datapath = "direct", which cannot impair frames'] if direct else []
    try:
        decide(layout, (injection,), datapath, Path())
    except UnsupportedError as error:
        return [" ".join(line.strip() for line in str(error).splitlines()[1:])]
    return []
