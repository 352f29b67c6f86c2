"""Checks by many cases: every fate of the first frames, and the message swarm. A failing case is reduced, and runs again by
one command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Final

from protocols.core.firmware import Plug
from testbed.controller.conformance import fate_schedules, message_swarm
from testbed.controller.conformance.candidate import Candidate, candidate
from testbed.controller.conformance.exchanges import EXCHANGES, Matched, Matching
from testbed.controller.conformance.fate_schedules import DEPTH, FATES, Gate, go_through, reduce_fates
from testbed.controller.conformance.message_swarm import SIZES, Case, DeviceTransport, smaller
from testbed.controller.conformance.network_faults import KINDS, REORDERING, SECOND
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.errors import NotFoundError
from testbed.sim.sim_node import SimNode

PAYLOAD: Final = 1_400
"""Bytes of a message that count as a frame; where a protocol's frames hold less, messages have more frames."""
REST: Final = 20 * SECOND
"""Virtual time in which what no program waits for comes to rest, as an acknowledgement that was lost several times."""
ATTEMPTS: Final = 100
"""Cases that a reduction tries."""


def _command(name: str, check: str) -> str:
    return f"testbed protocol check {name} --only {check} --case"


# Every fate of the first transmissions.


@cache
def schedules_of(name: str) -> fate_schedules.Subject:
    """Return the exchanges of a registered protocol."""
    own = candidate(name)
    matched = Matched(own.protocol.plug, own.protocol.device, PAYLOAD, max_message_size=own.max_message_size)
    stages = {exchange.name: partial(Matching, matched, exchange) for exchange in EXCHANGES.values()}
    return fate_schedules.Subject(name, stages, f"{_command(name, 'fates')} %s:%s", rest=REST)


def fates(candidate: Candidate, depth: int = DEPTH) -> str:
    """Run every schedule of so many transmissions, of every exchange; return what was done. Raises Violation."""
    tallies = fate_schedules.everything(partial(schedules_of, candidate.name), depth, max_failures=1)
    failed = [failure for tally in tallies.values() for failure in tally.failed]
    if failed:
        reduced = reduce_fates(schedules_of(candidate.name), failed[0])
        raise Violation(f"{reduced.why}\nto see it again: {reduced.command}")
    ran, stand_for = (sum(getattr(tally, what) for tally in tallies.values()) for what in ("ran", "stand_for"))
    recovery = max(tally.recovery for tally in tallies.values())
    return (
        f"{stand_for:,} schedules of {depth} frames, {len(tallies)} exchanges ({ran:,} ran: the others are the same); "
        f"at most {recovery / 1e6:.1f} ms to recover"
    )


def one_schedule(candidate: Candidate, case: str) -> str:
    """Run one schedule, as ``1+1:pdthpp``; return its frames in words. Raises Violation, and NotFoundError for a name that
    is none."""
    exchange, _, letters = case.partition(":")
    if exchange not in EXCHANGES or set(letters) - set(FATES):
        raise NotFoundError(
            f"no case {case!r}: it is an exchange ({', '.join(EXCHANGES)}), a colon, and for each frame a letter: "
            + ", ".join(f"{letter} {meaning}" for letter, meaning in FATES.items())
        )
    gate = Gate(letters)
    try:
        go_through(schedules_of(candidate.name), exchange, gate)
    except Violation as violation:
        frames = "\n".join(map(str, gate.transmissions[: len(letters) + 10]))
        raise Violation(f"{violation}\n{frames}") from violation
    return "\n".join(map(str, gate.transmissions))


# The message swarm.


@cache
def _messages_of(name: str) -> message_swarm.Subject:
    own = candidate(name)

    def plug(_settings: dict[str, int]) -> Plug:
        return own.protocol.plug

    def transport(node: SimNode) -> DeviceTransport:
        return DeviceTransport(own.protocol.device(node.endpoint))

    # Several ranks share a NIC; whoever has no shared one has no business there.
    shared = own.protocol.split_driver is not None
    faults = [kind for kind in KINDS if kind != REORDERING or not own.protocol.needs_order]
    return message_swarm.Subject(
        name, plug, transport, sizes=own.sizes(*SIZES), is_mpi=shared, faults=faults, rest=REST
    )


def _draw(name: str, seed: int) -> Case:
    return message_swarm.draw(seed, _messages_of(name))


def _run(name: str, case: Case) -> Counter[str]:
    return message_swarm.run(case, _messages_of(name))


def _swarm_of(name: str) -> Swarm[Case]:
    draw: Callable[[int], Case] = partial(_draw, name)
    return Swarm(_command(name, "swarm"), draw, partial(_run, name), smaller)


def swarm(candidate: Candidate, first: int, cases: int) -> str:
    """Run so many cases from a seed on; return what was done. Raises Violation, with the first failing case reduced."""
    own = _swarm_of(candidate.name)
    tally = own.many(range(first, first + cases), chunk=5)
    if tally.failed:
        seed = min(tally.failed)
        raise Violation(f"{len(tally.failed)} of {cases} cases have failed\n{_reduced(own, seed)}")
    counted = ", ".join(f"{name} {count:,}" for name, count in tally.rows.most_common(4))
    order = ", frames in order" if candidate.protocol.needs_order else ""
    return f"{cases:,} cases from seed {first} on{order}; most of what the firmware counted: {counted}"


def one_case(candidate: Candidate, case: str) -> str:
    """Run one case of the swarm, by its seed; return its counters. Raises Violation, and NotFoundError for another name."""
    if not case.isdigit():
        raise NotFoundError(f"no case {case!r}: it is a seed, a number")
    own = _swarm_of(candidate.name)
    drawn = own.draw(int(case))
    if own.verdict(drawn):
        raise Violation(_reduced(own, int(case)))
    return ", ".join(f"{name} {count:,}" for name, count in own.run(drawn).most_common())


def _reduced(swarm: Swarm[Case], seed: int) -> str:
    least = swarm.shrink(swarm.draw(seed), ATTEMPTS)
    return f"{swarm.verdict(least)}\nreduced to {least}\nto see it again: {swarm.replay(seed)}"
