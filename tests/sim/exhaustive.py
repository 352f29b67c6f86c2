"""Exhaustive schedules of the shipped protocols, each with settings so small that a few frames reach their limits.

python -m tests.sim.exhaustive emp               every schedule of every exchange, on all processors
python -m tests.sim.exhaustive emp 1+1 pdthpp    repeat one of them, with all transmissions
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from protocols.am2.settings import Settings as Am2Settings
from protocols.emp import host as emp
from protocols.emp.settings import Settings
from protocols.mpi import emp as emp_mpi
from protocols.mpi import openmx as openmx_mpi
from protocols.mpi import ssam as ssam_mpi
from protocols.mpi import via as via_mpi
from protocols.openmx import host as openmx
from protocols.ssam import plug as ssam
from protocols.via import host as via
from testbed.controller.conformance.exchanges import EXCHANGES, MatchedExchange, MatchedProtocol
from testbed.controller.conformance.fate_schedules import DEPTH, FATES, Gate, Subject, run_with_gate, search_all
from testbed.controller.conformance.network_faults import MILLISECOND
from testbed.controller.conformance.trials import Violation, print_line
from testbed.engine.sources import source
from tests.sim.am2_exchanges import CASES, UNACQUAINTED, ActiveMessageExchange

# A lost header is resent after at most the longest time-out. Frames sent after it were not admitted meanwhile and wait for
# their own timer: another time-out. The rest are round trips.
EMP_MATCHING: Final = MatchedProtocol(
    plug=emp.plug(Settings(window=2)), device=emp_mpi.device,
    payload=1472, bound=2 * Settings().longest_timeout + MILLISECOND,
    resources=lambda host: (host.free_descriptors, host.pinned),
)  # fmt: skip

# First a session is established: an introduction and its reply may be lost, and each is resent after a time-out that
# doubles. Then the last requests may be lost, twice. Time-outs are checked periodically, so that each may take two periods.
SSAM_MATCHING: Final = MatchedProtocol(
    plug=ssam.plug(ssam.Settings(window=4)), device=ssam_mpi.device,
    payload=40, bound=4 * (ssam.Settings().timeout << 4) + MILLISECOND,
    resources=lambda host: (len(host.pending_work()),),
)  # fmt: skip
# As for EMP, after the connections are established, for which the same holds.
VIA_MATCHING: Final = MatchedProtocol(
    plug=via.plug(via.Settings(window=2, acknowledge=1)), device=via_mpi.device,
    payload=1400, bound=4 * via.Settings().longest_timeout + MILLISECOND,
    resources=lambda host: (len(host.pending_work()),),
)  # fmt: skip


# A lost connection request, and then a lost message, are each resent after `resend` ticks of the clock.
_MX_TICK: Final = 100_000
_MX: Final = openmx.Settings(tick=_MX_TICK, resend=4, pull_timeout=4 * _MX_TICK)
MX_EAGER: Final = MatchedProtocol(
    plug=openmx.plug(_MX), device=openmx_mpi.device,
    payload=1462, bound=2 * (_MX.resend + 2) * _MX_TICK + MILLISECOND,
    resources=lambda host: (len(host.pending_work()),),
)  # fmt: skip
# A pull whose last request is lost waits for another time-out.
MX_PULLED: Final = replace(
    MX_EAGER, bound=MX_EAGER.bound + _MX.pull_timeout, plug=openmx.plug(replace(_MX, rendezvous=128))
)
COMMAND: Final = "python -m tests.sim.exhaustive"


def _matching(name: str, depth: int, **kinds: MatchedProtocol) -> Subject:
    """A subject with every exchange for each kind of settings; a kind's name comes before the exchange's."""
    stages = {
        f"{kind}-{exchange.name}".removeprefix("usual-"): partial(MatchedExchange, matched, exchange)
        for kind, matched in kinds.items()
        for exchange in EXCHANGES.values()
    }
    return Subject(name, stages, f"{COMMAND} {name} %s %s", depth)


EMP: Final = _matching("emp", DEPTH, usual=EMP_MATCHING)
# A peer that has owed replies for long is looked at again after the last one.
AM2: Final = Subject(
    "am2",
    {
        name: partial(ActiveMessageExchange, case, are_introduced=name not in UNACQUAINTED)
        for name, case in CASES.items()
    },
    f"{COMMAND} am2 %s %s",
    depth=5,
    rest=3 * Am2Settings().keepalive,
)
SSAM: Final = _matching("ssam", 4, usual=SSAM_MATCHING)
VIA: Final = _matching("via", 4, usual=VIA_MATCHING)
OPENMX: Final = _matching("openmx", 4, usual=MX_EAGER, pulled=MX_PULLED)
SUBJECTS: Final = {subject.name: subject for subject in (EMP, AM2, SSAM, VIA, OPENMX)}


def subject_of(name: str) -> Subject:
    return SUBJECTS[name]


def draw_schedule(seed: int, subject: Subject) -> tuple[Subject, str, str]:
    """Draw a random schedule: the subject, an exchange and its fates."""
    chance = source(seed, f"schedule of {subject.name}")
    exchange = chance.choice(list(subject.stages))
    return subject, exchange, "".join([chance.choice("".join(FATES)) for _ in range(DEPTH)])


def main(arguments: Sequence[str]) -> int:
    subject = SUBJECTS[arguments[0]]
    if len(arguments) == 1:
        tallies = search_all(partial(subject_of, subject.name), subject.depth)
        for name, tally in tallies.items():
            print_line(
                f"{name:>8}: {tally.executed:>5,} ran for {tally.covered:,}; at most {tally.recovery:,} ns to recover"
            )
        failed = [str(failure) for tally in tallies.values() for failure in tally.failures]
        print_line("\n".join(failed) if failed else "nothing wrong")
        return bool(failed)
    gate, reason = Gate(arguments[2]), ""
    try:
        recovery = run_with_gate(subject, arguments[1], gate)
    except Violation as violation:
        reason = str(violation)
    print_line("\n".join(map(str, gate.transmissions)))
    print_line(reason or f"nothing wrong; over {recovery:,} ns after the last fault")
    return bool(reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
