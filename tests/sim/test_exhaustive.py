"""Every protocol under all combinations of fates of its first transmissions, up to three of them; with TESTBED_LONG=1
of one more than the command's default."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial

import pytest

from protocols.core.protocol import Protocol
from testbed.controller.conformance import fate_schedules
from testbed.controller.conformance.fate_schedules import FATES, Gate, Subject
from testbed.controller.conformance.trials import Violation
from testbed.registry import PROTOCOLS, load, offered
from tests.sim import exhaustive
from tests.sim.exhaustive import AM2, EMP, SUBJECTS
from tests.unit.protocols.am2_mutants import MUTANTS as AM2_MUTANTS
from tests.unit.protocols.emp_mutants import MUTANTS
from tests.unit.protocols.mutants import Mutant, search_repeatedly

FOUND_BY_FEW_MESSAGES = {
    "credit kept",
    "not answered again",
    "not quiescent",
    "fragment twice",
    "any tag",
    "empty reply",
}
"""Mutants of AM-II that a few messages between two nodes find; the others need older copies."""

MAX_DEPTH = 3
LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_every_schedule_of_fates_passes(subject: Subject, record_property: Callable[[str, object], None]) -> None:
    depth = subject.depth + 1 if LONG else min(subject.depth, MAX_DEPTH)
    tallies = fate_schedules.search_all(partial(exhaustive.subject_of, subject.name), depth)
    failed = [str(failure) for tally in tallies.values() for failure in tally.failures]
    assert not failed, "\n".join(failed)
    assert {tally.covered for tally in tallies.values()} == {len(FATES) ** depth}, (
        "a schedule was left out, or repeated"
    )
    executed, covered = (
        sum(tally.executed for tally in tallies.values()),
        sum(tally.covered for tally in tallies.values()),
    )
    recovery = max(tally.recovery for tally in tallies.values())
    bound = max(stage().bound for stage in subject.stages.values())
    record_property(
        "note",
        f"exhaustive: {subject.name}, {covered:,} schedules of {depth} transmissions, {len(tallies)} exchanges "
        f"({executed:,} ran: the others are the same); {recovery / 1e6:.1f} ms at most to recover, of {bound / 1e6:.1f}",
    )


def test_the_subjects_are_all_protocols_with_their_own_frames() -> None:
    """The kernel's protocols have no frames of the testbed."""
    protocols = {name: load(PROTOCOLS, name) for name in offered(PROTOCOLS)}
    assert {
        name for name, candidate in protocols.items() if isinstance(candidate, Protocol) and candidate.ethertype
    } == set(SUBJECTS)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 7])
def test_an_emp_exchange_is_named_after_its_number_of_frames(frames: int) -> None:
    result = fate_schedules.run(EMP, str(frames), "")
    assert sum(transmission.direction == "forward" for transmission in result.transmissions) == frames


def test_a_gate_passes_holds_duplicates_and_drops_frames_by_its_fates() -> None:
    arrived: list[bytes] = []
    gate = Gate("phhdt")
    gate.set_receiver("forward", lambda _, frame: arrived.append(frame))
    gate.set_receiver("backward", lambda _, frame: arrived.append(frame.upper()))
    for number, frame in enumerate([b"a", b"b", b"c", b"d", b"e", b"f"]):
        gate.transmit("backward" if frame == b"d" else "forward", number, frame)
    assert b"".join(arrived) == b"abeecf"
    assert gate.last_fault_time == 4


def test_a_held_frame_without_a_successor_is_delivered_on_release() -> None:
    arrived: list[bytes] = []
    gate = Gate("h")
    gate.set_receiver("forward", lambda _, frame: arrived.append(frame))
    gate.transmit("forward", 0, b"a")
    assert not arrived
    assert gate.release(1)
    assert not gate.release(2)
    assert arrived == [b"a"]


def test_schedules_that_differ_only_after_the_last_transmission_are_run_once() -> None:
    """A run of three transmissions has 4^3 schedules, whatever the fates of later ones are."""
    fates, executed = "pppppp", set()
    while fates:
        executed.add(fates[:3])
        assert fates[3:] == "ppp"
        fates = fate_schedules.next_schedule(fates, 3)
    assert len(executed) == 4**3


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_schedules_of_few_transmissions_find_the_mutant(
    mutant: Mutant, record_property: Callable[[str, object], None]
) -> None:
    """The schedules are drawn, with random seeds in a long run; the exhaustive search includes them."""
    search = search_repeatedly(
        mutant, lambda seed: fate_schedules.run(*exhaustive.draw_schedule(seed, EMP)), FIRST, 1_000
    )
    record_property("note", f"exhaustive: {search}")


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutant", [am2_mutant for am2_mutant in AM2_MUTANTS if am2_mutant.name in FOUND_BY_FEW_MESSAGES], ids=str
)
def test_schedules_of_am2_find_the_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    search = search_repeatedly(
        mutant, lambda seed: fate_schedules.run(*exhaustive.draw_schedule(seed, AM2)), FIRST, 1_000
    )
    record_property("note", f"exhaustive: {search}")


@pytest.mark.requires("interpreted")
def test_a_failing_schedule_is_reported_with_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "counted twice")
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        (failure,) = fate_schedules.search(EMP, "7", "h", max_failures=1).failures
        command, reason = failure.command, failure.reason
        assert command.startswith("python -m tests.sim.exhaustive emp 7 h")
        arguments = command.split()[3:]
        with pytest.raises(Violation) as caught:
            fate_schedules.run(EMP, "7", arguments[2])
        assert caught.value.__notes__ == [command]
        assert exhaustive.main(arguments) == 1
        output = capsys.readouterr().out
        assert FATES["h"] in output.splitlines()[0]
        assert output.splitlines()[-1] == reason
    assert exhaustive.main(arguments) == 0
