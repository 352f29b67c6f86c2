"""`inject` and `status` show impairments in the form in which a user types them."""

from __future__ import annotations

from testbed.cluster.faults.fault_injection import describe_impairments
from testbed.spec.layout import Impairment
from testbed.spec.layout_json import impairment_to_json


def test_quantities_have_units_whether_from_an_impairment_or_from_json() -> None:
    impairment = Impairment(delay=2_000_000, rate=10**9, queue=65_536, loss=0.05, gemodel=(0.01, 0.3, 1.0, 0.0))
    words = "delay 2ms, rate 1gbit, queue 64KiB, loss 5%, gemodel 1% 30% 100% 0% (3.23% in the long run)"
    assert describe_impairments(impairment_to_json(impairment), ()) == words
    assert describe_impairments({"gemodel": impairment.gemodel}, ()) == words.rpartition("5%, ")[2]


def test_an_unlimited_rate_is_a_word_and_rules_are_quoted() -> None:
    assert describe_impairments({"rate": 0}, ["drop"]) == "rate unlimited, rule 'drop'"
