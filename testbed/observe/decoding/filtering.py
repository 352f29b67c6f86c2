"""Which frames of a capture are meant: the conditions of fault rules (`testbed.wire.expressions`), asked of a file.

Times in it count from the capture's first frame. What counts frames is refused: a link carries a frame once, a capture has
it wherever it was seen. Links and directions are known of captures of ours only, whose interfaces say where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from testbed.errors import TestbedError
from testbed.fields import known_fields
from testbed.observe.decoding.reading import Frame, Interface
from testbed.wire.conditions import And, Condition, InDirection, Not, OnLink, Or, Test
from testbed.wire.expressions import parse_filter
from testbed.wire.fields import locate


class Filter:
    """Raises RuleError for a text that is none."""

    def __init__(self, text: str) -> None:
        self._fields: Final = known_fields()
        self._condition = parse_filter(text, self._fields)
        parts = list(_parts(self._condition))
        self._asks_link = any(isinstance(part, OnLink) for part in parts)
        self._asks_direction = any(isinstance(part, InDirection) for part in parts)
        self._tests: dict[tuple[Interface, str], Test] = {}
        self._begun: int | None = None

    def passes(self, frames: Iterable[Frame]) -> list[Frame]:
        """Those that are meant. Raises TestbedError where the capture does not say what is asked for."""
        tests, found = self._tests, []
        for frame in frames:
            if self._begun is None:
                self._begun = frame.when
            test = tests.get((frame.interface, frame.bound))
            if test is None:
                test = tests[frame.interface, frame.bound] = self._compile(frame.interface, frame.bound)
            if test(frame.when - self._begun, frame.raw, locate(frame.raw)):
                found.append(frame)
        return found

    def _compile(self, interface: Interface, bound: str) -> Test:
        direction = interface.enters(bound)
        what = "link" if self._asks_link and not interface.link else ""
        if self._asks_direction and not direction:
            what = "direction"
        if what:
            name = interface.name or "its only interface"
            raise TestbedError(
                f"the filter asks for the {what}, and the capture does not say it of {name}: leave it out"
            )
        return self._condition.compile(self._fields, interface.link, direction)


def _parts(condition: Condition) -> Iterable[Condition]:
    """Everything that a condition consists of."""
    yield condition
    inner = condition.parts if isinstance(condition, And | Or) else ()
    for part in (condition.part,) if isinstance(condition, Not) else inner:
        yield from _parts(part)
