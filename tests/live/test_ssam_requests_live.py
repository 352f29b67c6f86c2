"""Random requests of SSAM on live ATM that loses 1 % of the cells on every link: each is handled once and answered once.
``ci/bench ssam requests`` repeats this with many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.contenders import ContenderError
from benchmarks.ssam.requests import ANSWERED, RESENT, SENT, WRONG, measure
from tests.unit.protocols.ssam_mutants import NATIVE

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(120)]


def measured(requests: int, folder: Path) -> dict[str, float]:
    return {row.measure: row.median for row in measure(requests, folder)}


def test_each_request_is_handled_once_and_answered_once(tmp_path: Path) -> None:
    actual = measured(4_000, tmp_path)
    assert actual[SENT] == actual[ANSWERED] >= 4_000
    assert actual[WRONG] == 0
    assert actual[RESENT] > 4_000 / 100, "cells were lost: requests and answers, each on two links"


@pytest.mark.requires("interpreted")
def test_a_mistake_in_the_protocol_is_found_there_as_well(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        next(mutant for mutant in NATIVE if mutant.name == "handled again").apply(patch)
        # Of a message in several cells, handling one again may first be seen by its content.
        with pytest.raises(ContenderError, match=r"requests were handled twice|VerificationError: "):
            measured(1_000, tmp_path)
