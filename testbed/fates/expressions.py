"""Parser of the text form of rules, for the command line and TOML.

    ACTION [CONDITION]

    drop tcp.dport == 5001 and nth(3)
    delay 1ms udp and ip.src == 10.0.0.0/8 and between(2s, 3s)
    duplicate link == "n1:eth0--s1:1" and direction == forward and every(10)
    corrupt 2 eth.type == 0x0806 or vlan.id in (7, 8)
    drop tcp.flags & 0x12 == 0x02 and first(1, ip.src)
    set emp.tag = 7, emp.flags = 0 emp.type == MESSAGE and nth(1)
    corrupt in emp.message mend-check every(10)

Actions: ``drop``, ``delay DURATION``, ``duplicate``, ``corrupt [BITS] [in FIELD] [mend-check | keep-check]``,
``set FIELD = VALUE[, FIELD = VALUE ...] [mend-check | keep-check]``. With mend-check, the default of ``set``, checksums and
CRCs of a changed frame are recomputed, so that the frame is valid with different contents. With keep-check, the default of
``corrupt``, they are not changed, so that a receiver that checks them discards the frame. A rule that names fields to change
matches the frames that have all of them. Before mend-check or keep-check, ``in`` may be left out: ``corrupt emp.message
keep-check``. Without such an option, ``emp.message`` is a condition: ``corrupt emp.message`` flips a bit anywhere in the
frames in which this field is not 0.

Conditions: a header's name (it is present), a field's name (it is not 0), comparisons ``== != < <= > >= in (...)``, ``&``
before a comparison, ``link``, ``direction`` (``forward`` or ``backward``), time since the rule was set ``after(T)``,
``before(T)``, ``between(T, T)``, joined by ``and``, ``or``, ``not`` and parentheses. A value may be a named value of the
field, ``emp.type == ACK``.

Selections among the matching frames: ``nth(N)``, ``every(N)``, ``first(N)``, ``between(N, N)``, followed by field names (or
``flow``) to count separately for each of their values. They count the frames that match the rest of the rule, so they are
only allowed at the top level, joined by ``and``.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NoReturn

from testbed.fates.conditions import (
    OPERATORS,
    Always,
    And,
    Comparison,
    Condition,
    Count,
    HasField,
    HasHeader,
    InDirection,
    Not,
    OnLink,
    Or,
    Within,
)
from testbed.fates.fate_hash import DIRECTIONS
from testbed.fates.field_changes import ChangeError, check_changes
from testbed.fates.header_fields import Field, Fields
from testbed.fates.records import DROP, DUPLICATE, Fate, corrupt, delay, set_fields
from testbed.fates.tokens import RuleError, Token, tokens
from testbed.spec.units import UnitError, parse_duration

ACTIONS: Final = ("drop", "delay", "duplicate", "corrupt", "set")
_CHECK_OPTIONS: Final = {"mend-check": True, "keep-check": False}
_COUNTS: Final = ("nth", "every", "first", "between")
_SELECTORS: Final = (*_COUNTS, "after", "before")
_MAX_BITS: Final = 4096  # to flip in a frame
_MAX_COUNT: Final = 10**12  # number of a frame
_MAX_DEPTH: Final = 50  # levels of parentheses and 'not'
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]{1,32}|\d{1,39}", re.ASCII)
_MAC: Final = re.compile(r"[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}", re.ASCII)


def parse(text: str, fields: Fields, links: Collection[str] = ()) -> tuple[Fate, Condition, tuple[Count, ...]]:
    """Parse a rule into its fate, its condition and its selections. links: the valid link names; empty: any. Raises
    RuleError."""
    return _Parser(text, fields, links).rule()


def parse_filter(text: str, fields: Fields) -> Condition:
    """Parse a filter of captured frames: a condition without an action and without selections. Raises RuleError."""
    return _Parser(text, fields, (), "filter").filter()


class _Parser:
    """Recursive-descent parser of one rule or filter; a method is named after the element that it parses. syntax: "rule" or
    "filter"."""

    __slots__ = ("_depth", "_fields", "_index", "_links", "_syntax", "_text", "_tokens")

    def __init__(self, text: str, fields: Fields, links: Collection[str], syntax: str = "rule") -> None:
        self._text = text
        self._fields = fields
        self._links = links
        self._syntax = syntax
        self._tokens = tokens(text, syntax)
        self._index = 0
        self._depth = 0

    def rule(self) -> tuple[Fate, Condition, tuple[Count, ...]]:
        fate = self._action()
        names = [fate.within] if fate.within else [name for name, _ in fate.sets]
        has_fields: list[Condition] = [HasField(name) for name in names]
        if self._peek().kind == "end":
            return fate, _conjunction_of(has_fields), ()
        condition, counts = self._condition()
        return fate, _conjunction_of([*has_fields, condition]), counts

    def filter(self) -> Condition:
        return self._condition()[0]

    def _condition(self) -> tuple[Condition, tuple[Count, ...]]:
        conditions, counts = self._conjunction(top=True)
        if self._word("or"):
            if counts:
                self._fail(self._peek(), "a count is only allowed in a top-level 'and'; put the rest in parentheses")
            conditions = [Or((_conjunction_of(conditions), *self._alternatives()))]
        if self._peek().kind != "end":
            self._fail(self._peek(), f"found {self._peek().format()}, expected 'and', 'or' or the {self._syntax}'s end")
        return _conjunction_of(conditions), tuple(counts)

    def _action(self) -> Fate:
        token = self._next()
        if token.kind != "word" or token.text not in ACTIONS:
            message = f"found {token.format()}, expected an action: {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}"
            self._fail(token, message, _closest(token.text, ACTIONS))
        if token.text == "delay":
            duration = self._next()
            nanoseconds = self._duration(duration)
            return delay(nanoseconds) if nanoseconds else self._fail(duration, "the delay must be more than 0")
        if token.text == "corrupt":
            return self._corruption()
        if token.text == "set":
            return self._settings()
        return DROP if token.text == "drop" else DUPLICATE

    def _corruption(self) -> Fate:
        bits = 1
        number = self._peek()
        if number.text.isdigit():
            self._next()
            bits = self._number(number, _MAX_BITS, "the number of bits to flip")
            if not bits:
                self._fail(number, f"the number of bits to flip must be 1 to {_MAX_BITS:,}")
        name = self._peek()
        within = ""
        if self._word("in"):
            self._next()
            name = self._next()
            within = self._field(name).name
        elif name.kind == "word" and self._tokens[self._index + 1].text in _CHECK_OPTIONS:
            self._next()
            within = self._field(name).name
        fate = corrupt(bits, within, mend=self._mend(default=False, fields={within: name} if within else {}))
        return self._checked(fate, name)

    def _settings(self) -> Fate:
        """Parse the fields to set and their values."""
        values: dict[str, int] = {}
        name_tokens: dict[str, Token] = {}
        while True:
            name = self._next()
            field = self._field(name)
            if field.name in values:
                self._fail(name, f"{field.name} is set twice")
            self._expect("=")
            token = self._next()
            values[field.name], prefix = self._value(field, token)
            if prefix:
                self._fail(token, f"{token.text} is a network: {field.name} is set to one address")
            name_tokens[field.name] = name
            if not self._sign(","):
                break
            self._next()
        mend = self._mend(default=True, fields=name_tokens)
        for text, value in values.items():
            self._checked(set_fields({text: value}, mend=mend), name_tokens[text])
        return set_fields(values, mend=mend)

    def _mend(self, *, default: bool, fields: Mapping[str, Token]) -> bool:
        """Parse the option for checks; return whether they are recomputed. fields: the changed fields."""
        token = self._peek()
        if token.text not in _CHECK_OPTIONS:
            if token.kind == "word" and "-" in token.text:
                self._fail(
                    token,
                    f"found {token.format()}, expected mend-check or keep-check",
                    _closest(token.text, _CHECK_OPTIONS),
                )
            return default
        self._next()
        if _CHECK_OPTIONS[token.text]:
            for name in fields:
                header = self._fields[name].header
                if not self._fields.is_checked(header):
                    self._fail(token, f"{header.name} has no check to recompute: leave out mend-check")
        return _CHECK_OPTIONS[token.text]

    def _checked(self, fate: Fate, token: Token) -> Fate:
        try:
            check_changes(self._fields, fate)
        except ChangeError as error:
            self._fail(token, str(error))
        return fate

    def _field(self, token: Token) -> Field:
        """Return the field with a token's name."""
        if token.kind != "word":
            self._fail(token, f"found {token.format()}, expected a field's name")
        if token.text not in self._fields:
            if token.text in self._fields.headers():
                self._fail(token, f"{token.text} is a header: name a field of it")
            self._unknown(token)
        return self._fields[token.text]

    def _conjunction(self, top: bool = False) -> tuple[list[Condition], list[Count]]:
        conditions: list[Condition] = []
        counts: list[Count] = []
        while True:
            begin = self._peek()
            operand = self._unary()
            if isinstance(operand, Condition):
                conditions.append(operand)
            elif self._syntax == "filter":
                self._fail(
                    begin,
                    f"{begin.text}() counts frames on a link, but a capture can contain a frame several times: leave it out",
                )
            elif top:
                counts.append(operand)
            else:
                self._fail(
                    begin,
                    f"{begin.text}() counts the frames that the rest of the rule matches: it is only allowed in a "
                    "top-level 'and'",
                )
            if not self._word("and"):
                return conditions, counts
            self._next()

    def _alternatives(self) -> list[Condition]:
        """Parse the conjunction after each 'or'."""
        conditions = []
        while self._word("or"):
            self._next()
            conditions.append(_conjunction_of(self._conjunction()[0]))
        return conditions

    def _unary(self) -> Condition | Count:
        token = self._peek()
        if self._word("not"):
            self._next()
            self._enter_level(token)
            inner = self._peek()
            operand = self._unary()
            self._depth -= 1
            return Not(operand) if isinstance(operand, Condition) else self._fail(inner, "a count cannot be negated")
        if self._sign("("):
            self._next()
            self._enter_level(token)
            conditions = [_conjunction_of(self._conjunction()[0]), *self._alternatives()]
            self._expect(")")
            self._depth -= 1
            return Or(tuple(conditions)) if len(conditions) > 1 else conditions[0]
        return self._primary()

    def _enter_level(self, token: Token) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(token, f"more than {_MAX_DEPTH} levels of parentheses and 'not'")

    def _primary(self) -> Condition | Count:
        token = self._next()
        if token.kind != "word" or token.text in ("and", "or", "in"):
            self._fail(token, f"found {token.format()}, expected a condition")
        if token.text in ("link", "direction"):
            return self._link_or_direction(token)
        if self._sign("("):
            return self._selector(token)
        if token.text in _SELECTORS:
            argument = "(1s)" if token.text in ("after", "before") else "(2, 5)" if token.text == "between" else "(3)"
            self._fail(token, f"found {token.text!r} without its argument in parentheses", token.text + argument)
        if token.text in self._fields.headers():
            return HasHeader(token.text)
        if token.text not in self._fields:
            self._unknown(token)
        field = self._fields[token.text]
        mask = 0
        if self._sign("&"):
            self._next()
            number = self._next()
            mask = self._number(number, field.max_value, f"bits of {field.name}")
            if not mask:
                self._fail(number, "the mask after '&' must not be 0")
        if self._word("in"):
            self._next()
            return self._any_of(field, mask)
        if self._sign("="):  # the usual mistake for '=='
            self._fail(self._peek(), f"'=' is not allowed in a {self._syntax}'s condition", "==")
        if self._peek().text not in OPERATORS:
            return Comparison(field.name, "!=", (0,), mask)
        sign = self._next()
        value, prefix = self._value(field, self._next())
        if sign.text not in ("==", "!=") and field.kind != "number":
            self._fail(sign, f"{field.name} is an address: compare it with '==', '!=' or 'in'")
        if prefix and mask:
            self._fail(sign, "a field can have '&' or a network with a prefix, not both")
        return Comparison(field.name, sign.text, (value,), mask or prefix)

    def _any_of(self, field: Field, mask: int) -> Condition:
        alternatives: list[Condition] = []
        values: list[int] = []
        for token in self._list():
            value, prefix = self._value(field, token)
            if prefix:
                alternatives.append(Comparison(field.name, "==", (value,), prefix))
            else:
                values.append(value)
        if values:
            alternatives.insert(0, Comparison(field.name, "==", tuple(values), mask))
        return alternatives[0] if len(alternatives) == 1 else Or(tuple(alternatives))

    def _list(self) -> list[Token]:
        """Parse a list ``(a, b, c)``."""
        self._expect("(")
        items = [self._next()]
        while self._sign(","):
            self._next()
            items.append(self._next())
        self._expect(")")
        return items

    def _link_or_direction(self, token: Token) -> Condition:
        """Parse the rest of a condition on ``link`` or ``direction``."""
        negated = self._sign("!=")
        if self._word("in") and token.text == "link":
            self._next()
            return OnLink(tuple([self._link(name) for name in self._list()]))
        if not negated:
            self._expect("==")
        else:
            self._next()
        name = self._next()
        if token.text == "link":
            condition: Condition = OnLink((self._link(name),))
        else:
            if name.text not in DIRECTIONS:
                self._fail(
                    name, f"found {name.format()}, expected forward or backward", _closest(name.text, DIRECTIONS)
                )
            condition = InDirection(name.text)
        return Not(condition) if negated else condition

    def _link(self, token: Token) -> str:
        if token.kind not in ("word", "quoted") or not token.text:
            self._fail(token, f"found {token.format()}, expected a link's name")
        if self._links and token.text not in self._links:
            self._fail(token, f"no link is called {token.text!r}", _closest(token.text, self._links))
        return token.text

    def _selector(self, name: Token) -> Condition | Count:
        if name.text not in _SELECTORS:
            message = f"found {name.text!r} before a parenthesis, expected one of {', '.join(_SELECTORS)}"
            self._fail(name, message, _closest(name.text, _SELECTORS))
        first, *rest = self._list()
        if name.text == "after":
            self._expect_no_more(rest)
            return Within(self._duration(first), -1)
        if name.text == "before":
            self._expect_no_more(rest)
            return Within(0, self._duration(first))
        if name.text == "between":
            if not rest:
                self._fail(first, "between() takes two numbers of frames or two durations")
            second, *rest = rest
            if not (first.text.isdigit() and second.text.isdigit()):
                begin, end = self._duration(first), self._duration(second)
                self._expect_no_more(rest)
                return Within(begin, end) if begin < end else self._fail(second, "the end must be after the start")
            low, high = self._count(first), self._count(second)
            per = self._per(rest)
            return Count(low, high, 1, per) if low <= high else self._fail(second, f"must be at least {low}, the start")
        number, per = self._count(first), self._per(rest)
        if name.text == "every":
            return Count(number, 0, number, per)
        return Count(number if name.text == "nth" else 1, number, 1, per)

    def _count(self, token: Token) -> int:
        number = self._number(token, _MAX_COUNT, "a frame's number")
        return number or self._fail(token, "frames are counted from 1")

    def _per(self, names: Iterable[Token]) -> tuple[str, ...]:
        per = []
        for token in names:
            if token.text not in self._fields and token.text != "flow":
                self._unknown(token)
            per.append(token.text)
        return tuple(per)

    def _expect_no_more(self, rest: list[Token]) -> None:
        if rest:
            self._fail(rest[0], f"found {rest[0].format()}, expected no further argument")

    def _value(self, field: Field, token: Token) -> tuple[int, int]:
        """Parse a field's value; return the value, and the mask of its prefix (0: it has none)."""
        if field.kind == "mac":
            if not _MAC.fullmatch(token.text):
                self._fail(token, f"{field.name} is a hardware address, such as 02:00:00:00:00:01")
            return int(re.sub("[:-]", "", token.text), 16), 0
        if field.kind == "number":
            names = dict(field.names)
            if token.kind == "word" and token.text in names:
                return names[token.text], 0
            return self._number(token, field.max_value, field.name, names), 0
        version, example = (4, "10.0.0.1") if field.kind == "ipv4" else (6, "fd00::1")
        try:
            network = ipaddress.ip_network(token.text, strict=False)
        except ValueError:
            network = None
        if network is None or network.version != version or token.kind != "word":
            self._fail(
                token, f"{field.name} is an IPv{version} address, such as {example}, or a network with its prefix"
            )
        if "/" not in token.text:
            return int(network.network_address), 0
        if not network.prefixlen:
            self._fail(token, f"every address is in {token.text}: use the condition '{field.header.name}' instead")
        return int(network.network_address), int(network.netmask)

    def _number(self, token: Token, max_value: int, meaning: str, names: Collection[str] = ()) -> int:
        """Parse a number. meaning: of the number, for error messages. names: names that are allowed instead."""
        if token.kind != "word" or not _NUMBER.fullmatch(token.text):
            alternatives = f", or one of {', '.join(names)}" if names else ""
            self._fail(
                token,
                f"found {token.format()}, expected a number ({meaning}){alternatives}",
                _closest_name(token.text, names),
            )
        number = int(token.text, 16 if token.text[:2] in ("0x", "0X") else 10)
        if number > max_value:
            self._fail(token, f"{meaning}: at most {max_value:,} (0x{max_value:x})")
        return number

    def _duration(self, token: Token) -> int:
        try:
            return parse_duration(token.text)
        except UnitError as error:
            self._fail(token, f"found {token.format()}, expected {error.expected}", error.suggestion)

    def _unknown(self, token: Token) -> NoReturn:
        words = ("link", "direction", *self._fields.headers(), *self._fields.names())
        self._fail(token, f"no field is called {token.text!r}", _closest(token.text, words))

    def _peek(self) -> Token:
        return self._tokens[self._index]

    def _next(self) -> Token:
        token = self._tokens[self._index]
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def _word(self, text: str) -> bool:
        token = self._tokens[self._index]
        return token.kind == "word" and token.text == text

    def _sign(self, text: str) -> bool:
        token = self._tokens[self._index]
        return token.kind == "sign" and token.text == text

    def _expect(self, sign: str) -> None:
        token = self._next()
        if token.kind != "sign" or token.text != sign:
            self._fail(token, f"found {token.format()}, expected {sign!r}")

    def _fail(self, token: Token, message: str, suggestion: str = "") -> NoReturn:
        raise RuleError(self._text, token.column, token.width, message, suggestion, self._syntax)


def _conjunction_of(conditions: list[Condition]) -> Condition:
    conditions = [operand for operand in conditions if not isinstance(operand, Always)]
    if not conditions:
        return Always()
    return And(tuple(conditions)) if len(conditions) > 1 else conditions[0]


def _closest_name(name: str, names: Collection[str]) -> str:
    """Return the closest name of a field's value, or an empty string."""
    close = difflib.get_close_matches(name.upper(), names, n=1)
    return close[0] if close else ""


def _closest(name: str, names: Collection[str]) -> str:
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return close[0] if close else ""
