"""Counts of rules and flows that the next process continues, and those that it restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.fates.fate_counters import Outcome, Tallies
from testbed.fates.flows import Classifier, Flows
from testbed.fates.header_fields import Fields
from testbed.fates.headers import standard_fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions, FateStage, Verdict
from testbed.runtime.tally_file import CAPACITY, TallyFile
from testbed.spec.layout import Impairment

FIELDS: Fields = standard_fields()


class Process:
    """Process that applies rules to a direction and counts their matches in the tally file."""

    def __init__(self, path: Path, direction: str = "forward", capacity: int = CAPACITY, **rules: str) -> None:
        self._place = "l", direction
        self.tallies = TallyFile(path, capacity)
        self.rules = RuleSet(FIELDS, tallies=self.tallies)
        for name, text in rules.items():
            self.add(name, text)
        self.tallies.settle()
        self._classifier = Classifier(FIELDS)
        self._flows = Flows(1, self._classifier)

    def add(self, name: str, text: str) -> None:
        self.rules.add(0, text, name).compiled(*self._place)

    def are_lost(self, *sources: int) -> list[bool]:
        """Send a frame from each address; return which of them were lost."""
        verdicts = []
        for source in sources:
            frame = bytes(6) + source.to_bytes(6, "big") + b"\x88\xb5" + bytes(46)
            number, located = self._flows.count(frame)
            fates = [judge.decide(0, frame, located, number) for judge in self.rules.compiled_rules(*self._place)]
            verdicts.append(any(fate is not None and fate.drop for fate in fates))
        return verdicts


def test_a_rule_continues_counting_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "tallies"
    assert Process(path, a="drop nth(5)").are_lost(1, 1, 1) == [False, False, False]
    assert Process(path, a="drop nth(5)").are_lost(1) == [False]
    assert Process(path, a="drop nth(5)").are_lost(1, 1) == [True, False]


def test_counters_by_field_continue_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "tallies"
    text = "drop nth(2, eth.src)"
    assert Process(path, a=text).are_lost(1, 2, 3) == [False, False, False]
    assert Process(path, a=text).are_lost(2) == [True]
    assert Process(path, a=text).are_lost(3, 2, 1) == [True, False, True]


def test_rules_of_other_names_texts_and_directions_have_separate_counts(tmp_path: Path) -> None:
    path = tmp_path / "tallies"
    assert Process(path, a="drop nth(2)").are_lost(1) == [False]
    assert Process(path, b="drop nth(2)", a="drop nth(3)").are_lost(1, 1) == [False, True]
    assert Process(path, direction="backward", a="drop nth(3)").are_lost(1, 1) == [False, False]


@pytest.mark.parametrize("text", ["drop nth(2)", "drop nth(2, eth.src)"])
def test_a_rule_that_is_added_again_later_counts_from_1(tmp_path: Path, text: str) -> None:
    """Both the process that had the rule and its successor restart the count."""
    path = tmp_path / "tallies"
    before = Process(path, a=text)
    assert before.are_lost(1) == [False]
    before.add("a", text)
    with before.rules.add(0, "drop nth(9)", "x"):
        pass
    after = Process(path)
    after.add("a", text)
    assert after.are_lost(1, 1) == [False, True]


def test_the_time_window_of_a_rule_continues(tmp_path: Path) -> None:
    path = tmp_path / "tallies"
    text = "drop after(5us)"
    RuleSet(FIELDS, tallies=TallyFile(path)).add(10, text, "a").compiled("l", "forward")
    rules = RuleSet(FIELDS, tallies=TallyFile(path))
    judge = rules.add(4_000, text, "a").compiled("l", "forward")
    flows = Flows(1, Classifier(FIELDS))
    number, located = flows.count(bytes(60))
    assert judge is not None
    assert judge.decide(5_009, bytes(60), located, number) is None
    assert judge.decide(5_010, bytes(60), located, number) is not None


def decisions(stage: FateStage, first: int, end: int) -> list[object]:
    """Return the decisions of a stage on frames of three flows."""
    verdicts: list[object] = []
    for number in range(first, end):
        frame = bytes(6) + (1 + number % 3).to_bytes(6, "big") + b"\x88\xb5" + bytes(46)
        verdicts.append(stage.decide(number, frame))
    return verdicts


def make_stage(impairment: Impairment, tallies: Tallies, log: list[Record]) -> FateStage:
    rules = RuleSet(FIELDS, tallies=tallies)
    return FateStage("l", "forward", impairment, FateOptions(3, 1, rules, log=log.append))


@pytest.mark.parametrize(
    "impairment",
    [
        Impairment(loss=0.2),
        Impairment(gemodel=(0.2, 0.3, 0.9, 0.1)),
        Impairment(loss_pattern="2, 5-7 every 11"),
        Impairment(delay=1000, jitter=100, distribution="normal", loss=0.1, gemodel=(0.1, 0.3, 1.0, 0.0)),
        Impairment(delay=1000, corrupt=0.1, duplicate=0.2, reorder=0.1, rules=("drop every(7)",)),
    ],
    ids=str,
)
def test_random_fates_continue_counting_in_the_next_process(tmp_path: Path, impairment: Impairment) -> None:
    """Fates and log equal those of an uninterrupted run."""
    path = tmp_path / "tallies"
    complete_log: list[Record] = []
    partial_logs: list[Record] = []
    expected = decisions(make_stage(impairment, Tallies(), complete_log), 0, 300)
    verdicts: list[object] = []
    for first, end in ((0, 1), (1, 2), (2, 50), (50, 50), (50, 117), (117, 300)):
        tallies = TallyFile(path)
        successor = make_stage(impairment, tallies, partial_logs)
        tallies.settle()
        verdicts += decisions(successor, first, end)
    assert verdicts == expected
    assert partial_logs == complete_log


def test_a_changed_impairment_counts_from_1_and_so_does_the_original_one_when_restored(tmp_path: Path) -> None:
    path = tmp_path / "tallies"
    impairment, other_impairment = Impairment(loss_pattern="3"), Impairment(loss_pattern="4")
    first = make_stage(impairment, TallyFile(path), [])
    pattern_loss = Verdict(Outcome.PATTERN)
    assert decisions(first, 0, 2) == [None, None]
    first.change(5, other_impairment)
    assert decisions(first, 0, 2) == [None, None]
    tallies = TallyFile(path)
    successor = make_stage(other_impairment, tallies, [])
    tallies.settle()
    assert decisions(successor, 0, 2) == [None, pattern_loss]
    successor.change(9, impairment)
    assert decisions(successor, 0, 3) == [None, None, pattern_loss]


def test_counts_beyond_the_capacity_are_kept_in_memory_only(tmp_path: Path) -> None:
    path = tmp_path / "tallies"
    texts = {"a": "drop nth(3)", "b": "drop nth(3)", "c": "drop nth(3)"}
    assert Process(path, capacity=2, **texts).are_lost(1, 1) == [False, False]
    reopened = Process(path, capacity=2, **texts)
    assert reopened.are_lost(1, 1, 1) == [
        True,
        False,
        True,
    ]  # the two rules in the file continue and drop the first frame
