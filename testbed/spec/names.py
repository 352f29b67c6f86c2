"""Syntax of names, hardware addresses and CPU lists: a validator for each, whose error describes the expected form.

The rules for interface names are the kernel's (dev_valid_name, and the names reserved by its sysctl tree).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from testbed.spec.problems import MismatchError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
TAG_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
INTERFACE_PATTERN = r"^[!-$&-.0-9;-~]{1,15}$"
"""Printable ASCII without space, ``/``, ``:`` and ``%`` (the kernel replaces ``%d`` by a number)."""

MAC_PATTERN = r"^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$"
CPUS_PATTERN = r"^\s*\d+\s*(-\s*\d+\s*)?(,\s*\d+\s*(-\s*\d+\s*)?)*$"

_NAME = re.compile(NAME_PATTERN.rstrip("$") + r"\Z")
_TAG = re.compile(TAG_PATTERN.rstrip("$") + r"\Z")
_INTERFACE = re.compile(INTERFACE_PATTERN.rstrip("$") + r"\Z")
_MAC = re.compile(MAC_PATTERN.rstrip("$") + r"\Z")
_CPUS = re.compile(CPUS_PATTERN.rstrip("$") + r"\Z", re.ASCII)
_RESERVED = frozenset({".", "..", "lo", "all", "default"})

MAX_CPUS = 8192
"""Maximum NR_CPUS of a Linux kernel on x86 and arm64."""

MAX_PORT = 65_535

MAX_CORES = 1024
"""Maximum number of cores of a modelled host."""

MAX_RANKS = 64
"""Maximum number of programs on a node. Each has a function of the node's NIC with a MAC address of its own, for which six
bits are free (`placement.address_of`)."""


def check_name(value: str) -> str:
    """Check the name of a cluster, node or switch, which becomes part of file, interface and namespace names."""
    return _check(value, _NAME, "_-", "a name of 1 to 63 letters, digits, '-' and '_'")


def check_tag(value: str) -> str:
    """Check a tag of nodes and links."""
    return _check(value, _TAG, "_.-", "a tag of 1 to 63 letters, digits, '-', '_' and '.'")


def _check(value: str, pattern: re.Pattern[str], marks: str, expected: str) -> str:
    """Check a text against a pattern of letters, digits and `marks`. The suggestion has '-' in place of invalid
    characters."""
    if not pattern.match(value):
        valid = re.sub(rf"[^A-Za-z0-9{marks}]+", "-", value).strip(marks) if len(value) <= 63 else ""
        raise MismatchError(f"{expected} that begins with a letter or digit", valid)
    return value


def check_interface(value: str) -> str:
    """Check a NIC's name by the kernel's rules."""
    if not _INTERFACE.match(value) or value in _RESERVED:
        raise MismatchError(
            "an interface name of 1 to 15 characters without space, '/', ':' and '%', and not "
            "'lo', 'all', 'default', '.' or '..'"
        )
    return value


def check_mac(value: str) -> str:
    """Check a unicast hardware address; return it in lower case with colons."""
    if not _MAC.match(value):
        raise MismatchError("a hardware address such as '02:00:00:00:00:01'")
    mac = value.lower().replace("-", ":")
    if int(mac[:2], 16) & 1:
        raise MismatchError(
            "a unicast hardware address: the first byte must be even", f"{int(mac[:2], 16) - 1:02x}{mac[2:]}"
        )
    if mac == "00:00:00:00:00:00":
        raise MismatchError("a hardware address other than zero")
    return mac


def check_end(value: str) -> str:
    """Check the syntax of a link's end: ``n1``, ``n1:eth0``, ``s1`` or ``s1:3``. `validation` checks whether the NIC or port
    exists."""
    owner, colon, port = value.partition(":")
    if not _NAME.match(owner) or (colon and not _INTERFACE.match(port)):
        raise MismatchError("a node or switch, optionally with a colon and its NIC or port ('n1', 'n1:eth0', 's1:3')")
    return value


def check_cpus(value: object) -> tuple[int, ...]:
    """Parse CPU numbers in a text such as ``"0-1,3"`` or a list; return them sorted, each once. Empty: all CPUs."""
    expected = f"CPU numbers below {MAX_CPUS:,}, as a list or text such as '0-1,3'"
    numbers: set[int] = set()
    if isinstance(value, str) and len(value) <= 4096 and _CPUS.match(value):
        for range_text in value.split(","):
            first, dash, last = range_text.partition("-")
            low, high = (int(text) if len(text.strip()) <= 5 else MAX_CPUS for text in (first, last if dash else first))
            if low > high:
                raise MismatchError(expected, f"{high}-{low}")
            numbers.update(range(low, min(high, MAX_CPUS) + 1))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number in value:
            if isinstance(number, bool) or not isinstance(number, int):
                raise MismatchError(expected)
            numbers.add(number)
        if not value:
            return ()
    if not numbers or min(numbers) < 0 or max(numbers) >= MAX_CPUS:
        raise MismatchError(expected)
    return tuple(sorted(numbers))


def format_cpus(numbers: Sequence[int]) -> str:
    """Format as ranges, like the kernel: ``0-1,3``."""
    return ",".join(ranges(numbers))


def ranges(numbers: Iterable[int]) -> list[str]:
    """Return the texts of ranges of consecutive numbers, ascending: ``0-1`` and ``3``."""
    bounds: list[list[int]] = []
    for number in sorted(numbers):
        if bounds and number == bounds[-1][1] + 1:
            bounds[-1][1] = number
        else:
            bounds.append([number, number])
    return [f"{low}" if low == high else f"{low}-{high}" for low, high in bounds]


def port_number(text: str) -> int:
    """Parse a switch port's number; 0 if the text is not a number."""
    return int(text) if text.isascii() and text.isdigit() and text[0] != "0" and len(text) <= 5 else 0


def plain_number(name: str) -> int:
    """Return 7 for ``n7``, 0 for any other name: numbers at the end of other names could be equal."""
    match = re.fullmatch(r"n(\d{1,9})", name, re.ASCII)
    return int(match[1]) if match else 0
