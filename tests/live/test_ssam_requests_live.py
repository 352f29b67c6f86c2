"""Random requests of SSAM on live ATM that loses 1 % of the cells on every link: each is handled once and gets one
reply. ``ci/bench ssam requests`` sends many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.contenders import ContenderError
from benchmarks.ssam.requests import ANSWERED, RESENT, SENT, WRONG, measure
from tests.unit.protocols.ssam_mutants import NATIVE

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(120)]


def medians(requests: int, folder: Path) -> dict[str, float]:
    return {row.measure: row.median for row in measure(requests, folder)}


def test_each_request_is_handled_once_and_gets_one_reply(tmp_path: Path) -> None:
    actual = medians(4_000, tmp_path)
    assert actual[SENT] == actual[ANSWERED] >= 4_000
    assert actual[WRONG] == 0
    assert actual[RESENT] > 4_000 / 100, "requests and replies lose cells on two links each"


@pytest.mark.requires("interpreted")
def test_a_mutant_is_found_live(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        next(mutant for mutant in NATIVE if mutant.name == "handled again").apply(patch)
        # A cell of a multi-cell message that is handled twice may be detected first by the content.
        with pytest.raises(ContenderError, match=r"requests were handled twice|VerificationError: "):
            medians(1_000, tmp_path)
