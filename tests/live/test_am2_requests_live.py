"""Random requests of AM-II on live Myrinet with 1 % loss: each is handled once, or returned. ``ci/bench am2 requests`` sends
many more."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.controller.checkers.runs import recheck
from testbed.controller.replay.replays import read_repetition, replay_repetition
from testbed.observe.recorded import FATES, read_run
from testbed.runtime.logs import read_log
from testbed.spec.fault_models import Rule
from testbed.spec.scenario import Scenario
from tests.unit.protocols.am2_mutants import NATIVE

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

REQUESTS = 500
LONG_TIMEOUTS = {"retries": 120, "detour": 20_000_000_000}
"""No NIC dies in these tests, and on a busy machine one may not reply for seconds; it must not become unreachable."""
TIMEOUT = 240  # s
CLUSTER = Path(__file__).parents[2] / "ci" / "requests.toml"


@pytest.mark.timeout(300)
def test_each_request_is_handled_once_or_returned(tmp_path: Path) -> None:
    result = testbed.run(
        CLUSTER, "am-random", protocol="am2", settings={"requests": REQUESTS}, firmware=LONG_TIMEOUTS,
        output=tmp_path / "run", check=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    assert result.checks.message_count >= 4 * REQUESTS
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
            CLUSTER, "am-random", protocol="am2", settings={"requests": 100}, firmware=LONG_TIMEOUTS,
            output=tmp_path / "run", check=True, timeout=TIMEOUT,
        )  # fmt: skip
    assert result.checks is not None
    assert result.checks.failed == ("replies",)


def test_requests_that_a_rule_redirects_to_a_missing_endpoint_are_returned(tmp_path: Path) -> None:
    """The rule changes requests with one message number, also retransmitted ones, and corrects their checksums."""
    rule = "set am2.endpoint = 99 am2.kind == MESSAGE and not am2.flags.reply and am2.message == 15"
    result = testbed.run(
        Cluster.star(2), "am-random", protocol="am2", settings={"requests": 90}, firmware=LONG_TIMEOUTS, timeout=TIMEOUT,
        scenario=Scenario(faults=[Rule(on="n1", rules=[rule], at="0s")]), output=tmp_path / "run",
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    assert result.checks.checks["errors"].checked >= 2
    fates = [record.fate for record in read_log(tmp_path / "run" / FATES)]
    assert {fate.sets for fate in fates} == {(("am2.endpoint", 99),)}
    assert not replay_repetition(read_repetition(tmp_path / "run"), "sim").failed
