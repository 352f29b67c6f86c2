"""Checkers on restarted programs and on runs that an error ended: losses that a fault explains are no violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.checkers.alignment import COMPLETE, EXCUSED, INCOMPLETE, align, fits
from testbed.controller.checkers.histories import Receive, Send, histories_of, read_histories
from testbed.runtime.journal import UnbufferedLines
from tests.unit.controller.checker_mutants import MUTANTS
from tests.unit.controller.restart_histories import SCENARIOS, RestartHistory
from tests.unit.protocols.mutants import Mutant, find

CONTENTS = st.sampled_from(["00", "01"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_history(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mistake_in_the_checkers_is_found(mutant: Mutant) -> None:
    find(mutant, lambda number: SCENARIOS[number](), 0, len(SCENARIOS))


def send_of(index: int, content: str) -> Send:
    return Send(0, "n1", index, 1, 0, 0, 8, index, "", 0, digest=content)


def receive_of(index: int, content: str) -> Receive:
    return Receive(
        1, "n2", index, 0, 0, 0, 8, index, "", 0, ended=1_000, source=0, received_tag=0, received_size=8, digest=content
    )


def valid_assignments(sends: list[Send], receives: list[Receive]) -> Iterator[tuple[int, ...]]:
    for assignment in combinations(range(len(sends)), len(receives)):
        if all(fits(sends[index], receive) for index, receive in zip(assignment, receives, strict=True)):
            yield assignment


@given(
    st.lists(st.tuples(CONTENTS, st.sampled_from([INCOMPLETE, EXCUSED, COMPLETE])), max_size=9),
    st.lists(CONTENTS, max_size=5),
)
def test_the_alignment_is_a_valid_assignment_of_minimal_cost(sent: list[tuple[str, int]], received: list[str]) -> None:
    sends = [send_of(index, content) for index, (content, _) in enumerate(sent)]
    receives = [receive_of(index, content) for index, content in enumerate(received)]
    costs = [cost for _, cost in sent]

    def remaining_cost(assignment: tuple[int, ...] | list[int]) -> int:
        return sum(costs) - sum(costs[index] for index in assignment)

    assignment = align(sends, receives, costs)
    assignments = list(valid_assignments(sends, receives))
    if assignment is None:
        assert not assignments
    else:
        assert tuple(assignment) in assignments
        assert remaining_cost(assignment) == min(map(remaining_cost, assignments))


def test_many_messages_of_equal_content_are_aligned_in_linear_time() -> None:
    """Time is linear except in messages in flight at a program's end: here a tenth of 20,000 messages, in 200
    incarnations."""
    sends = [send_of(index, "00") for index in range(20_000)]
    costs = [INCOMPLETE if index % 100 >= 90 else COMPLETE for index in range(20_000)]
    receives = [receive_of(index, "00") for index in range(18_000)]
    for index, receive in enumerate(receives):
        receive.ended = index * 10 // 9 + 12
    assignment = align(sends, receives, costs)
    assert assignment is not None
    assert sum(costs) == sum(costs[index] for index in assignment)


def test_a_history_continues_after_a_truncated_line(tmp_path: Path) -> None:
    history = RestartHistory()
    receive = history.begin_receive(1)
    history.begin_send(0, 1)
    history.restart(0)
    send = history.begin_send(0, 1)
    history.complete_receive(1, receive, 0)
    history.complete_send(0, send)
    for name, events in history.events.items():
        journal = UnbufferedLines(tmp_path / f"{name}.jsonl")
        for number, event in enumerate(events):
            journal.write(event)
            if name == "n1" and number == 0:
                journal.close()
                truncated = (tmp_path / "n1.jsonl").read_bytes()[:-20]
                (tmp_path / "n1.jsonl").write_bytes(truncated)
                journal = UnbufferedLines(tmp_path / "n1.jsonl")
        journal.close()
    histories = read_histories(tmp_path, ["n1", "n2"])
    assert [(send.number, send.is_complete) for send in histories.sends[0]] == [(1, True)]


def test_a_completion_without_its_send_is_skipped() -> None:
    history = RestartHistory()
    history.deliver(0, 1, "0a")
    del history.events["n1"][0]
    assert histories_of(history.events).sends == [[], []]
