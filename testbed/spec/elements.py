"""Elements of a cluster as a user writes them: node, NIC, switch, link, impairments, defaults.

Text is parsed to canonical values, such as integer nanoseconds for durations. `validation` checks the elements against each
other. None means that a key is absent: `resolver` chooses its value.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from testbed.spec import losses, names, units
from testbed.spec.annotations import After, Before, Bounds, Listed, Schema
from testbed.spec.element import Element, Field, keys
from testbed.spec.kinds import ETHERNET, is_kind, kind_of, kinds
from testbed.spec.problems import MismatchError, join_alternatives, nearest

if TYPE_CHECKING:
    from typing import Unpack

MIN_MTU = 68
MAX_MTU = 65_535
DEFAULT_MTU = 1500
MIN_IPV6_MTU = 1280
"""RFC 8200, section 5: below it the kernel disables IPv6 on the interface."""

MAX_RULE_LENGTH = 1000
MAX_FLIPPED_BITS = 4096


def _text_or_number(pattern: str, examples: list[object], description: str, **number: object) -> Schema:
    forms: list[dict[str, object]] = [{"type": "string", "pattern": pattern}, number]
    return Schema({"anyOf": forms, "description": description, "examples": examples})


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
        raise MismatchError(join_alternatives(known), nearest(value, known))
    return value


def _environment_key(value: str) -> str:
    if not value or "=" in value or "\0" in value:
        raise MismatchError("the name of an environment variable, without '='")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise MismatchError("text without a NUL character")
    return value


def _file_path(value: str) -> str:
    parts = value.split("/")
    if parts[0] or "\0" in value or any(part in ("", ".", "..") for part in parts[1:]):
        raise MismatchError("an absolute path of a file, without '.', '..', '//' or a '/' at its end")
    return value


def _directory_path(value: str) -> str:
    parts = value.split("/")
    if parts[0] or parts[1:] == [""] or "\0" in value or any(part in ("", ".", "..") for part in parts[1:]):
        raise MismatchError("an absolute path of a directory, without '.', '..', '//' or a '/' at its end")
    return value


def _path(value: str) -> str:
    if not value or "\0" in value:
        raise MismatchError("the path of a file")
    return value


def _rule_text(value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > MAX_RULE_LENGTH:
        raise MismatchError(f"a rule of at most {MAX_RULE_LENGTH:,} characters on one line")
    return value


Name = Annotated[str, After(names.check_name), Schema({"type": "string", "pattern": names.NAME_PATTERN})]
InterfaceName = Annotated[
    str,
    After(names.check_interface),
    Schema({"type": "string", "pattern": names.INTERFACE_PATTERN, "not": {"const": "lo"}}),
]
Mac = Annotated[
    str,
    After(names.check_mac),
    Schema({"type": "string", "pattern": names.MAC_PATTERN, "examples": ["02:00:00:00:00:01"]}),
]
Mtu = Annotated[int, Bounds(ge=MIN_MTU, le=MAX_MTU)]
Address = Annotated[
    str,
    Before(_address),
    Schema({"type": "string", "examples": ["10.0.0.1/16", "fd00::1/64"]}),
]
EndText = Annotated[
    str,
    After(names.check_end),
    Schema({"type": "string", "examples": ["n1", "n1:eth0", "s1:3"]}),
]
Duration = Annotated[
    int,
    Before(units.parse_duration),
    _text_or_number(units.DURATION_PATTERN, ["10us", "1.5ms"], "A duration with its unit.", const=0),
]
Rate = Annotated[
    int,
    Before(units.parse_rate),
    _text_or_number(units.RATE_PATTERN, ["1gbit", "1.28gbit"], "A rate with its unit.", const=0),
]
Limit = Annotated[
    int,
    Before(units.parse_limit),
    Schema(
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
    Before(_positive_size),
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
    Before(units.parse_probability),
    _text_or_number(
        units.PROBABILITY_PATTERN,
        ["5%", 0.05],
        "A probability, as percent or 0 to 1.",
        type="number",
        minimum=0,
        maximum=1,
    ),
]
FilePath = Annotated[str, After(_path), Schema({"type": "string", "minLength": 1})]
GilbertElliott = Annotated[
    tuple[float, ...],
    Before(losses.parse_gemodel),
    Schema(
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
    After(losses.check_pattern),
    Schema({"type": "string", "pattern": losses.PATTERN, "examples": ["5, 12, 24", "3 every 10"]}),
]
Cpus = Annotated[
    tuple[int, ...],
    Before(names.check_cpus),
    Schema(
        {
            "anyOf": [
                {"type": "string", "pattern": names.CPUS_PATTERN},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ],
            "examples": ["0-1,3", [0, 1, 3]],
        }
    ),
]
Core = Annotated[int, Bounds(ge=0, lt=names.MAX_CORES)]
"""Number of a core."""


Tag = Annotated[str, After(names.check_tag), Schema({"type": "string", "pattern": names.TAG_PATTERN})]


def _check_unique(tags: tuple[str, ...]) -> tuple[str, ...]:
    for index, tag in enumerate(tags):
        if tag in tags[:index]:
            raise MismatchError(f"every tag once: {tag!r} occurs twice")
    return tags


Tags = Annotated[tuple[Tag, ...], Listed, After(_check_unique)]
"""Tags of an element, for selecting several elements at once."""


class ImpairmentKeys(TypedDict, total=False):
    """Impairments of a link's direction as Python callers write them: texts with units, or numbers. A rate cannot be 0."""

    delay: str | int
    jitter: str | int
    distribution: str
    rate: str
    queue: str | int
    loss: str | float
    corrupt: str | float
    duplicate: str | float
    reorder: str | float
    jitter_file: str
    rate_trace: str
    queue_frames: int
    gemodel: str | Sequence[str | float]
    loss_pattern: str
    corrupt_bits: int
    minimum_frame: str | int
    overhead: int
    cell_size: str | int
    cell_overhead: int
    rules: Sequence[str]


