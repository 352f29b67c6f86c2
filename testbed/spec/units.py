"""Quantities in the notation of ``tc``.

Parsed, a duration is integer nanoseconds, a rate integer bit/s, a size integer bytes and a probability a float 0..1. All
arithmetic is on fractions, so that ``1.28gbit`` is exactly 1,280,000,000. A quantity that is not a whole number of the base
unit is an error; it is not rounded. Units are case-insensitive, as in ``tc``.

duration: ``ns us µs ms s min h``; as in tc also ``nsec(s) usec(s) msec(s) sec(s)``. ``m`` is rejected as ambiguous.

rate: bits per second, in powers of 1000 ``bit kbit mbit gbit tbit``, of 1024 ``kibit mibit gibit tibit``; a ``/s`` may
follow (``100 Mbit/s``). As in tc, ``bps kbps mbps gbps tbps`` and ``kibps ...`` are BYTES per second. ``Mb/s`` is
rejected as ambiguous, in upper and lower case. The limit of a wire is a rate above 0, or ``unlimited``: 0, which for tc
means no limit, would suggest that nothing passes.

size: bytes ``b``; powers of 1024, as in tc ``k kb m mb g gb t tb``, and by their unambiguous names ``KiB MiB GiB TiB``;
bits, of 1024 as in tc, ``kbit mbit gbit``. A bare number is bytes. So ``kB`` is 1024.

probability: ``5%`` or ``0.05``.

A bare number is not a duration or rate, except 0. ``parse_*`` inverts ``format_*``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from testbed.errors import TestbedError

_DURATIONS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_DURATION_NAMES = {"µs": 10**3, "μs": 10**3, "min": 60 * 10**9, "h": 3600 * 10**9} | {
    f"{prefix}sec{plural}": factor
    for prefix, factor in {"n": 1, "u": 10**3, "m": 10**6, "": 10**9}.items()
    for plural in ("", "s")
}
_RATES = {f"{prefix}bit": 1000**power for power, prefix in enumerate(["", "k", "m", "g", "t"])}
_RATE_NAMES = (
    {f"{prefix}ibit": 1024**power for power, prefix in enumerate("kmgt", 1)}
    | {f"{prefix}bps": 8 * 1000**power for power, prefix in enumerate(["", "k", "m", "g", "t"])}
    | {f"{prefix}ibps": 8 * 1024**power for power, prefix in enumerate("kmgt", 1)}
)
_RATE_NAMES |= {f"{unit}/s": factor for unit, factor in (_RATES | _RATE_NAMES).items() if unit.endswith("bit")}
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE_NAMES = {
    "b": 1,
    **{f"{prefix}{end}": 1024**power for power, prefix in enumerate("kmgt", 1) for end in ("", "b", "ib")},
    **{f"{prefix}bit": 1024**power // 8 for power, prefix in enumerate("kmg", 1)},
}

UNLIMITED = "unlimited"
"""The text for no limit of a rate."""

MAX_QUANTITY = 2**63 - 1
"""Maximum of any quantity: the maximum signed 64-bit integer, as in the kernel's fields."""

# Exponents are allowed, as in tc. Three digits are enough for every float, and limit the size of integers.
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,3})?)\s*(?P<unit>[^\d\s].*)?", re.IGNORECASE
)
_MAX_LENGTH = 64  # characters of a quantity
_MIN_PERCENT = 1e-9  # smaller probabilities are not formatted as percent

_NUMBER = r"^\s*\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*"
DURATION_PATTERN = _NUMBER + r"([nNuUmMµμ]?[sS]|[nNuUmM]?[sS][eE][cC][sS]?|[mM][iI][nN]|[hH])\s*$"
RATE_PATTERN = _NUMBER + r"([kKmMgGtT][iI]?)?([bB][iI][tT](/[sS])?|[bB][pP][sS])\s*$"
LIMIT_PATTERN = rf"{RATE_PATTERN}|^\s*[uU][nN][lL][iI][mM][iI][tT][eE][dD]\s*$"
SIZE_PATTERN = _NUMBER + r"([bB]|[kKmMgGtT]([iI]?[bB])?|[kKmMgG][bB][iI][tT])?\s*$"
PROBABILITY_PATTERN = _NUMBER + r"%?\s*$"
"""Patterns of the text forms, for the JSON Schema; numbers without a unit are separate cases of the schema."""


class UnitError(TestbedError, ValueError):
    """A text or number that is not a valid quantity.

    found: the value. expected: the expected value, as a phrase. suggestion: the probably intended value, or empty.
    """

    exit_code = 2

    def __init__(self, found: object, expected: str, suggestion: str = "") -> None:
        self.found = found
        self.expected = expected
        self.suggestion = suggestion
        hint = f" — did you mean {suggestion!r}?" if suggestion else ""
        super().__init__(f"found {found!r}, expected {expected}{hint}")


_DURATION = "a duration: a number with one of the units ns, us, ms, s, min, h (such as '10us')"
_RATE = (
    "a rate: a number with one of the units bit, kbit, mbit, gbit, tbit, or bps, kbps, mbps, gbps for bytes "
    "per second (such as '1gbit')"
)
_SIZE = "a size: a number of bytes, or with one of the units B, KiB, MiB, GiB (such as '64KiB')"
_PROBABILITY = "a probability: '0%' to '100%', or 0 to 1"


