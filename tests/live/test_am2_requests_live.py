"""Random requests of AM-II on live Myrinet with 1 % loss: each is handled once, or returned.

The long form, with the rows in its folder; requests.toml is the cluster that `myrinet` below describes:

    testbed run requests.toml am-random --protocol am2 --set requests=2500000 --timeout 86400 --no-check --output FOLDER
"""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed.controller.checkers.runs import check_again
from testbed.observe.recorded import recorded
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.model import Defaults, Description
from tests.unit.protocols.am2_mutants import NATIVE

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

REQUESTS = 500


def myrinet() -> Description:
    """Two switches, two nodes at each, and a cable between; every link loses 1 %."""
    ends = [("n1", "s1:1"), ("n2", "s1:2"), ("n3", "s2:1"), ("n4", "s2:2"), ("s1:7", "s2:7")]
    return Description(
        name="requests",
        nodes=[Node(name=f"n{number}") for number in range(1, 5)],
        switches=[Switch(name=name, kind="myrinet") for name in ("s1", "s2")],
        links=[Link(ends=pair, loss="1%") for pair in ends],
        defaults=Defaults(mtu=8500),
        seed=5,
    )


@pytest.mark.timeout(120)
def test_each_request_is_handled_once_or_returned(tmp_path: Path) -> None:
    result = testbed.run(
        myrinet(), "am-random", protocol="am2", settings={"requests": REQUESTS}, output=tmp_path / "run", check=True
    )
    assert result.checks is not None
    assert result.checks.passed, result.checks.in_words()
    assert result.checks.messages >= 4 * REQUESTS
    assert result.checks.checks["replies"].checked >= 4 * REQUESTS
    totals = {name: sum(row.get(name, 0) for row in result.rows) for name in ("sent", "replied", "returned", "handled")}
    assert totals["sent"] >= 4 * REQUESTS
    assert totals["handled"] == totals["replied"]
    assert any(counters["packets_resent"] for counters in result.counted.values()), "frames were lost"
    assert [report.passed for report in check_again(recorded(tmp_path / "run"))] == [True]


@pytest.mark.timeout(120)
def test_a_mistake_in_the_protocol_is_found_there_as_well(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        next(mutant for mutant in NATIVE if mutant.name == "by name").put_in(patch)
        result = testbed.run(
            myrinet(), "am-random", protocol="am2", settings={"requests": 100}, output=tmp_path / "run", check=True
        )
    assert result.checks is not None
    assert result.checks.failed == ("replies",)
