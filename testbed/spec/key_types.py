"""Types of a description's keys: text or numbers as a user writes them, checked and made canonical.

Durations become integer nanoseconds, rates bit/s, sizes bytes, probabilities 0 to 1.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from testbed.spec import losses, names, units
from testbed.spec.kinds import is_kind, kinds
from testbed.spec.problems import MismatchError, joined, nearest

SMALLEST_MTU = 68
LARGEST_MTU = 65_535
USUAL_MTU = 1500
SMALLEST_IPV6_MTU = 1280
"""RFC 8200, section 5: below it the kernel disables IPv6 on the interface."""

LONGEST_RULE = 1000
MAX_FLIPPED_BITS = 4096


def _text_or_number(pattern: str, examples: list[object], description: str, **number: object) -> WithJsonSchema:
    forms: list[dict[str, object]] = [{"type": "string", "pattern": pattern}, number]
    return WithJsonSchema({"anyOf": forms, "description": description, "examples": examples})


def _positive_size(value: object) -> int:
    size = units.parse_size(value)
    if not size:
        raise MismatchError("a size above 0")
    return size


def _address(value: object) -> str:
    """Validate an interface address with its prefix length, and return its canonical text."""
    expected = "an IPv4 or IPv6 address with its prefix length, such as '10.0.0.1/16'"
    if not isinstance(value, str) or "/" not in value:
        raise MismatchError(expected, f"{value}/16" if isinstance(value, str) and _is_ipv4(value) else "")
    try:
        address = ipaddress.ip_interface(value)
    except ValueError:
        raise MismatchError(expected) from None
    network, longest = address.network, 30 if address.version == 4 else 126
    if address.version == 6 and "%" in value:
        raise MismatchError("an address without a zone")
    if network.prefixlen > longest or not network.prefixlen:
        raise MismatchError(f"a prefix length of 1 to {longest}: the network needs room for two hosts")
    if address.is_multicast or address.is_loopback or address.is_unspecified or address.is_link_local:
        raise MismatchError("a unicast address that is not loopback or link-local")
    if address.ip == network.network_address:
        raise MismatchError(f"a host's address; this is the network {network} itself")
    if address.version == 4 and address.ip == network.broadcast_address:
        raise MismatchError(f"a host's address; this is the broadcast address of {network}")
    return str(address)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _kind(value: object) -> object:
    if not isinstance(value, str) or not is_kind(value):
        known = kinds()
        raise MismatchError(joined(known), nearest(value, known))
    return value


def _environment_name(value: str) -> str:
    if not value or "=" in value or "\0" in value:
        raise MismatchError("the name of an environment variable, without '='")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise MismatchError("text without a NUL character")
    return value


def _absolute_path(value: str) -> str:
    parts = value.split("/")
    if parts[0] or "\0" in value or any(part in ("", ".", "..") for part in parts[1:]):
        raise MismatchError("an absolute path of a file, without '.', '..', '//' and a '/' at its end")
    return value


def _file_path(value: str) -> str:
    if not value or "\0" in value:
        raise MismatchError("the path of a file")
    return value


def _rule_text(value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > LONGEST_RULE:
        raise MismatchError(f"a rule of at most {LONGEST_RULE:,} characters on one line")
    return value


Name = Annotated[
    str, AfterValidator(names.check_name), WithJsonSchema({"type": "string", "pattern": names.NAME_PATTERN})
]
InterfaceName = Annotated[
    str,
    AfterValidator(names.check_interface),
    WithJsonSchema({"type": "string", "pattern": names.INTERFACE_PATTERN, "not": {"const": "lo"}}),
]
Mac = Annotated[
    str,
    AfterValidator(names.check_mac),
    WithJsonSchema({"type": "string", "pattern": names.MAC_PATTERN, "examples": ["02:00:00:00:00:01"]}),
]
Mtu = Annotated[int, Field(ge=SMALLEST_MTU, le=LARGEST_MTU)]
Address = Annotated[
    str,
    BeforeValidator(_address),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.1/16", "fd00::1/64"]}),
]
EndText = Annotated[
    str,
    AfterValidator(names.check_end),
    WithJsonSchema({"type": "string", "examples": ["n1", "n1:eth0", "s1:3"]}),
]
Duration = Annotated[
    int,
    BeforeValidator(units.parse_duration),
    _text_or_number(units.DURATION_PATTERN, ["10us", "1.5ms"], "A duration with its unit.", const=0),
]
Rate = Annotated[
    int,
    BeforeValidator(units.parse_rate),
    _text_or_number(units.RATE_PATTERN, ["1gbit", "1.28gbit"], "A rate with its unit.", const=0),
]
Limit = Annotated[
    int,
    BeforeValidator(units.parse_limit),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": units.LIMIT_PATTERN,
            "description": "A rate with its unit, above 0, or 'unlimited'.",
            "examples": ["1gbit", "1.28gbit", units.UNLIMITED],
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(_positive_size),
    _text_or_number(
        units.SIZE_PATTERN,
        ["64KiB", 65536],
        "A size in bytes or with its unit.",
        type="integer",
        exclusiveMinimum=0,
    ),
]
Probability = Annotated[
    float,
    BeforeValidator(units.parse_probability),
    _text_or_number(
        units.PROBABILITY_PATTERN,
        ["5%", 0.05],
        "A probability, as percent or 0 to 1.",
        type="number",
        minimum=0,
        maximum=1,
    ),
]
FilePath = Annotated[str, AfterValidator(_file_path), WithJsonSchema({"type": "string", "minLength": 1})]
GilbertElliott = Annotated[
    tuple[float, ...],
    BeforeValidator(losses.parse_gemodel),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": losses.GEMODEL_PATTERN},
                {"type": "array", "items": {"type": ["number", "string"]}, "minItems": 1, "maxItems": 4},
            ],
            "examples": ["1% 30% 100% 0%"],
        }
    ),
]
LossPattern = Annotated[
    str,
    AfterValidator(losses.check_pattern),
    WithJsonSchema({"type": "string", "pattern": losses.PATTERN, "examples": ["5, 12, 24", "3 every 10"]}),
]
Cpus = Annotated[
    tuple[int, ...],
    BeforeValidator(names.check_cpus),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": names.CPUS_PATTERN},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ],
            "examples": ["0-1,3", [0, 1, 3]],
        }
    ),
]
KindName = Annotated[
    str, BeforeValidator(_kind), WithJsonSchema({"type": "string", "examples": ["ethernet", "myrinet", "atm"]})
]
EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
Text = Annotated[str, AfterValidator(_no_nul)]
AbsolutePath = Annotated[str, AfterValidator(_absolute_path)]
"""Path of a file that programs in a node see."""
RuleText = Annotated[str, AfterValidator(_rule_text)]
Listed = Field(strict=False)
"""A TOML list in a field whose frozen model has a tuple."""
Tag = Annotated[str, AfterValidator(names.check_tag), WithJsonSchema({"type": "string", "pattern": names.TAG_PATTERN})]


def _each_once(tags: tuple[str, ...]) -> tuple[str, ...]:
    for place, tag in enumerate(tags):
        if tag in tags[:place]:
            raise MismatchError(f"every tag once: {tag!r} is there twice")
    return tags


Tags = Annotated[tuple[Tag, ...], Listed, AfterValidator(_each_once)]
"""Tags of an element, for selecting several elements at once."""