def parse_duration(value: object) -> int:
    """Parse a duration, a text with a unit or 0; return nanoseconds. Raises UnitError."""
    if isinstance(value, str) and value.strip().lower().endswith("m"):
        number = value.strip()[:-1].strip()
        raise UnitError(value, f"{_DURATION}; 'm' could be either '{number}min' or '{number}ms'")
    return _integer(value, _DURATION, _DURATIONS | _DURATION_NAMES, "nanoseconds", bare=0)


def parse_rate(value: object) -> int:
    """Parse a rate, a text with a unit or 0; return bit/s. Raises UnitError."""
    return _integer(value, _RATE, _RATES | _RATE_NAMES, "bits per second", bare=0)


def parse_limit(value: object) -> int:
    """Parse the limit of a rate, a text with a unit above 0 or "unlimited"; return bit/s, 0 for unlimited. Raises
    UnitError."""
    if isinstance(value, str) and value.strip().lower() == UNLIMITED:
        return 0
    rate = parse_rate(value)
    if not rate:
        raise UnitError(value, f"a rate above 0, or {UNLIMITED!r}; to block all frames, use a loss of '100%'")
    return rate


def parse_size(value: object) -> int:
    """Parse a size, a text with a unit or a number of bytes; return bytes. Raises UnitError."""
    return _integer(value, _SIZE, _SIZE_NAMES, "bytes", bare=1)


def parse_probability(value: object) -> float:
    """Parse a probability, a percentage such as ``5%`` or a number 0..1 as text or number; return 0..1. Raises UnitError."""
    number, unit = _split(value, _PROBABILITY)
    if unit not in ("", "%"):
        raise UnitError(value, _PROBABILITY, _decimal(number) + "%" if 0 <= number <= 100 else "")
    share = number / 100 if unit else number
    if share > 1:
        suggestion = f"{_decimal(number)}%" if not unit and number <= 100 else ""
        raise UnitError(value, _PROBABILITY, suggestion)
    if unit or not isinstance(value, float):
        return float(share)
    return abs(value)  # -0.0 becomes 0.0


def format_duration(nanoseconds: int) -> str:
    """Format a duration in the largest suitable unit: ``1500`` is ``1.5us``."""
    return _format(nanoseconds, _DURATIONS, "s")


def format_rate(bits_per_second: int) -> str:
    """Format a rate in the largest suitable unit: ``1280000000`` is ``1.28gbit``."""
    return _format(bits_per_second, _RATES, "bit")


def format_limit(bits_per_second: int) -> str:
    """Format a rate for `parse_limit`: ``0`` is ``unlimited``."""
    return format_rate(bits_per_second) if bits_per_second else UNLIMITED


def format_size(size: int) -> str:
    """Format a size in the largest binary unit that divides it: ``65536`` is ``64KiB``, ``1500`` is ``1500B``."""
    unit = next(unit for unit in reversed(_SIZES) if size % _SIZES[unit] == 0) if size else "B"
    return f"{size // _SIZES[unit]}{unit}"


def format_probability(probability: float) -> str:
    """Format a probability as percent: ``0.05`` is ``5%``. The text is exact: it is the shortest text of the float, with the
    decimal point moved."""
    if 0 < probability < _MIN_PERCENT:
        return repr(probability)
    number = Fraction(repr(probability)) * 100
    return f"{_decimal(number)}%"


def _integer(value: object, expected: str, units: Mapping[str, int], base: str, bare: int) -> int:
    """Parse an integer quantity. units: factor by unit. base: the base unit, for errors. bare: factor of a number without a
    unit; 0: only zero may have no unit."""
    number, unit = _split(value, expected)
    factor = units.get(unit.lower()) if unit else bare
    if factor is None:
        import difflib

        nearest = difflib.get_close_matches(unit.lower(), units, n=1, cutoff=0.5)
        raise UnitError(value, expected, _decimal(number) + nearest[0] if nearest else "")
    if not unit and not bare and number:
        raise UnitError(value, f"{expected}; a bare number has no unit")
    result = number * factor
    if result.denominator != 1:
        raise UnitError(value, f"a whole number of {base}")
    if result > MAX_QUANTITY:
        raise UnitError(value, f"at most {MAX_QUANTITY:,} {base}")
    return result.numerator


def _split(value: object, expected: str) -> tuple[Fraction, str]:
    """Split a quantity into its exact number and its unit; empty: no unit. Rejects negative numbers, NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UnitError(value, expected)
    if isinstance(value, int):
        number, unit = Fraction(value), ""
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise UnitError(value, f"{expected}; not NaN and not infinite")
        number, unit = Fraction(repr(value)), ""  # 0.1 in decimal, not its nearest binary fraction
    else:
        match = _QUANTITY.fullmatch(value.strip()) if len(value) <= _MAX_LENGTH else None
        if match is None or not value.isprintable():
            raise UnitError(value, expected)
        number, unit = Fraction(match["number"]), (match["unit"] or "").strip()
        number = -number if match["sign"] == "-" else number
    if number < 0:
        raise UnitError(value, f"{expected}; not negative")
    return number, unit


def _format(value: int, units: dict[str, int], zero: str) -> str:
    """Format in the largest unit in which the value is at least 1 and has at most three decimals."""
    if not value:
        return f"0{zero}"
    unit, factor = next(
        (unit, factor) for unit, factor in reversed(units.items()) if factor <= value and value * 1000 % factor == 0
    )
    return _decimal(Fraction(value, factor)) + unit


def _decimal(number: Fraction) -> str:
    """Format a number whose denominator divides a power of ten, without an exponent."""
    digits = 0
    while number.denominator != 1:
        number *= 10
        digits += 1
    text = str(number.numerator).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}" if digits else text
