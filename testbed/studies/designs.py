"""Designs of experiments: the points of a grid or of a Latin hypercube in a parameter space."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.errors import Problem
from testbed.spec import units
from testbed.spec.problems import below, format_value

Value = str | int | float | bool
"""Value of a parameter, as in TOML."""

Parameters = Mapping[str, Value]
"""Values by the names of parameters, such as ``settings.size``."""

MAX_POINTS = 1_000_000


def grid(axes: Mapping[str, Sequence[Value]]) -> Iterator[dict[str, Value]]:
    """Yield every combination; the last parameter changes fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a parameter. low, high: its ends, in ns, bit/s, bytes, or as a plain number. kind: kind of quantity, a key of
    `_QUANTITIES`. is_log: whether values are uniform on a logarithmic scale."""

    low: float
    high: float
    kind: str
    is_log: bool

    def at(self, fraction: float) -> Value:
        """Return the value at a fraction of the range, from 0 to 1."""
        if self.is_log:
            value = math.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + fraction * (self.high - self.low)
        return _FORMATS[self.kind](value)


def latin_hypercube(ranges: Mapping[str, Range], count: int, seed: int) -> Iterator[dict[str, Value]]:
    """Yield `count` points. The range of each parameter is divided into `count` equal intervals, each with one point (McKay,
    Beckman, Conover, Technometrics 21, 1979)."""
    rng = random.Random(seed)
    columns = {}
    for name, range_ in ranges.items():
        fractions = [(interval + rng.random()) / count for interval in range(count)]
        rng.shuffle(fractions)
        columns[name] = [range_.at(fraction) for fraction in fractions]
    for number in range(count):
        yield {name: values[number] for name, values in columns.items()}


def read_range(table: object, path: str) -> Range | list[Problem]:
    """Read a range as in TOML: {from, to, scale}, both ends of the same kind of quantity. Return it, or its problems. path:
    path of the table."""
    if not isinstance(table, Mapping):
        return [Problem(path, format_value(table), "a table with the keys from and to")]
    problems = [
        Problem(path, f"unknown key {format_value(key)}", "one of the keys from, to or scale")
        for key in table
        if key not in ("from", "to", "scale")
    ]
    problems += [Problem(path, "", f"the key {key!r}") for key in ("from", "to") if key not in table]
    scale = table.get("scale", "linear")
    if scale not in ("linear", "log"):
        problems.append(Problem(below(path, "scale"), format_value(scale), "linear or log"))
    if problems:
        return problems
    for kind, parse in _QUANTITIES.items():
        try:
            low, high = parse(table["from"]), parse(table["to"])
        except (units.UnitError, TypeError, ValueError):
            continue
        if not low < high:
            return [Problem(below(path, "to"), format_value(table["to"]), f"more than {format_value(table['from'])}")]
        if scale == "log" and low <= 0:
            return [Problem(below(path, "from"), format_value(table["from"]), "more than 0 on a logarithmic scale")]
        return Range(low, high, kind, scale == "log")
    expected = "two numbers, durations, rates, sizes, or probabilities, both of the same kind"
    return [Problem(path, f"{format_value(table['from'])} to {format_value(table['to'])}", expected)]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not math.isfinite(value):
        raise ValueError
    return value


def _integer(value: object) -> float:
    if not isinstance(value, int):
        raise TypeError
    return _number(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_QUANTITIES: Final[Mapping[str, Callable[[object], float]]] = {
    "integer": _integer,
    "number": _number,
    "probability": lambda value: units.parse_probability(_text(value)),
    "duration": lambda value: float(units.parse_duration(_text(value))),
    "rate": lambda value: float(units.parse_rate(_text(value))),
    "size": lambda value: float(units.parse_size(_text(value))),
}
_FORMATS: Final[Mapping[str, Callable[[float], Value]]] = {
    "integer": round,
    "number": lambda value: value,
    "probability": lambda value: units.format_probability(value),
    "duration": lambda value: units.format_duration(round(value)),
    "rate": lambda value: units.format_rate(round(value)),
    "size": lambda value: units.format_size(round(value)),
}
