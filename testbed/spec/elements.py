"""Parts of a cluster as a user writes them: node, NIC, switch, link, impairments, defaults.

Raw text becomes canonical values here (durations are integer nanoseconds and so on); `validation` checks the parts
against each other. None means that a key is absent: `resolver` decides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from testbed.errors import DescriptionError
from testbed.spec import names
from testbed.spec.key_types import (
    MAX_FLIPPED_BITS,
    USUAL_MTU,
    AbsolutePath,
    Address,
    Cpus,
    Duration,
    EndText,
    EnvironmentName,
    FilePath,
    GilbertElliott,
    InterfaceName,
    KindName,
    Limit,
    Listed,
    LossPattern,
    Mac,
    Mtu,
    Name,
    Probability,
    RuleText,
    Size,
    Tags,
    Text,
)
from testbed.spec.kinds import ETHERNET, kind_of
from testbed.spec.problems import MismatchError, translate

if TYPE_CHECKING:
    from typing import Unpack


class ImpairmentKeys(TypedDict, total=False):
    """Impairments of a link's direction as Python callers write them: text with units, or 0. A rate is never 0."""

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


class Element(BaseModel):
    """Strict and frozen model. Constructed in Python with mistakes, it raises a DescriptionError with all its
    problems."""

    model_config = ConfigDict(
        strict=True,
        defer_build=True,
        extra="forbid",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )

    def __init_subclass__(cls, *, init: bool = True, **options: Unpack[ConfigDict]) -> None:
        """init: False for type checkers where a base class says what its subclasses are constructed from (PEP 681)."""
        super().__init_subclass__(**options)

    def __init__(self, **data: object) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            path = str(data.get("name", ""))[:63] or type(self).__name__.lower()
            tables = TABLES | {"": keys(type(self))}
            problems = [translate(detail, "", data, tables) for detail in error.errors()]
            raise DescriptionError(path, problems) from None

    # pydantic calls an __init__ of one's own for every nested element, and would then stop at the first
    # broken one; marked like this it validates nested elements itself and reports all of them.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def keys(model: type[Element]) -> tuple[str, ...]:
    """Return the keys that a table may have in TOML."""
    return tuple(str(field.validation_alias or name) for name, field in model.model_fields.items())


