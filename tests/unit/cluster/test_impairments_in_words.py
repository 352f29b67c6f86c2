"""`inject` and `status` show impairments in the form in which a user types them."""

from __future__ import annotations

from testbed.cluster.faults.fault_injection import describe_impairments
from testbed.cluster.faults.injections import shorten_rule
from testbed.spec.layout import Impairment
from testbed.spec.layout_json import impairment_to_json


def test_quantities_have_units_whether_from_an_impairment_or_from_json() -> None:
    impairment = Impairment(delay=2_000_000, rate=10**9, queue=65_536, loss=0.05, gemodel=(0.01, 0.3, 1.0, 0.0))
    words = "delay 2ms, rate 1gbit, queue 64KiB, loss 5%, gemodel 1% 30% 100% 0% (3.23% in the long run)"
    assert describe_impairments(impairment_to_json(impairment), ()) == words
    assert describe_impairments({"gemodel": impairment.gemodel}, ()) == words.rpartition("5%, ")[2]


def test_an_unlimited_rate_is_a_word_and_rules_are_quoted() -> None:
    assert describe_impairments({"rate": 0}, ["drop"]) == "rate unlimited, rule 'drop'"


def test_a_partitions_rule_fits_into_a_table_and_a_users_rule_stays_as_it_was_typed() -> None:
    addresses = ", ".join(f"10.0.0.{number}" for number in range(1, 9))
    assert shorten_rule(f"drop ip.src in ({addresses})") == "drop ip.src in (10.0.0.1 and 7 more)"
    assert len(shorten_rule(f"drop ip.src in ({addresses}) or ip.dst in ({addresses})")) <= 80
    for rule in (
        "drop udp and nth(3, ip.src)",
        "drop ip.src in (10.0.0.1, 10.0.0.2, 10.0.0.3)",
        "set ip.ttl = 1, emp.tag = 7",
    ):
        assert shorten_rule(rule) == rule
