"""Filter for captured frames: the conditions of fault rules (`testbed.fates.expressions`), applied to a file.

Times count from the capture's first frame. Conditions that count frames are refused: a link carries a frame once, a
capture has it at each point where it was captured. Links and directions are known only in captures of ours, whose
interfaces name their place.
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
    """A filter expression. Raises RuleError for an invalid one."""

    def __init__(self, text: str) -> None:
        self._fields: Final = known_fields()
        self._condition = parse_filter(text, self._fields)
        parts = list(_parts(self._condition))
        self._asks_link = any(isinstance(part, OnLink) for part in parts)
        self._asks_direction = any(isinstance(part, InDirection) for part in parts)
        self._tests: dict[tuple[Interface, str], Test] = {}
        self._begun: int | None = None

    def select(self, frames: Iterable[Frame]) -> list[Frame]:
        """Return the frames that match. Raises TestbedError where the capture lacks what the filter asks for."""
        tests, matching = self._tests, []
        for frame in frames:
            if self._begun is None:
                self._begun = frame.when
            test = tests.get((frame.interface, frame.bound))
            if test is None:
                test = tests[frame.interface, frame.bound] = self._compile(frame.interface, frame.bound)
            if test(frame.when - self._begun, frame.raw, locate(frame.raw)):
                matching.append(frame)
        return matching

    def _compile(self, interface: Interface, bound: str) -> Test:
        direction = interface.direction_of(bound)
        what = "link" if self._asks_link and not interface.link else ""
        if self._asks_direction and not direction:
            what = "direction"
        if what:
            name = interface.name or "its only interface"
            raise TestbedError(
                f"the filter asks for the {what}, which the capture does not record for {name}: leave it out"
            )
        return self._condition.compile(self._fields, interface.link, direction)


def _parts(condition: Condition) -> Iterable[Condition]:
    """Yield a condition and all conditions within it."""
    yield condition
    inner = condition.parts if isinstance(condition, And | Or) else ()
    for part in (condition.part,) if isinstance(condition, Not) else inner:
        yield from _parts(part)
