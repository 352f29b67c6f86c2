"""Conditions of rules on a frame, its link and the time, and their compilation into one function.

A comparison with a field that a frame does not have is false, whatever the operator. So ``not tcp.dport == 80`` holds for
every frame that is not TCP, and ``tcp.dport != 80`` for none of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from testbed.fates.header_fields import Fields, Located

Test = Callable[[int, bytes, Located], bool]
"""A compiled condition. Arguments: nanoseconds since the rule was set, frame, positions of its headers."""

OPERATORS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _always(elapsed: int, frame: bytes, located: Located) -> bool:  # noqa: ARG001
    return True


def _never(elapsed: int, frame: bytes, located: Located) -> bool:  # noqa: ARG001
    return False


class Condition:
    """A condition of a rule, or an operand of such a condition."""

    __slots__ = ()

    def compile(self, fields: Fields, link: str, direction: str) -> Test:
        """Make the condition's test for one direction of a link, in which link and direction are constants."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Always(Condition):
    """The condition of a rule that states none: it holds for every frame."""

    def compile(self, fields: Fields, link: str, direction: str) -> Test:  # noqa: ARG002
        return _always


@dataclass(frozen=True, slots=True)
class Comparison(Condition):
    """Comparison of a field with a value, or, by "==", with any of several values. comparison: a key of `OPERATORS`. mask:
    bits of the field that are compared; 0: all."""

    field: str
    comparison: str
    values: tuple[int, ...]
    mask: int = 0

    def compile(self, fields: Fields, link: str, direction: str) -> Test:  # noqa: ARG002
        if self.comparison == "==" and not self.mask and len(self.values) == 1:
            test = _compile_equality(fields, self.field, self.values[0])
            if test is not None:
                return test
        read, mask = fields.reader(self.field), self.mask or -1
        if self.comparison == "==":
            values = frozenset(self.values)
            return lambda _, frame, located: (number := read(frame, located)) >= 0 and number & mask in values
        compare, value = OPERATORS[self.comparison], self.values[0]
        return lambda _, frame, located: (number := read(frame, located)) >= 0 and compare(number & mask, value)


def _compile_equality(fields: Fields, name: str, value: int) -> Test | None:
    """Make the fastest test for one value, a comparison of bytes; None if the field's header or bits do not allow it."""
    field = fields[name]
    if field.mask or field.guard or field.header.layer not in ("network", "transport"):
        return None
    if field.header.routed or field.header.begins:
        return None
    raw, begin, end = value.to_bytes(field.width, "big"), field.offset, field.offset + field.width
    number_index, offset_index = (0, 1) if field.header.layer == "network" else (2, 3)
    number = field.header.number

    def is_equal(elapsed: int, frame: bytes, located: Located) -> bool:  # noqa: ARG001
        offset = located[offset_index]
        return located[number_index] == number and offset >= 0 and frame[offset + begin : offset + end] == raw

    return is_equal


@dataclass(frozen=True, slots=True)
class HasHeader(Condition):
    """Test for a header in the frame: ``udp``."""

    header: str

    def compile(self, fields: Fields, link: str, direction: str) -> Test:  # noqa: ARG002
        find = fields.presence(self.header)
        return lambda _, frame, located: find(frame, located) >= 0


@dataclass(frozen=True, slots=True)
class HasField(Condition):
    """Test for a field in the frame, whatever its value."""

    field: str

    def compile(self, fields: Fields, link: str, direction: str) -> Test:  # noqa: ARG002
        read = fields.reader(self.field)
        return lambda _, frame, located: read(frame, located) >= 0


@dataclass(frozen=True, slots=True)
class OnLink(Condition):
    """Test for one of these links."""

    names: tuple[str, ...]

    def compile(self, fields: Fields, link: str, direction: str) -> Test:  # noqa: ARG002
        return _always if link in self.names else _never


@dataclass(frozen=True, slots=True)
class InDirection(Condition):
    """Test for a direction of the link."""

    name: str

    def compile(self, fields: Fields, link: str, direction: str) -> Test:  # noqa: ARG002
        return _always if direction == self.name else _never


@dataclass(frozen=True, slots=True)
class Within(Condition):
    """Test for frames offered in [begin, end) nanoseconds after the rule was set; end -1: forever."""

    begin: int
    end: int

    def compile(self, fields: Fields, link: str, direction: str) -> Test:  # noqa: ARG002
        begin, end = self.begin, self.end
        if end < 0:
            return lambda elapsed, _, __: elapsed >= begin
        return lambda elapsed, _, __: begin <= elapsed < end


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """Negation."""

    operand: Condition

    def compile(self, fields: Fields, link: str, direction: str) -> Test:
        test = self.operand.compile(fields, link, direction)
        if test in (_always, _never):
            return _never if test is _always else _always
        return lambda elapsed, frame, located: not test(elapsed, frame, located)


@dataclass(frozen=True, slots=True)
class And(Condition):
    """Conjunction."""

    operands: tuple[Condition, ...]

    def compile(self, fields: Fields, link: str, direction: str) -> Test:
        compiled = [operand.compile(fields, link, direction) for operand in self.operands]
        tests = [test for test in compiled if test is not _always]
        if _never in tests:
            return _never
        if len(tests) < 2:
            return tests[0] if tests else _always
        if len(tests) == 2:
            left, right = tests
            return lambda elapsed, frame, located: left(elapsed, frame, located) and right(elapsed, frame, located)
        return lambda elapsed, frame, located: all(test(elapsed, frame, located) for test in tests)


@dataclass(frozen=True, slots=True)
class Or(Condition):
    """Disjunction."""

    operands: tuple[Condition, ...]

    def compile(self, fields: Fields, link: str, direction: str) -> Test:
        compiled = [operand.compile(fields, link, direction) for operand in self.operands]
        tests = [test for test in compiled if test is not _never]
        if _always in tests:
            return _always
        if len(tests) < 2:
            return tests[0] if tests else _never
        return lambda elapsed, frame, located: any(test(elapsed, frame, located) for test in tests)


def never_holds(test: Test) -> bool:
    """Whether a compiled condition can never hold."""
    return test is _never


@dataclass(frozen=True, slots=True)
class Count:
    """Selection of matching frames by number: ``nth(3)``, ``every(5)``, ``first(2)``, ``between(2, 5)``.

    Frames are counted from 1, separately in each direction of each link, and for each combination of values of the fields
    (or "flow") that `per` names. Every `step`-th frame from `first` to `last` is selected. last 0: without end.
    """

    first: int
    last: int
    step: int = 1
    per: tuple[str, ...] = ()

    def selects(self, number: int) -> bool:
        """Whether the frame with this number is selected."""
        return number >= self.first and (not self.last or number <= self.last) and not (number - self.first) % self.step
