"""Description of a cluster: validated user input, in which names, ports and addresses may be absent.

A description is made from TOML (`Description.from_toml`, `Description.load`), by a builder (`Description.star(4)`), or from
its elements. Its layout has every name, port and address: see `resolver`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from testbed.errors import DescriptionError, Problem
from testbed.spec import generators
from testbed.spec.annotations import Bounds, Listed
from testbed.spec.element import Element, Field, keys
from testbed.spec.elements import (
    IMPAIRMENT_KEYS,
    Defaults,
    ImpairmentKeys,
    Impairments,
    Link,
    Name,
    Nic,
    Node,
    Switch,
)
from testbed.spec.parser import read
from testbed.spec.tag_tables import add_tags
from testbed.spec.validation import Parts, check
from testbed.spec.wiring import mtu_warnings

if TYPE_CHECKING:
    from typing import Unpack

__all__ = [
    "IMPAIRMENT_KEYS",
    "BuilderOptions",
    "Defaults",
    "Description",
    "Heading",
    "ImpairmentKeys",
    "Impairments",
    "Link",
    "Nic",
    "Node",
    "Switch",
]

DEFAULT_NETWORK = "10.0.0.0/8"
HEADING_OPTIONS = ("name", "seed", "network", "network6")
"""Options of builders that are keys of the heading."""


class Heading(Element):
    """Keys of a description that concern the cluster as a whole."""

    name: Name = Field(description="Name of the cluster; default: the file's name without .toml.")
    description: Annotated[str, Bounds(max_length=400)] = Field("", description="Purpose of the cluster, in one line.")
    seed: Annotated[int, Bounds(ge=0, lt=2**63)] = Field(0, description="Seed of all random fates.")
    network: str = Field(DEFAULT_NETWORK, description="Pool of IPv4 addresses; each segment gets a subnet of it.")
    network6: str | None = Field(None, description="Pool of IPv6 addresses; default: no IPv6.")
    defaults: Defaults = Field(default_factory=Defaults, description="Defaults of all NICs and links.")


class BuilderOptions(ImpairmentKeys, total=False):
    """Options of every builder in addition to its parameters, besides impairments of all links. name: name of the cluster.
    seed: seed of the fates. network, network6: pools of addresses. mtu: MTU of all NICs. kind: kind of the switches, such as
    "myrinet". tags: by tag, the names of nodes ("n1") and links ("n1--s1") that have it."""

    name: str
    seed: int
    network: str
    network6: str
    mtu: int
    kind: str
    tags: Mapping[str, Sequence[str]]


class Description(Heading):
    """A cluster: nodes, switches and links. Frozen; equal descriptions have equal layouts.

    The constructor raises DescriptionError with all problems.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            description: str = "",
            seed: int = 0,
            network: str = DEFAULT_NETWORK,
            network6: str | None = None,
            defaults: Defaults = ...,
            nodes: Sequence[Node],
            switches: Sequence[Switch] = (),
            links: Sequence[Link] = (),
        ) -> None: ...

    nodes: Annotated[tuple[Node, ...], Listed] = Field((), key="node")
    switches: Annotated[tuple[Switch, ...], Listed] = Field((), key="switch")
    links: Annotated[tuple[Link, ...], Listed] = Field((), key="link")

    def _check(self) -> None:
        parts = Parts(self.nodes, self.switches, self.links, self.defaults, self.network, self.network6)
        problems = check(parts)
        if not self.nodes:
            problems.append(NO_NODE)
        if problems:
            raise DescriptionError(self.name, problems)

    def warnings(self) -> list[str]:
        """Return a sentence for each network with NICs of different MTUs, which is valid but probably a mistake."""
        return mtu_warnings(self.nodes, self.switches, self.links, self.defaults.mtu)

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Load the description in a file or a shipped topology; see `loader.load`."""
        from testbed.spec.loader import load

        return load(source, cls).description

    @classmethod
    def from_toml(cls, text: str, source: str = "TOML") -> Self:
        """Parse the description in a TOML text. source: name for error messages."""
        from testbed.spec.loader import parse

        return parse(text, source, cls)

    @classmethod
    def back_to_back(cls, **options: Unpack[BuilderOptions]) -> Self:
        """Make two nodes and one cable, without a switch."""
        return cls._generate(generators.BackToBack, {}, options)

    @classmethod
    def star(cls, nodes: int, **options: Unpack[BuilderOptions]) -> Self:
        """Make nodes on one switch: ``star(4, delay="10us", loss="1%")``."""
        return cls._generate(generators.Star, {"nodes": nodes}, options)

    @classmethod
    def line(cls, nodes: int, **options: Unpack[BuilderOptions]) -> Self:
        """Make nodes, each on a separate switch, with the switches in a line."""
        return cls._generate(generators.Line, {"nodes": nodes}, options)

    @classmethod
    def ring(cls, nodes: int, **options: Unpack[BuilderOptions]) -> Self:
        """Make three or more nodes, each on a separate switch, with the switches in a ring."""
        return cls._generate(generators.Ring, {"nodes": nodes}, options)

    @classmethod
    def full_mesh(cls, nodes: int, **options: Unpack[BuilderOptions]) -> Self:
        """Make nodes, each on a separate switch, with links between all switches."""
        return cls._generate(generators.FullMesh, {"nodes": nodes}, options)

    @classmethod
    def fat_tree(cls, k: int, **options: Unpack[BuilderOptions]) -> Self:
        """Make the k-ary fat tree: k^3/4 nodes, 5k^2/4 switches; k even."""
        return cls._generate(generators.FatTree, {"k": k}, options)

    @classmethod
    def dumbbell(
        cls,
        left: int,
        right: int,
        bottleneck: ImpairmentKeys | None = None,
        **options: Unpack[BuilderOptions],
    ) -> Self:
        """Make two switches with nodes on each. bottleneck: impairments of the link between them."""
        parameters = {"left": left, "right": right, "bottleneck": bottleneck or {}}
        return cls._generate(generators.Dumbbell, parameters, options)

    @classmethod
    def now(cls, **options: Unpack[BuilderOptions]) -> Self:
        """Make the Berkeley NOW: 100 nodes and 40 eight-port switches, of Myrinet by default."""
        return cls._generate(generators.Now, {}, options)

    @classmethod
    def _generate(
        cls, model: type[generators.Shape], parameters: Mapping[str, object], options: BuilderOptions
    ) -> Self:
        """Make the cluster of a shape. parameters: the shape's own parameters."""
        kind_options = {"kind": options["kind"]} if "kind" in options else {}
        shape = model(**parameters, **kind_options)
        known = (*HEADING_OPTIONS, "mtu", "tags", *IMPAIRMENT_KEYS)
        name = options.get("name", shape.cluster_name())
        link = {key: value for key, value in options.items() if key not in (*HEADING_OPTIONS, "mtu", "tags", "kind")}
        mtu = {"mtu": options["mtu"]} if "mtu" in options else {}
        defaults = {**mtu, "link": link} if link else mtu
        heading_options = {key: value for key, value in options.items() if key in HEADING_OPTIONS}
        heading, problems = read_heading({**heading_options, "name": name, "defaults": defaults}, known)
        nodes, links, tag_problems = add_tags(shape.make_nodes(), shape.make_links(), options.get("tags", {}))
        problems += tag_problems
        if heading is None or problems:
            raise DescriptionError(str(name)[:63], problems)
        return cls(
            name=heading.name,
            description=shape.purpose(),
            seed=heading.seed,
            network=heading.network,
            network6=heading.network6,
            defaults=heading.defaults,
            nodes=nodes,
            switches=shape.make_switches(),
            links=links,
        )


NO_NODE = Problem("", "no node", "at least one node in a cluster: a [[node]] with a name, or [generate]")
HEADING_KEYS = (*keys(Heading), "generate", "tags", "node", "switch", "link")


def read_heading(
    raw: Mapping[str, object], known: Sequence[str] = HEADING_KEYS
) -> tuple[Heading | None, list[Problem]]:
    """Read the heading in a raw table, and its problems; see `parser.read`."""
    return read(Heading, raw, "", known)
