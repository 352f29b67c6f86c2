"""Notation of losses: explicit patterns ("5, 12, 24", "3 every 10") and Gilbert-Elliott's four parameters.

A pattern lists the numbers of a direction's lost frames, counted from 1; "5-8" is a range, and "every N" at the end repeats
the pattern with that period. Gilbert-Elliott is written as in tc: ``p r 1-h 1-k``, where p and r are the probabilities of
the transitions to the bad state and back, and 1-h and 1-k the loss probabilities in the bad and in the good state. Omitted
parameters at the end have the defaults 1-p, 100% and 0%.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from testbed.spec.names import ranges
from testbed.spec.problems import MismatchError
from testbed.spec.units import UnitError, format_probability, parse_probability

PATTERN = r"^\s*\d{1,9}(\s*-\s*\d{1,9})?(\s*,\s*\d{1,9}(\s*-\s*\d{1,9})?)*(\s+every\s+\d{1,9})?\s*$"
GEMODEL_PATTERN = r"^\s*[^\s,]+(\s+[^\s,]+){0,3}\s*$"

MAX_NUMBERS = 100_000
"""Maximum number of frames in one pattern."""

_PATTERN = re.compile(PATTERN.rstrip("$") + r"\Z", re.ASCII)
_EXPECTED = "numbers of frames counted from 1, such as '5, 12, 24', '5-8' or '3 every 10'"
_GEMODEL = "Gilbert-Elliott's 'p r 1-h 1-k', one to four probabilities such as '1% 30% 100% 0%'"


def parse_pattern(text: str) -> tuple[frozenset[int], int]:
    """Return the frame numbers and the period; 0: the pattern is not repeated. Raises MismatchError."""
    if len(text) > 20 * MAX_NUMBERS or not _PATTERN.match(text):
        raise MismatchError(_EXPECTED)
    ranges_text, _, period_text = text.partition("every")
    numbers: set[int] = set()
    for range_text in ranges_text.split(","):
        first, _, last = range_text.partition("-")
        low, high = int(first), int(last or first)
        if not 0 < low <= high:
            raise MismatchError(_EXPECTED, f"{high}-{low}" if 0 < high < low and range_text == ranges_text else "")
        if len(numbers) + high - low >= MAX_NUMBERS:
            raise MismatchError(f"at most {MAX_NUMBERS:,} numbers of frames; a longer pattern repeats with 'every N'")
        numbers.update(range(low, high + 1))
    period = int(period_text or 0)
    if period_text and max(numbers) > period:
        raise MismatchError(f"numbers up to the period {period}")
    return frozenset(numbers), period


def check_pattern(text: str) -> str:
    """Return the canonical text of the pattern. Raises MismatchError."""
    numbers, period = parse_pattern(text)
    numbers_text = ", ".join(ranges(numbers))
    return f"{numbers_text} every {period}" if period else numbers_text


def parse_gemodel(value: object) -> tuple[float, float, float, float]:
    """Parse a text or list; return p, r, 1-h, 1-k. Raises MismatchError."""
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not 1 <= len(parts) <= 4:
        raise MismatchError(_GEMODEL)
    try:
        p, *rest = (parse_probability(part) for part in parts)
    except UnitError:
        raise MismatchError(_GEMODEL) from None
    r, bad, good = (*rest, *(1 - p, 1.0, 0.0)[len(rest) :])
    return p, r, bad, good


def format_gemodel(parameters: Sequence[float]) -> str:
    """Format p, r, 1-h, 1-k as text, the inverse of `parse_gemodel`."""
    return " ".join(format_probability(parameter) for parameter in parameters)
