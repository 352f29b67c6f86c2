"""Datapath selection: the datapath of a link, the reasons against others, and what is rejected."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from testbed.errors import UnsupportedError
from testbed.kernel import datapaths, netem
from testbed.kernel.datapaths import LADDER, NAMES, TABLE, Capabilities, Choice, Fit, assess, choose, unavailable_reason
from testbed.spec.contradictions import contradictions
from testbed.spec.layout import ConfiguredDatapath, Datapath, Impairment

NOTHING = Impairment()
MS = 10**6
ALL = Capabilities(netem=True, netem_seed=True, netem_duplicate=True, size_table=True, tbf=True, bpf=True)
WITHOUT_NETEM = replace(ALL, netem=False, netem_seed=False, netem_duplicate=False, reasons={"netem": "no netem"})
ROOTLESS = replace(WITHOUT_NETEM, bpf=False, reasons={"netem": "no netem", "bpf": "needs root"})

DELAY = Impairment(delay=MS)
LOSS = Impairment(loss=0.1)
RATE = Impairment(rate=10**7)
JITTER = Impairment(delay=MS, jitter=1000, distribution="normal")

# For each feature, an impairment that requests it (and the features that it requires).
IMPAIRMENTS: dict[str, Impairment] = {
    "delay": DELAY,
    "jitter": JITTER,
    "uniform jitter": Impairment(delay=MS, jitter=1000),
    "long jitter": Impairment(delay=MS, jitter=3 * 10**9),
    "jitter trace": Impairment(distribution="trace", jitter_file="t"),
    "order under jitter": JITTER,
    "jitter behind a rate": replace(JITTER, rate=10**7),
    "rate": RATE,
    "rate in bits": Impairment(rate=999),
    "time on the wire": RATE,
    "rate trace": Impairment(rate_trace="t"),
    "default queue": RATE,
    "queue in bytes": replace(RATE, queue=5000),
    "queue in frames": replace(RATE, queue_frames=5),
    "queue in frames before a delay": replace(RATE, queue_frames=5, delay=MS),
    "minimum frame": replace(RATE, minimum_frame=60),
    "overhead": replace(RATE, overhead=24),
    "cells": replace(RATE, cell_size=48, cell_overhead=5),
    "loss": LOSS,
    "gemodel": Impairment(gemodel=(0.01, 0.3, 1.0, 0.0)),
    "loss pattern": Impairment(loss_pattern="5"),
    "losses together": Impairment(loss=0.1, loss_pattern="5"),
    "corrupt": Impairment(corrupt=0.1),
    "corrupt bits": Impairment(corrupt=0.1, corrupt_bits=3),
    "duplicate": Impairment(duplicate=0.1),
    "duplicate with loss": Impairment(duplicate=0.1, loss=0.1),
    "duplicate with other fates": Impairment(duplicate=0.1, corrupt=0.1),
    "reorder": replace(DELAY, reorder=0.1),
    "reorder behind a rate": replace(DELAY, reorder=0.1, rate=10**7),
    "rules": Impairment(rules=("drop udp",)),
}
PROPERTIES = {"repeatable fates", "live change", "counters by cause"}


def chosen(forward: Impairment, capabilities: Capabilities = ALL, requested: ConfiguredDatapath = "auto") -> Datapath:
    return choose(forward, NOTHING, capabilities, requested).datapath


def refusal(
    requested: ConfiguredDatapath, forward: Impairment, capabilities: Capabilities = ALL, backward: Impairment = NOTHING
) -> str:
    with pytest.raises(UnsupportedError) as caught:
        choose(forward, backward, capabilities, requested)
    return str(caught.value)


# The table


def test_the_table_has_an_entry_for_every_feature_and_datapath() -> None:
    assert set(IMPAIRMENTS) | PROPERTIES == set(NAMES) == set(TABLE)
    assert all(tuple(row) == LADDER for row in TABLE.values())
    assert set(datapaths._NETEM) == set(datapaths._TC) == set(NAMES)


@pytest.mark.parametrize("datapath", LADDER)
@pytest.mark.parametrize("name", NAMES)
def test_each_entry_has_a_reason_and_an_approximation_a_bound(name: str, datapath: Datapath) -> None:
    entry = TABLE[name][datapath]
    assert entry.reason
    assert bool(entry.bound) is (entry.fit is Fit.APPROXIMATE)
    assert entry.format_bound is None or entry.bound


@pytest.mark.parametrize("name", IMPAIRMENTS)
def test_each_feature_of_an_impairment_is_assessed(name: str) -> None:
    impairment = IMPAIRMENTS[name]
    assert list(contradictions(impairment, is_resolved=True)) == []
    for datapath in LADDER:
        by_feature = {assessment.feature: assessment for assessment in assess(datapath, impairment)}
        assert name in by_feature
        assert by_feature[name].fit is TABLE[name][datapath].fit
        assert by_feature[name].bound.startswith(TABLE[name][datapath].bound)


def test_only_requested_features_are_assessed() -> None:
    for datapath in LADDER:
        assert assess(datapath, NOTHING) == []
    assert [assessment.feature for assessment in assess("netem", DELAY)] == ["delay"]
    without_rate = Impairment(queue=5000, minimum_frame=60, overhead=24, cell_size=48)
    assert assess("netem", without_rate) == []  # these keys have no effect without a rate


def test_every_key_of_an_impairment_is_assessed() -> None:
    """A key added to impairments must have a feature, else the datapath `direct` would accept it."""
    modifiers = {"distribution", "jitter_file", "queue", "queue_frames", "corrupt_bits", "minimum_frame", "overhead"}
    modifiers |= {"cell_size", "cell_overhead"}
    requested: dict[str, object] = {
        "delay": 1, "jitter": 1, "rate": 1, "loss": 0.1, "corrupt": 0.1, "duplicate": 0.1, "reorder": 0.1,
        "rate_trace": "t", "gemodel": (0.1, 1.0, 1.0, 0.0), "loss_pattern": "5", "rules": ("drop udp",),
    }  # fmt: skip
    assert set(requested) | modifiers == {field.name for field in fields(Impairment)}
    for key, value in requested.items():
        assert assess("relay", Impairment(**{key: value})), key  # type: ignore[arg-type]


def test_the_bound_of_an_approximation_is_computed_from_the_impairment() -> None:
    def bound(datapath: Datapath, impairment: Impairment, feature: str) -> str:
        return next(assessment.bound for assessment in assess(datapath, impairment) if assessment.feature == feature)

    tenth = Impairment(loss=0.1, duplicate=0.1)
    assert bound("netem", tenth, "duplicate with loss").endswith(
        "9.000% of the frames do not arrive instead of 10.000%, 8.100% arrive twice instead of 9.000%"
    )
    assert bound("netem", JITTER, "order under jitter").endswith("frames within 0.002 ms")
    assert bound("tc", RATE, "rate").endswith(": 1,250 bytes and one frame")


@pytest.mark.parametrize("name", IMPAIRMENTS)
def test_features_of_netem_in_the_table_are_accepted_by_netem(name: str) -> None:
    impairment = IMPAIRMENTS[name]
    absent = any(assessment.fit is Fit.ABSENT for assessment in assess("netem", impairment))
    assert bool(netem.unsupported(impairment)) is absent


# Selection


def test_a_link_without_impairment_is_direct() -> None:
    assert choose(NOTHING, NOTHING, ALL) == Choice("direct")


@pytest.mark.parametrize(
    ("impairment", "with_netem", "without_netem", "rootless"),
    [
        (DELAY, "netem", "relay", "relay"),
        (LOSS, "netem", "tc", "relay"),
        (IMPAIRMENTS["gemodel"], "netem", "tc", "relay"),
        (IMPAIRMENTS["loss pattern"], "tc", "tc", "relay"),
        (IMPAIRMENTS["losses together"], "tc", "tc", "relay"),
        (IMPAIRMENTS["corrupt"], "relay", "relay", "relay"),
        (IMPAIRMENTS["duplicate"], "netem", "relay", "relay"),
        (IMPAIRMENTS["duplicate with loss"], "relay", "relay", "relay"),
        (IMPAIRMENTS["reorder"], "netem", "relay", "relay"),
        (JITTER, "relay", "relay", "relay"),
        (RATE, "relay", "relay", "relay"),
        (IMPAIRMENTS["queue in frames"], "netem", "relay", "relay"),
        (IMPAIRMENTS["queue in frames before a delay"], "relay", "relay", "relay"),
        (IMPAIRMENTS["rules"], "relay", "relay", "relay"),
    ],
)
def test_the_first_exact_datapath_is_chosen(
    impairment: Impairment, with_netem: Datapath, without_netem: Datapath, rootless: Datapath
) -> None:
    assert chosen(impairment) == with_netem
    assert chosen(impairment, WITHOUT_NETEM) == without_netem
    assert chosen(impairment, ROOTLESS) == rootless


def test_the_datapath_suits_both_directions() -> None:
    assert choose(NOTHING, LOSS, ALL).datapath == "netem"
    assert choose(DELAY, IMPAIRMENTS["loss pattern"], ALL).datapath == "relay"


def test_the_reasons_against_earlier_datapaths_are_reported() -> None:
    assert choose(DELAY, DELAY, WITHOUT_NETEM).notes == (
        "netem not chosen: no netem",
        "tc not chosen: delay: it cannot delay frames",
    )
    assert choose(RATE, NOTHING, ALL).notes == (
        "netem not chosen: only approximately: default queue",
        "tc not chosen: only approximately: rate; time on the wire; default queue",
    )


def test_a_long_list_of_reasons_is_truncated() -> None:
    impairment = Impairment(rules=("drop udp",), loss_pattern="5", rate_trace="t", corrupt=0.1, corrupt_bits=2)
    assert choose(impairment, NOTHING, ALL).notes[0].endswith("; and 1 more")


# Requested by name


def test_an_approximation_is_used_on_request_and_reported() -> None:
    choice = choose(RATE, RATE, ALL, "tc")
    assert choice.datapath == "tc"
    assert [note.partition(" is approximate")[0] for note in choice.notes] == [
        "rate",
        "time on the wire",
        "default queue",
    ]
    assert "1,250 bytes and one frame" in choice.notes[0]


@pytest.mark.parametrize("datapath", LADDER[1:])
def test_an_exact_datapath_has_no_notes(datapath: Datapath) -> None:
    assert choose(LOSS, NOTHING, ALL, datapath) == Choice(datapath)
    assert choose(NOTHING, NOTHING, ALL, datapath) == Choice(datapath)


def test_a_direct_link_rejects_impairments() -> None:
    assert refusal("direct", LOSS) == "the datapath 'direct' cannot carry this: it carries no impairment"


def test_a_feature_that_a_datapath_lacks_is_rejected_with_the_reason() -> None:
    assert refusal("tc", DELAY) == ("the datapath 'tc' cannot carry this: delay: it cannot delay frames")
    assert refusal("netem", NOTHING, backward=IMPAIRMENTS["rules"]).endswith("rules: it has none")


def test_features_that_the_machine_lacks_are_rejected_with_the_reason() -> None:
    assert refusal("netem", DELAY, WITHOUT_NETEM) == "the datapath 'netem' cannot carry this: no netem"
    assert refusal("tc", LOSS, ROOTLESS) == "the datapath 'tc' cannot carry this: needs root"
    assert refusal("tc", RATE, replace(ALL, tbf=False)).endswith("this machine does not have it")


def test_a_datapath_is_unavailable_where_the_machine_has_nothing_of_it() -> None:
    assert unavailable_reason("netem", WITHOUT_NETEM) == "no netem"
    assert unavailable_reason("relay", replace(ALL, relay=False, reasons={"relay": "no socket"})) == "no socket"
    bare = replace(ROOTLESS, tbf=False, reasons={"bpf": "needs root", "tbf": "no tbf"})
    assert unavailable_reason("tc", bare) == "needs root; no tbf"


@pytest.mark.parametrize("datapath", LADDER[1:])
def test_a_datapath_is_available_where_it_carries_some_impairments(datapath: Datapath) -> None:
    assert unavailable_reason(datapath, ALL) == ""
    assert unavailable_reason("tc", ROOTLESS) == ""  # it has rates
    assert unavailable_reason("netem", replace(ALL, netem_seed=False, netem_duplicate=False)) == ""


def test_tc_needs_only_the_requested_capabilities() -> None:
    assert chosen(LOSS, replace(ALL, tbf=False, size_table=False), "tc") == "tc"
    assert chosen(RATE, replace(ALL, bpf=False, size_table=False), "tc") == "tc"
    assert refusal("tc", IMPAIRMENTS["overhead"], replace(ALL, size_table=False))


def test_the_classifier_can_reject_values_of_supported_impairments() -> None:
    def pattern_too_long(impairment: Impairment) -> str:
        return "the pattern is too long" if impairment.loss_pattern else ""

    choice = choose(IMPAIRMENTS["loss pattern"], NOTHING, ALL, classifier_refusal=pattern_too_long)
    assert choice.datapath == "relay"
    assert "tc not chosen: the pattern is too long" in choice.notes
    assert choose(LOSS, NOTHING, WITHOUT_NETEM, classifier_refusal=pattern_too_long).datapath == "tc"


def test_a_link_that_needs_a_missing_relay_is_rejected_with_all_reasons() -> None:
    text = refusal(
        "auto", DELAY, replace(WITHOUT_NETEM, relay=False, reasons={"netem": "no netem", "relay": "no socket"})
    )
    assert text == (
        "no datapath can carry this here: netem not chosen: no netem; "
        "tc not chosen: delay: it cannot delay frames; relay not chosen: no socket"
    )


# Limits of this kernel's netem


def test_a_netem_without_a_seed_is_chosen_for_no_random_impairment_unless_requested() -> None:
    seedless = replace(ALL, netem_seed=False, reasons={"netem_seed": "it takes no seed"})
    assert chosen(DELAY, seedless) == "netem"
    assert chosen(LOSS, seedless) == "tc"
    choice = choose(LOSS, NOTHING, seedless, "netem")
    assert choice.notes == ("randomness (loss) is approximate: it differs in every run: it takes no seed",)


def test_netem_is_skipped_if_it_cannot_duplicate_beside_another_netem() -> None:
    single = replace(ALL, netem_duplicate=False, reasons={"netem_duplicate": "one at a time"})
    choice = choose(IMPAIRMENTS["duplicate"], NOTHING, single)
    assert (choice.datapath, choice.notes[0]) == ("relay", "netem not chosen: one at a time")
    assert chosen(LOSS, single) == "netem"


def test_a_minimum_frame_needs_the_size_table() -> None:
    impairment = replace(IMPAIRMENTS["minimum frame"], queue_frames=5)
    assert chosen(impairment) == "netem"
    assert chosen(impairment, replace(ALL, size_table=False)) == "relay"