class Impairments(Element):
    """Impairments of a link or of one of its directions. An absent key has its value in the defaults; if it is absent there,
    too, there is no such impairment."""

    if TYPE_CHECKING:

        def __init__(self, **impairments: Unpack[ImpairmentKeys]) -> None: ...

    delay: Duration | None = Field(None, description="One-way delay.")
    jitter: Duration | None = Field(
        None,
        description="Spread of the delay. Frames keep their order: they wait for earlier frames, which increases the mean.",
    )
    distribution: Literal["uniform", "normal", "pareto", "table", "trace"] | None = Field(
        None, description="Distribution of the jitter; default: uniform. 'table' and 'trace' need a jitter_file."
    )
    rate: Limit | None = Field(None, description="Rate of the wire; default: unlimited.")
    queue: Size | None = Field(
        None, description="Queue before the wire, in bytes; default: derived from rate and delay."
    )
    loss: Probability | None = Field(None, description="Share of frames that are lost.")
    corrupt: Probability | None = Field(None, description="Share of frames in which a bit is flipped.")
    duplicate: Probability | None = Field(None, description="Share of frames that arrive twice.")
    reorder: Probability | None = Field(None, description="Share of frames that skip the delay.")
    jitter_file: FilePath | None = Field(
        None, description="File with the jitter's table (as netem's .dist files) or trace (a duration per line)."
    )
    rate_trace: FilePath | None = Field(
        None, description="File of delivery opportunities in mahimahi's format, instead of a rate."
    )
    queue_frames: Annotated[int, Bounds(ge=1, le=2**31 - 1)] | None = Field(
        None, description="Queue before the wire, in frames instead of bytes."
    )
    gemodel: GilbertElliott | None = Field(None, description="Losses in bursts: p r 1-h 1-k, as tc writes them.")
    loss_pattern: LossPattern | None = Field(None, description="Numbers of the direction's frames that are lost.")
    corrupt_bits: Annotated[int, Bounds(ge=1, le=MAX_FLIPPED_BITS)] | None = Field(
        None, description="Bits flipped in a corrupted frame; default: 1."
    )
    minimum_frame: Size | None = Field(
        None, description="Minimum number of bytes by which a frame counts against the rate."
    )
    overhead: Annotated[int, Bounds(ge=-14, le=1024)] | None = Field(
        None,
        description="Bytes that count against the rate in addition to each frame (Ethernet's gap, preamble and FCS: 24).",
    )
    cell_size: Size | None = Field(None, description="Payload of a cell; each frame takes complete cells (ATM: 48).")
    cell_overhead: Annotated[int, Bounds(ge=0, le=1024)] | None = Field(
        None, description="Bytes that count against the rate in addition to each cell's payload (ATM: 5)."
    )
    rules: Annotated[tuple[Annotated[str, After(_rule_text)], ...], Listed] | None = Field(
        None, description="Faults: 'drop tcp.dport == 5001 and nth(3)'; the first rule that matches decides."
    )

    def explicit(self) -> dict[str, Any]:
        """Return the keys that are present, with their canonical values."""
        values = self.__dict__
        return {key: values[key] for key in IMPAIRMENT_KEYS if values[key] is not None}

    def over(self, weaker: Impairments) -> Impairments:
        """Return these impairments with the keys of `weaker` that are absent here."""
        explicit = self.explicit()
        return Impairments.model_construct(**weaker.explicit() | explicit) if explicit else weaker


