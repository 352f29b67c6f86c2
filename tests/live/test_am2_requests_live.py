"""Random requests of AM-II on live Myrinet with 1 % loss: each is handled once, or returned. ``ci/bench am2 requests``
has very many of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed.controller.checkers.runs import recheck
from testbed.observe.recorded import read_run
from tests.unit.protocols.am2_mutants import NATIVE

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

REQUESTS = 500
PATIENT = {"retries": 120, "detour": 20_000_000_000}
"""No NIC dies here, and one on a busy machine may not answer for seconds: it is not to be unreachable then."""
TIMEOUT = 240  # s
CLUSTER = Path(__file__).parents[2] / "ci" / "requests.toml"


@pytest.mark.timeout(300)
def test_each_request_is_handled_once_or_returned(tmp_path: Path) -> None:
    result = testbed.run(
        CLUSTER, "am-random", protocol="am2", settings={"requests": REQUESTS}, firmware=PATIENT, output=tmp_path / "run",
        check=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    assert result.checks.messages >= 4 * REQUESTS
    assert result.checks.checks["replies"].checked >= 4 * REQUESTS
    totals = {name: sum(row.get(name, 0) for row in result.rows) for name in ("sent", "replied", "returned", "handled")}
    assert totals["sent"] >= 4 * REQUESTS
    assert totals["handled"] == totals["replied"]
    assert any(counters["packets_resent"] for counters in result.counters.values()), "frames were lost"
    assert [report.passed for report in recheck(read_run(tmp_path / "run"))] == [True]


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(300)
def test_a_mutant_is_found_live(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        next(mutant for mutant in NATIVE if mutant.name == "by name").apply(patch)
        result = testbed.run(
            CLUSTER, "am-random", protocol="am2", settings={"requests": 100}, firmware=PATIENT, output=tmp_path / "run",
            check=True, timeout=TIMEOUT,
        )  # fmt: skip
    assert result.checks is not None
    assert result.checks.failed == ("replies",)
