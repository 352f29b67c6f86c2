"""A datapath refuses unsupported features with the table's reason; each supported feature is tried."""

from __future__ import annotations

import pytest

from testbed.errors import UnsupportedError
from testbed.kernel.datapaths import NAMES, TABLE, Fit
from testbed.spec.layout import Impairment
from tests.semantics import test_changes, test_fates_everywhere, test_losses, test_times, test_while_it_runs
from tests.semantics.datapaths import Carriers, RealName
from tests.semantics.impairment_checks import COVERED, NEEDS, REAL, asked_for, placed_at

TRIED_BY = (test_changes, test_fates_everywhere, test_losses, test_times, test_while_it_runs)

MS = 10**6

# For each feature that some datapath lacks, an impairment that asks for it.
ASKING: dict[str, Impairment] = {
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
        if feature in ASKING
    ],
)
def test_a_feature_that_a_datapath_lacks_is_rejected_with_its_reason(
    carriers: Carriers, name: RealName, feature: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    impairment = ASKING[feature]
    assert feature in asked_for(impairment)
    file = tmp_path_factory.mktemp("traces") / "a.txt"
    file.write_text("1ms\n" if impairment.jitter_file else "10\n")
    carrier = carriers[name]
    with pytest.raises(UnsupportedError) as caught, carrier.impaired(placed_at(impairment, "a.txt", str(file))):
        pass
    message = str(caught.value)
    assert f"the datapath {name!r} cannot carry this" in message
    reasons = {
        TABLE[carrier_name][name].reason
        for carrier_name in asked_for(impairment)
        if TABLE[carrier_name][name].fit is Fit.ABSENT
    }
    assert TABLE[feature][name].reason in reasons
    assert any(reason in message for reason in reasons)
    assert TABLE[feature][name].reason in message or len(reasons) > 3
    with carrier.impaired(Impairment()):
        pass  # what was refused has left nothing behind


def test_impairments_that_a_datapath_lacks_are_tried_on_it() -> None:
    assert {feature for _, feature in ABSENT} - set(ASKING) == {
        "repeatable fates",  # no impairment requests it
        "counters by cause",
    }


@pytest.mark.parametrize("name", REAL)
def test_every_feature_of_a_datapath_is_tested(name: RealName) -> None:
    assert all(module.__doc__ for module in TRIED_BY)  # they are imported, so that `on` has noted what they try
    can = {feature for feature in NAMES if TABLE[feature][name].fit is not Fit.ABSENT}
    assert can - COVERED[name] == set()