IMPAIRMENT_KEYS = keys(Impairments)


def _none_if_empty(value: Impairments | None) -> Impairments | None:
    return value if value is not None and value.explicit() else None


def _two_ends(ends: tuple[str, ...]) -> tuple[str, ...]:
    if len(ends) != 2:
        raise MismatchError("two ends")
    return ends


class Nic(Element):
    """A node's interface."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str | None = None,
            mac: str | None = None,
            mtu: int | None = None,
            addresses: Sequence[str] = (),
        ) -> None: ...

    name: InterfaceName | None = Field(None, description="Interface name; default: the next free ethN.")
    mac: Mac | None = Field(None, description="Unicast hardware address; default: derived from the names.")
    mtu: Mtu | None = Field(None, description="Largest IP packet in bytes; default: that of [defaults], else 1500.")
    addresses: Annotated[tuple[Address, ...], Listed] = Field(
        (), description="Static addresses with prefix length; default: derived."
    )


class HostKeys(TypedDict, total=False):
    """Keys of a node that describe its host in a run, as keyword arguments of Node."""

    cores: int | None
    caches: Sequence[Sequence[int]]
    ranks: Sequence[int]
    profile: str


class Node(Element):
    """A virtual computer."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            tags: Sequence[str] = (),
            cpus: str | Sequence[int] = (),
            cpu_share: float | None = None,
            memory: str | int | None = None,
            environment: Mapping[str, str] | None = None,
            files: Mapping[str, str] | None = None,
            private_directories: Sequence[str] = (),
            nics: Sequence[Nic] = (),
            **host: Unpack[HostKeys],
        ) -> None: ...

    name: Name = Field(description="Unique among nodes and switches.")
    tags: Tags = Field((), description="Tags: '@TAG' selects all elements with the tag.")
    cpus: Cpus = Field((), description="CPUs that its processes may run on; default: all.")
    cpu_share: Annotated[float, Bounds(gt=0, le=names.MAX_CPUS)] | None = Field(
        None, description="Limit in cores: 0.5 is half of one."
    )
    memory: Size | None = Field(None, description="Memory limit of its processes.")
    environment: dict[Annotated[str, After(_environment_key)], Annotated[str, After(_no_nul)]] = Field(
        default_factory=dict, description="Environment variables of programs in the node."
    )
    files: dict[Annotated[str, After(_file_path)], str] = Field(
        default_factory=dict, description="Files that programs in the node see: absolute path -> content."
    )
    private_directories: Annotated[tuple[Annotated[str, After(_directory_path)], ...], Listed] = Field(
        (),
        description="Directories of its own, in place of the machine's: empty at first, kept until 'down'.",
    )
    cores: Annotated[int, Bounds(ge=1, le=names.MAX_CORES)] | None = Field(
        None, description="Cores of its host in a run; default: those of its profile, otherwise 1."
    )
    caches: Annotated[tuple[Annotated[tuple[Core, ...], Listed, Bounds(min_length=2)], ...], Listed] = Field(
        (), description="Groups of cores that share a cache: [[0, 1], [2, 3]]."
    )
    ranks: Annotated[tuple[Core, ...], Listed, Bounds(max_length=names.MAX_RANKS)] = Field(
        (), description="The core of each program of a run on the node; default: one program, on core 0."
    )
    profile: Annotated[str, After(_no_nul)] = Field(
        "", description="Profile of its hardware's costs in a run: name or file; default: the run's profile."
    )
    nics: Annotated[tuple[Nic, ...], Listed] = Field(
        (),
        key="nic",
        description="NICs with keys that differ from the defaults.",
    )


