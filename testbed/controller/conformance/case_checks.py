"""Checks by many cases: all fates of the first frames, and the message swarm. A failing case is reduced, and a command
repeats it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Final, NamedTuple

from protocols.core.firmware import Plug
from testbed.controller.conformance import fate_schedules, message_swarm
from testbed.controller.conformance.candidate import REST, Candidate, candidate
from testbed.controller.conformance.exchanges import EXCHANGES, MatchedExchange, MatchedProtocol
from testbed.controller.conformance.fate_schedules import DEPTH, FATES, Gate, reduce_fates, run_with_gate
from testbed.controller.conformance.message_swarm import SIZES, Case, DeviceTransport, smaller
from testbed.controller.conformance.network_faults import KINDS, REORDERING
from testbed.controller.conformance.trials import Swarm, Violation, run_seeds
from testbed.errors import NotFoundError
from testbed.sim.sim_node import SimNode

PAYLOAD: Final = 1_400
"""Bytes of a message per frame of an exchange. If a protocol's frames hold less, messages have more frames."""
MAX_ATTEMPTS: Final = 100
"""Maximum number of cases in a reduction."""


def _command(name: str, check: str) -> str:
    return f"testbed protocol check {name} --only {check} --case"


# All fates of the first transmissions.


@cache
def schedules_of(name: str) -> fate_schedules.Subject:
    """Return a registered protocol with its exchanges."""
    checked = candidate(name)
    protocol = MatchedProtocol(
        checked.protocol.plug, checked.protocol.device, PAYLOAD, max_message_size=checked.max_message_size
    )
    stages = {exchange.name: partial(MatchedExchange, protocol, exchange) for exchange in EXCHANGES.values()}
    return fate_schedules.Subject(name, stages, f"{_command(name, 'fates')} %s:%s", rest=REST)


def fates(candidate: Candidate, depth: int = DEPTH) -> str:
    """Run all schedules of `depth` transmissions, for every exchange; return a summary. Raises Violation."""
    tallies = fate_schedules.search_all(partial(schedules_of, candidate.name), depth, max_failures=1)
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    if failures:
        reduced = reduce_fates(schedules_of(candidate.name), failures[0])
        raise Violation(f"{reduced.reason}\nto repeat it: {reduced.command}")
    executed = sum(tally.executed for tally in tallies.values())
    covered = sum(tally.covered for tally in tallies.values())
    recovery = max(tally.recovery for tally in tallies.values())
    return (
        f"{covered:,} schedules of {depth} frames, {len(tallies)} exchanges ({executed:,} executed, the others are "
        f"equivalent); at most {recovery / 1e6:.1f} ms to recover"
    )


def run_schedule(candidate: Candidate, case: str) -> str:
    """Run one schedule, such as ``1+1:pdthpp``; return its transmissions as text. Raises Violation, and NotFoundError for an
    unknown case."""
    exchange, _, letters = case.partition(":")
    if exchange not in EXCHANGES or set(letters) - set(FATES):
        raise NotFoundError(
            f"unknown case {case!r}: expected an exchange ({', '.join(EXCHANGES)}), a colon, and a letter for each frame: "
            + ", ".join(f"{letter} {meaning}" for letter, meaning in FATES.items())
        )
    gate = Gate(letters)
    try:
        run_with_gate(schedules_of(candidate.name), exchange, gate)
    except Violation as violation:
        frames = "\n".join(map(str, gate.transmissions[: len(letters) + 10]))
        raise Violation(f"{violation}\n{frames}") from violation
    return "\n".join(map(str, gate.transmissions))


# The message swarm.


@cache
def _message_subject(name: str) -> message_swarm.Subject:
    checked = candidate(name)

    def plug(_settings: dict[str, int]) -> Plug:
        return checked.protocol.plug

    def transport(node: SimNode) -> DeviceTransport:
        return DeviceTransport(checked.protocol.device(node.endpoint))

    # Several ranks on a node need a shared NIC.
    shared = checked.protocol.split_driver is not None
    faults = [kind for kind in KINDS if kind != REORDERING or not checked.protocol.needs_order]
    return message_swarm.Subject(
        name, plug, transport, sizes=checked.sizes(*SIZES), is_mpi=shared, faults=faults, rest=REST
    )


def _draw(name: str, seed: int) -> Case:
    return message_swarm.draw(seed, _message_subject(name))


def _run(name: str, case: Case) -> Counter[str]:
    return message_swarm.run(case, _message_subject(name))


def _swarm_of(name: str) -> Swarm[Case]:
    draw: Callable[[int], Case] = partial(_draw, name)
    return Swarm(_command(name, "swarm"), draw, partial(_run, name), smaller)


def swarm(candidate: Candidate, first: int, cases: int) -> str:
    """Run `cases` cases, with seeds from `first` on; return a summary. Raises Violation with the first failing case,
    reduced."""
    own_swarm = _swarm_of(candidate.name)
    tally = own_swarm.run_many(range(first, first + cases), chunk=5)
    if tally.failed:
        seed = min(tally.failed)
        raise Violation(f"{len(tally.failed)} of {cases} cases failed\n{_describe_reduction(own_swarm, seed)}")
    counters = ", ".join(f"{name} {count:,}" for name, count in tally.rows.most_common(4))
    order = ", frames in order" if candidate.protocol.needs_order else ""
    return f"{cases:,} cases from seed {first} on{order}; highest counters of the firmware: {counters}"


class FailedCase(NamedTuple):
    """A case that failed. reduced: a smaller case that fails, too, as text; empty if the case was not reduced. command:
    repeats the case."""

    seed: int
    reason: str
    reduced: str
    command: str


def failed_cases(candidate: Candidate, first: int, cases: int, max_reduced: int) -> list[FailedCase]:
    """Run `cases` cases in this process, with seeds from `first` on; return those that failed. max_reduced: maximum number
    of cases that are reduced."""
    own_swarm = _swarm_of(candidate.name)
    tally = run_seeds(own_swarm.trial, range(first, first + cases))
    return [
        FailedCase(seed, reason, _reduce(own_swarm, seed) if index < max_reduced else "", own_swarm.replay(seed))
        for index, (seed, reason) in enumerate(sorted(tally.failed.items()))
    ]


def _reduce(swarm: Swarm[Case], seed: int) -> str:
    return str(swarm.shrink(swarm.draw(seed), MAX_ATTEMPTS))


def run_case(candidate: Candidate, case: str) -> str:
    """Run one case of the swarm. case: its seed. Return its counters as text. Raises Violation, and NotFoundError for an
    invalid seed."""
    if not case.isdigit():
        raise NotFoundError(f"unknown case {case!r}: expected a seed, a number from 0 on")
    own_swarm = _swarm_of(candidate.name)
    drawn = own_swarm.draw(int(case))
    if own_swarm.verdict(drawn):
        raise Violation(_describe_reduction(own_swarm, int(case)))
    return ", ".join(f"{name} {count:,}" for name, count in own_swarm.run(drawn).most_common())


def _describe_reduction(swarm: Swarm[Case], seed: int) -> str:
    reduced = swarm.shrink(swarm.draw(seed), MAX_ATTEMPTS)
    return f"{swarm.verdict(reduced)}\nreduced to {reduced}\nto repeat it: {swarm.replay(seed)}"
