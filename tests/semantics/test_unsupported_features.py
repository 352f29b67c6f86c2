"""A datapath rejects unsupported features with the table's reason, and the suite tests each supported one."""

from __future__ import annotations

import pytest

from testbed.errors import UnsupportedError
from testbed.kernel.datapaths import NAMES, TABLE, Fit
from testbed.spec.layout import Impairment
from tests.semantics import (
    test_corruption_and_duplication,
    test_fates_across_datapaths,
    test_live_changes,
    test_losses,
    test_times,
)
from tests.semantics.datapaths import DatapathsUnderTest, RealName
from tests.semantics.impairment_checks import COVERED, NEEDS, REAL, placed_at, requested_features

TESTS_OF_FEATURES = (
    test_corruption_and_duplication,
    test_fates_across_datapaths,
    test_losses,
    test_times,
    test_live_changes,
)

MS = 10**6

# An impairment for each feature that some datapath lacks.
IMPAIRMENTS: dict[str, Impairment] = {
    "delay": Impairment(delay=MS),
    "jitter": Impairment(delay=MS, jitter=1000, distribution="normal"),
    "uniform jitter": Impairment(delay=MS, jitter=1000, distribution="uniform"),
    "long jitter": Impairment(delay=MS, jitter=3 * 10**9, distribution="uniform"),
    "jitter trace": Impairment(distribution="trace", jitter_file="a.txt"),
    "order under jitter": Impairment(delay=MS, jitter=MS, distribution="uniform"),
    "jitter behind a rate": Impairment(delay=MS, jitter=MS, distribution="uniform", rate=10**7),
    "rate trace": Impairment(rate_trace="a.txt"),
    "queue in frames before a delay": Impairment(rate=10**7, queue_frames=5, delay=MS),
    "loss pattern": Impairment(loss_pattern="5"),
    "losses together": Impairment(loss=0.1, gemodel=(0.1, 0.5, 1.0, 0.0)),
    "corrupt": Impairment(corrupt=0.1),
    "corrupt bits": Impairment(corrupt=0.1, corrupt_bits=3),
    "duplicate": Impairment(duplicate=0.1),
    "duplicate with loss": Impairment(duplicate=0.1, loss=0.1),
    "duplicate with other fates": Impairment(duplicate=0.1, corrupt=0.1),
    "reorder": Impairment(delay=MS, reorder=0.1),
    "reorder behind a rate": Impairment(delay=MS, reorder=0.1, rate=10**7),
    "rules": Impairment(rules=("drop udp",)),
}
ABSENT = [(name, feature) for name in REAL for feature in NAMES if TABLE[feature][name].fit is Fit.ABSENT]


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        pytest.param(name, feature, id=f"{feature}-{name}", marks=pytest.mark.requires(*NEEDS[name]))
        for name, feature in ABSENT
        if feature in IMPAIRMENTS
    ],
)
def test_a_feature_that_a_datapath_lacks_is_rejected_with_its_reason(
    datapaths: DatapathsUnderTest, name: RealName, feature: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    impairment = IMPAIRMENTS[feature]
    assert feature in requested_features(impairment)
    file = tmp_path_factory.mktemp("traces") / "a.txt"
    file.write_text("1ms\n" if impairment.jitter_file else "10\n")
    datapath = datapaths[name]
    with pytest.raises(UnsupportedError) as caught, datapath.impaired(placed_at(impairment, "a.txt", str(file))):
        pass
    message = str(caught.value)
    assert f"the datapath {name!r} cannot carry this" in message
    reasons = {
        TABLE[other_feature][name].reason
        for other_feature in requested_features(impairment)
        if TABLE[other_feature][name].fit is Fit.ABSENT
    }
    assert TABLE[feature][name].reason in reasons
    assert any(reason in message for reason in reasons)
    assert TABLE[feature][name].reason in message or len(reasons) > 3
    with datapath.impaired(Impairment()):
        pass  # the rejected impairment has left nothing behind


def test_every_feature_that_a_datapath_lacks_has_a_test() -> None:
    assert {feature for _, feature in ABSENT} - set(IMPAIRMENTS) == {
        "repeatable fates",  # no impairment requests it
        "counters by cause",
    }


@pytest.mark.parametrize("name", REAL)
def test_every_feature_of_a_datapath_is_tested(name: RealName) -> None:
    assert all(module.__doc__ for module in TESTS_OF_FEATURES)  # imported, so that `on` has recorded their features
    supported = {feature for feature in NAMES if TABLE[feature][name].fit is not Fit.ABSENT}
    assert supported - COVERED[name] == set()