def variant_schema(model: type[Element], definitions: dict[str, Any], key: str, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a model, one of several that a key tells apart; add to definitions what it refers to."""
    schema = model.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    definitions |= schema.pop("$defs", {})
    schema["required"] = sorted({key, *schema.get("required", ())})
    schema["title"] = title
    return schema


class Impairments(Element):
    """Impairments of the directions of a link; absent keys come from the defaults, otherwise there is no such
    impairment."""

    if TYPE_CHECKING:

        def __init__(self, **impairments: Unpack[ImpairmentKeys]) -> None: ...

    delay: Duration | None = Field(None, description="One-way delay.")
    jitter: Duration | None = Field(
        None,
        description="Spread of the delay. Order is kept: frames closer than it wait for each other, and the mean rises.",
    )
    distribution: Literal["uniform", "normal", "pareto", "table", "trace"] | None = Field(
        None, description="Distribution of the jitter; default: uniform; 'table' and 'trace' are files."
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
    queue_frames: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None, description="Queue before the wire, in frames instead of bytes."
    )
    gemodel: GilbertElliott | None = Field(None, description="Losses in bursts: p r 1-h 1-k, as tc writes them.")
    loss_pattern: LossPattern | None = Field(None, description="Numbers of the direction's frames that are lost.")
    corrupt_bits: Annotated[int, Field(ge=1, le=MAX_FLIPPED_BITS)] | None = Field(
        None, description="Bits flipped in a corrupted frame; default: 1."
    )
    minimum_frame: Size | None = Field(None, description="A shorter frame takes this many bytes of the rate.")
    overhead: Annotated[int, Field(ge=-14, le=1024)] | None = Field(
        None, description="Bytes of the rate that every frame takes beside its own (Ethernet's gap, preamble, FCS: 24)."
    )
    cell_size: Size | None = Field(None, description="Payload of a cell; frames fill up whole cells (ATM: 48).")
    cell_overhead: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        None, description="Bytes of the rate that every cell takes beside its payload (ATM: 5)."
    )
    rules: Annotated[tuple[RuleText, ...], Listed] | None = Field(
        None, description="Faults: 'drop tcp.dport == 5001 and nth(3)'; the first that decides counts."
    )

    def explicit(self) -> dict[str, Any]:
        """Return the keys that are present, with their canonical values."""
        values = self.__dict__
        return {key: values[key] for key in IMPAIRMENT_KEYS if values[key] is not None}

    def over(self, weaker: Impairments) -> Impairments:
        """Return these impairments, with absent keys taken from the weaker ones."""
        own = self.explicit()
        return Impairments.model_construct(None, **weaker.explicit() | own) if own else weaker


IMPAIRMENT_KEYS = keys(Impairments)


def _none_if_empty(value: Impairments | None) -> Impairments | None:
    return value if value is not None and value.explicit() else None


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
    mtu: Mtu | None = Field(None, description="Largest IP packet in bytes; default: that of the cluster.")
    addresses: Annotated[tuple[Address, ...], Listed] = Field(
        (), description="Static addresses with prefix length; default: derived."
    )


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
            nics: Sequence[Nic] = (),
        ) -> None: ...

    name: Name = Field(description="Unique among nodes and switches.")
    tags: Tags = Field((), description="Names of groups; '@TAG' selects all members.")
    cpus: Cpus = Field((), description="CPUs that its processes may run on; default: all.")
    cpu_share: Annotated[float, Field(gt=0, le=names.MAX_CPUS, allow_inf_nan=False)] | None = Field(
        None, description="Limit in cores: 0.5 is half of one."
    )
    memory: Size | None = Field(None, description="Limit of its processes' memory.")
    environment: dict[EnvironmentName, Text] = Field(
        default_factory=dict, description="Environment variables of its programs."
    )
    files: dict[AbsolutePath, str] = Field(
        default_factory=dict, description="Absolute path -> text that its programs see there."
    )
    nics: Annotated[tuple[Nic, ...], Listed] = Field(
        (),
        validation_alias="nic",
        serialization_alias="nic",
        description="NICs with keys of their own.",
    )


"""Name of a kind of switch."""


class Switch(Element):
    """A switch."""

    if TYPE_CHECKING:

        def __init__(self, *, name: str, kind: str = "ethernet", ports: int | None = None) -> None: ...

    name: Name = Field(description="Unique among nodes and switches.")
    kind: KindName = Field(ETHERNET.name, description="Kind of switch.")
    ports: Annotated[int, Field(ge=1, le=names.HIGHEST_PORT)] | None = Field(
        None, description="Number of ports; default: as many as it needs (Myrinet: 8)."
    )

    @property
    def max_ports(self) -> int:
        """The highest port number that it can have."""
        return self.ports or kind_of(self.kind).ports or names.HIGHEST_PORT


class Link(Impairments):
    """A cable between two ends. Its own impairment keys apply to both directions."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            ends: Sequence[str],
            tags: Sequence[str] = (),
            datapath: str = "auto",
            forward: Impairments | ImpairmentKeys | None = None,
            backward: Impairments | ImpairmentKeys | None = None,
            **impairments: Unpack[ImpairmentKeys],
        ) -> None: ...

    ends: Annotated[tuple[EndText, ...], Listed] = Field(
        description="Both ends: 'n1', 'n1:eth0', 's1' or 's1:3'.",
        json_schema_extra={"minItems": 2, "maxItems": 2},
    )
    tags: Tags = Field((), description="Names of groups; '@TAG' selects all members.")
    datapath: Literal["auto", "direct", "netem", "tc", "relay"] = Field(
        "auto",
        description="Datapath of the impaired link; default: chosen by the ladder. 'direct': one veth pair "
        "between two nodes, without any impairment ever.",
    )
    forward: Annotated[Impairments | None, AfterValidator(_none_if_empty)] = Field(
        None, description="Frames from the first end to the second; overrides the link's own keys."
    )
    backward: Annotated[Impairments | None, AfterValidator(_none_if_empty)] = Field(
        None, description="Frames from the second end to the first; overrides the link's own keys."
    )

    @field_validator("ends")
    @classmethod
    def _two_ends(cls, ends: tuple[str, ...]) -> tuple[str, ...]:
        if len(ends) != 2:
            raise MismatchError("two ends")
        return ends

    @property
    def owners(self) -> tuple[str, str]:
        """The names of the nodes or switches at both ends."""
        return self.ends[0].partition(":")[0], self.ends[1].partition(":")[0]


class Defaults(Element):
    """Defaults for keys that are absent elsewhere."""

    if TYPE_CHECKING:

        def __init__(self, *, mtu: int = USUAL_MTU, link: Impairments | ImpairmentKeys = ...) -> None: ...

    mtu: Mtu = Field(USUAL_MTU, description="MTU of every NIC.")
    link: Impairments = Field(default_factory=Impairments, description="Impairments of every link, per direction.")


TABLES: dict[str, tuple[str, ...]] = {
    "nic": keys(Nic),
    "forward": IMPAIRMENT_KEYS,
    "backward": IMPAIRMENT_KEYS,
    "link": IMPAIRMENT_KEYS,
    "bottleneck": IMPAIRMENT_KEYS,
    "defaults": keys(Defaults),
}
"""The keys of each table inside an element, by the key of the table."""
