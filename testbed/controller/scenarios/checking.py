"""Whether a scenario can be carried out on a cluster, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.cluster.deciding import decide
from testbed.cluster.injections import Injection, in_force
from testbed.controller.scenarios.targets import candidates, injection_of, senders_of, touched_nodes
from testbed.errors import DescriptionError, NotFoundError, Problem, TestbedError, UnsupportedError, reason_of
from testbed.fields import known_fields
from testbed.kernel import userns
from testbed.kernel.datapaths import Asked
from testbed.spec.faults import Churn, Crash, Fault, Impair, Incast, OnLinks, OnNodes, Reset, Restart, Slow, Traffic
from testbed.spec.layout import Layout
from testbed.spec.myrinet import WHY, meaningless
from testbed.spec.problems import item
from testbed.spec.scenario import Scenario
from testbed.spec.selecting import node_of
from testbed.spec.slowed_faults import slowed_fault
from testbed.wire.rules import Rule
from testbed.wire.tokens import RuleError


def check(
    scenario: Scenario,
    layout: Layout,
    mode: str,
    *,
    over_kernel: bool = False,
    commands: bool = False,
    asked: Asked = "auto",
    slow: int = 0,
) -> None:
    """over_kernel: it is beside programs that talk through the kernel's sockets. commands: beside commands. asked: the
    datapath that links shall have. slow: how many times time is dilated, 0 where it is not.

    Raises DescriptionError with all that is not there or makes no sense, then UnsupportedError with all that this mode, this
    machine or this user cannot do.
    """
    problems: list[Problem] = []
    refusals: list[str] = []
    named = [(item("fault", number), fault) for number, fault in enumerate(scenario.faults)]
    for name, fault in named:
        for look in (_nodes, _links, _picks):
            try:
                look(fault, layout)
            except (NotFoundError, RuleError, DescriptionError) as error:
                problems += _as_problems(name, error)
    if scenario.random is not None:
        from testbed.controller.scenarios.drawing import drawn

        try:
            drawn(scenario.random, layout, 0, 0)
        except NotFoundError as error:
            problems += _as_problems("random", error)
    if problems:
        raise DescriptionError(f"{scenario.name}, on {layout.name}", problems)
    for name, fault in named:
        refusals += [f"  {name}: {said}" for said in _refusals(fault, layout, mode, over_kernel, commands, asked)]
        refusals += [f"  {name}: {said}" for said in _not_slowed(fault, slow)]
    chance = scenario.random.kinds if scenario.random is not None else ()
    if over_kernel and {"crash", "restart", "reset"} & set(chance):
        refusals.append(f"  random: {_CONNECTIONS}")
    if commands and "reset" in chance:
        refusals.append(f"  random: {_FIRMWARE.format(kind='reset')}")
    if refusals:
        raise UnsupportedError("\n".join([f"{scenario.name} cannot be carried out in {mode}:", *refusals]))


def texts_of(faults: Sequence[Fault]) -> Mapping[str, str]:
    """The files that faults name, by their paths. Raises NotFoundError, TestbedError."""
    found = {}
    for fault in faults:
        for path in (fault.jitter_file, fault.rate_trace) if isinstance(fault, Impair) else ():
            if path is not None:
                try:
                    found[path] = Path(path).read_text()
                except FileNotFoundError as error:
                    raise NotFoundError(reason_of(error)) from error
                except (OSError, UnicodeDecodeError) as error:
                    raise TestbedError(
                        reason_of(error) if isinstance(error, OSError) else f"{path} is no text"
                    ) from error
    return found


_CONNECTIONS = "a program that starts again cannot make anew the kernel's connections, which its peers still have"

_FIRMWARE = "{kind}: only a NIC's firmware has it, and beside commands there is none: it goes with a workload on NICs"


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


def _picks(fault: Fault, layout: Layout) -> None:
    if isinstance(fault, OnNodes | OnLinks) and fault.pick is not None:
        there = len(candidates(layout, fault))
        if fault.pick > there:
            raise DescriptionError("", [Problem("pick", str(fault.pick), f"at most {there}, which is what 'on' means")])


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
            Problem(f"{name}{f'.{one.path}' if one.path else ''}", one.found, one.expected, one.suggestion)
            for one in error.problems
        ]
    what = "name" if isinstance(error, NotFoundError) else "rule"
    return [Problem(name, f"a wrong {what}", f"a right one: {str(error).splitlines()[0]}")]


def _refusals(fault: Fault, layout: Layout, mode: str, over_kernel: bool, commands: bool, asked: Asked) -> list[str]:
    if commands and isinstance(fault, Reset | Slow):
        return [_FIRMWARE.format(kind=fault.kind)]
    if over_kernel and (isinstance(fault, Restart | Reset | Churn) or _comes_back(fault)):
        return [_CONNECTIONS]
    if isinstance(fault, Traffic | Incast) and (routed := _routed(fault, layout)):
        return [f"{fault.kind}: {', '.join(routed)}: the kernel's datagrams have no routes through Myrinet's switches"]
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
            slowed_fault(fault, slow)
    except UnsupportedError as error:
        return [str(error)]
    return []


def _comes_back(fault: Fault) -> bool:
    return isinstance(fault, Crash) and (fault.to is not None or fault.for_ is not None)


def _routed(fault: Traffic | Incast, layout: Layout) -> list[str]:
    """The nodes among these that Myrinet's switches join."""
    routed = layout.routed()
    return [name for name in (*senders_of(layout, fault), node_of(layout, fault.receiver)) if name in routed]


def _meaningless(fault: Fault, layout: Layout) -> list[str]:
    """Links of Myrinet's that cannot have it, whoever carries them."""
    injection = injection_of(fault, layout)
    if injection is None:
        return []
    found = []
    for link, direction in injection.places:
        one = next(one for one in layout.links if one.name == link)
        if layout.crossbars() & {one.a.owner, one.b.owner}:
            keys = meaningless(in_force(one, direction, (injection,)).impairment)
            found += [f"{link}: {WHY}: it can have no {', '.join(keys)}"] if keys else []
    return list(dict.fromkeys(found))


def _not_carried(injection: Injection, layout: Layout, asked: Asked) -> list[str]:
    """Links that cannot have it on this machine."""
    if not userns.is_root():  # what a user's namespace can do is found out in it, when the cluster is up
        direct = [link.name for link in layout.links if link.name in injection.links and link.datapath == "direct"]
        return [f'{", ".join(direct)}: declared datapath = "direct", with nothing in between'] if direct else []
    try:
        decide(layout, (injection,), asked, Path.cwd())
    except UnsupportedError as error:
        return [" ".join(line.strip() for line in str(error).splitlines()[1:])]
    return []