KindName = Annotated[str, Before(_kind), Schema({"type": "string", "examples": ["ethernet", "myrinet", "atm"]})]
"""Name of a kind of network."""


class Switch(Element):
    """A switch."""

    if TYPE_CHECKING:

        def __init__(self, *, name: str, kind: str = "ethernet", ports: int | None = None) -> None: ...

    name: Name = Field(description="Unique among nodes and switches.")
    kind: KindName = Field(ETHERNET.name, description="Kind of its network.")
    ports: Annotated[int, Bounds(ge=1, le=names.MAX_PORT)] | None = Field(
        None, description="Number of ports; default: as many as its links need (Myrinet: 8)."
    )

    @property
    def max_ports(self) -> int:
        """Maximum port number."""
        return self.ports or kind_of(self.kind).ports or names.MAX_PORT


class Link(Impairments):
    """A cable between two ends. Its impairment keys apply to both directions."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            ends: Sequence[str],
            tags: Sequence[str] = (),
            kind: str | None = None,
            datapath: str = "auto",
            forward: Impairments | ImpairmentKeys | None = None,
            backward: Impairments | ImpairmentKeys | None = None,
            **impairments: Unpack[ImpairmentKeys],
        ) -> None: ...

    ends: Annotated[tuple[EndText, ...], Listed, After(_two_ends)] = Field(
        description="The two ends: 'n1', 'n1:eth0', 's1' or 's1:3'.", schema={"minItems": 2, "maxItems": 2}
    )
    tags: Tags = Field((), description="Tags: '@TAG' selects all elements with the tag.")
    kind: KindName | None = Field(
        None, description="Kind of its network, if it is between two nodes; default: ethernet."
    )
    datapath: Literal["auto", "direct", "netem", "tc", "relay"] = Field(
        "auto",
        description="The datapath of an impaired link; default: the first that supports its impairments exactly. "
        "'direct': one veth pair, or VXLAN, between two nodes, which cannot be impaired.",
    )
    forward: Annotated[Impairments | None, After(_none_if_empty)] = Field(
        None, description="Impairments from the first end to the second; override the link's own keys."
    )
    backward: Annotated[Impairments | None, After(_none_if_empty)] = Field(
        None, description="Impairments from the second end to the first; override the link's own keys."
    )

    @property
    def owners(self) -> tuple[str, str]:
        """The names of the nodes or switches at both ends."""
        return self.ends[0].partition(":")[0], self.ends[1].partition(":")[0]


class Defaults(Element):
    """Defaults for keys that are absent elsewhere."""

    if TYPE_CHECKING:

        def __init__(self, *, mtu: int = DEFAULT_MTU, link: Impairments | ImpairmentKeys = ...) -> None: ...

    mtu: Mtu = Field(DEFAULT_MTU, description="MTU of every NIC.")
    link: Impairments = Field(default_factory=Impairments, description="Impairments of every link, per direction.")
