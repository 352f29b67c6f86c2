"""Filter for captured frames: the conditions of fault rules (`testbed.fates.expressions`), applied to a file.

Times are relative to the capture's first frame. Conditions that count frames are rejected: a link carries a frame once,
but a capture may contain it once per capture point. Only the testbed's captures, whose interfaces name their link, record
links and directions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from testbed.errors import TestbedError
from testbed.fates.conditions import And, Condition, InDirection, Not, OnLink, Or, Test
from testbed.fates.expressions import parse_filter
from testbed.fates.header_fields import locate
from testbed.fields import known_fields
from testbed.observe.decoding.capture_reader import Frame, Interface


class Filter:
    """Filter of frames. The constructor raises RuleError for an invalid text."""

    def __init__(self, text: str) -> None:
        self._fields: Final = known_fields()
        self._condition = parse_filter(text, self._fields)
        conditions = list(_with_operands(self._condition))
        self._tests_link = any(isinstance(condition, OnLink) for condition in conditions)
        self._tests_direction = any(isinstance(condition, InDirection) for condition in conditions)
        self._tests: dict[tuple[Interface, str], Test] = {}
        self._start_time: int | None = None  # of the first frame

    def select(self, frames: Iterable[Frame]) -> list[Frame]:
        """Return the matching frames. Raises TestbedError if the capture lacks a link or direction that the filter tests."""
        tests, matching = self._tests, []
        for frame in frames:
            if self._start_time is None:
                self._start_time = frame.when
            test = tests.get((frame.interface, frame.bound))
            if test is None:
                test = tests[frame.interface, frame.bound] = self._compile(frame.interface, frame.bound)
            if test(frame.when - self._start_time, frame.raw, locate(frame.raw)):
                matching.append(frame)
        return matching

    def _compile(self, interface: Interface, bound: str) -> Test:
        direction = interface.direction_of(bound)
        missing = "link" if self._tests_link and not interface.link else ""
        if self._tests_direction and not direction:
            missing = "direction"
        if missing:
            name = interface.name or "its only interface"
            raise TestbedError(
                f"the filter tests the {missing}, which the capture does not record for {name}: leave it out"
            )
        return self._condition.compile(self._fields, interface.link, direction)


def _with_operands(condition: Condition) -> Iterable[Condition]:
    """Yield a condition and all conditions within it."""
    yield condition
    operands = condition.operands if isinstance(condition, And | Or) else ()
    for operand in (condition.operand,) if isinstance(condition, Not) else operands:
        yield from _with_operands(operand)
