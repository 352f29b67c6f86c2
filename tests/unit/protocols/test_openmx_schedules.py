"""Open-MX under random schedules: fixed seeds in CI, fresh ones with TESTBED_LONG=1; mutants that they find."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from protocols.openmx import steering
from protocols.openmx.mx_names import SEQNUM_MASK
from tests.unit.protocols.mutants import Mutant, find
from tests.unit.protocols.openmx_mutants import MUTANTS, WRAP
from tests.unit.protocols.openmx_pair import RESEND, EndpointPair
from tests.unit.protocols.openmx_random_schedules import trial
from tests.unit.protocols.test_openmx_wire import (
    test_the_shipped_hash_of_pull_replies_agrees_with_the_others_only_if_the_queues_divide_128 as check_shipped_hash,
)

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST_SEED = random.SystemRandom().randrange(2**40) if LONG else 0
CASES = 20_000 if LONG else 60
MAX_CASES = 3_000
"""Cases within which each mutant is found."""


@pytest.mark.timeout(3600)
def test_messages_arrive_once_in_order_and_unchanged_under_random_faults(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("note", f"random schedules of Open-MX: {CASES:,} from {FIRST_SEED} on")
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        try:
            trial(seed)
        except AssertionError as error:
            raise AssertionError(f"tests.unit.protocols.openmx_random_schedules.trial({seed}): {error}") from error


def test_a_late_request_of_an_ended_connection_begins_no_new_one() -> None:
    """Both ends connect at once; one of the requests arrives after that connection has ended and the next is requested."""
    trial(12_038)


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_random_schedules_find_the_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    result = find(mutant, trial, 10_000, MAX_CASES)
    record_property("note", f"{mutant} ({mutant.mistake}): found within {result.cases} cases: {result.complaint}")


@pytest.mark.requires("interpreted")
def test_messages_across_the_wrap_find_the_plain_comparison_of_acknowledgements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_across_the_wrap()
    WRAP.apply(monkeypatch)
    with pytest.raises(AssertionError, match=r"not acknowledged|a send of 1 bytes"):
        send_across_the_wrap()


def send_across_the_wrap() -> None:
    pair = EndpointPair()
    for _ in range(0, SEQNUM_MASK + 500, 1000):
        receives = [pair.receive(1)[1] for _ in range(1000)]
        pair.finish(*[pair.send(b"x") for _ in range(1000)], *receives)
        pair.elapse(2 * RESEND)
        assert pair.wires.pending_work() == [], "not acknowledged"


def test_pull_replies_show_a_hash_of_the_wrong_byte_with_three_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.protocols.test_openmx_wire.endpoint_queue", steering.myri10ge_queue)
    with pytest.raises(AssertionError):
        check_shipped_hash()
