"""Generators of common cluster shapes: a few parameters that expand to nodes, switches and links.

A NIC's firmware sends raw Ethernet frames, so every shape is one layer-2 network: in a line, a ring or a mesh each node has
a separate switch, and the switches are linked. Nodes are n1, n2, ..., switches s1, s2, ...
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from testbed.spec.annotations import After, Bounds
from testbed.spec.element import Element, Field
from testbed.spec.elements import ImpairmentKeys, Impairments, KindName, Link, Node, Switch
from testbed.spec.kinds import ETHERNET, MAX_BRIDGE_PORTS, MYRINET, kind_of
from testbed.spec.now import now_cables
from testbed.spec.problems import MismatchError
from testbed.spec.validation import too_many_ports

MAX_NODES = 16_384
"""Maximum number of nodes: more exceed the default table sizes of a kernel."""

Count = Annotated[int, Bounds(ge=1, le=MAX_NODES)]


class Shape(Element):
    """The ``[generate]`` table. Subclasses define the numbers of nodes and switches, and the cables."""

    name: ClassVar[str]
    """Name of the shape in TOML."""

    def cluster_name(self) -> str:
        """Return the default name of a cluster of this shape."""
        raise NotImplementedError

    def purpose(self) -> str:
        """Return one line for the description."""
        raise NotImplementedError

    def sizes(self) -> tuple[int, int]:
        """Return the numbers of nodes and switches."""
        raise NotImplementedError

    def cables(self) -> Iterator[tuple[str, str]]:
        """Yield the ends of all links, in order."""
        raise NotImplementedError

    # Generated elements are valid by construction. They are copies of an element made without validation, so that no
    # validator is built.

    def make_nodes(self) -> tuple[Node, ...]:
        node = Node.model_construct(name="")
        return tuple(node.model_copy(update={"name": f"n{number}"}) for number in range(1, self.sizes()[0] + 1))

    def make_switches(self) -> tuple[Switch, ...]:
        return ()

    def make_links(self) -> tuple[Link, ...]:
        link = Link.model_construct(ends=("", ""))
        return tuple(link.model_copy(update={"ends": ends}) for ends in self.cables())


class BackToBack(Shape):
    """Two nodes and one cable."""

    name = "back-to-back"
    shape: Literal["back-to-back"] = "back-to-back"

    def cluster_name(self) -> str:
        return "back-to-back"

    def purpose(self) -> str:
        return "2 nodes joined by one link, without a switch"

    def sizes(self) -> tuple[int, int]:
        return 2, 0

    def cables(self) -> Iterator[tuple[str, str]]:
        yield "n1", "n2"


class Switched(Shape):
    """A shape with switches."""

    kind: KindName = Field(ETHERNET.name, description="Kind of the switches.")

    def make_switches(self) -> tuple[Switch, ...]:
        """Make the switches. A switch that needs more ports than its kind has by default declares their number."""
        used = Counter(end for cable in self.cables() for end in cable)
        names = [f"s{number}" for number in range(1, self.sizes()[1] + 1)]
        switch = Switch.model_construct(name="", kind=self.kind)
        ports = {name: None if used[name] <= switch.max_ports else used[name] for name in names}
        return tuple(switch.model_copy(update={"name": name, "ports": ports[name]}) for name in names)


class _Sized(Switched):
    """A shape with a given number of nodes."""

    nodes: Count = Field(description="Number of nodes.")

    def cluster_name(self) -> str:
        return f"{self.name}-{self.nodes}"

    def sizes(self) -> tuple[int, int]:
        return self.nodes, self.nodes

    def cables(self) -> Iterator[tuple[str, str]]:
        """Yield a cable from each node to its switch; subclasses link the switches."""
        yield from ((f"n{number}", f"s{number}") for number in range(1, self.nodes + 1))


def _fit_on_one_switch(count: int, previous_values: Mapping[str, Any]) -> int:
    """Check that a switch of the shape's kind can have this number of ports. Raises MismatchError."""
    kind = kind_of(previous_values.get("kind", ETHERNET.name))
    if not kind.modelled and count > kind.max_ports:
        raise MismatchError(too_many_ports("", count, kind).expected)
    return count


class Star(_Sized):
    """Nodes on one switch."""

    name = "star"
    shape: Literal["star"] = "star"
    nodes: Count = Field(late=_fit_on_one_switch, description="Number of nodes.")

    def purpose(self) -> str:
        return f"{_nodes(self.nodes)} on one switch"

    def sizes(self) -> tuple[int, int]:
        return self.nodes, 1

    def cables(self) -> Iterator[tuple[str, str]]:
        yield from ((f"n{number}", "s1") for number in range(1, self.nodes + 1))


class Line(_Sized):
    """Switches in a row, a node on each."""

    name = "line"
    shape: Literal["line"] = "line"

    def purpose(self) -> str:
        return f"{_nodes(self.nodes)}, each on a separate switch, the switches in a line"

    def cables(self) -> Iterator[tuple[str, str]]:
        yield from super().cables()
        yield from ((f"s{number}", f"s{number + 1}") for number in range(1, self.nodes))


class Ring(Line):
    """Switches in a ring, a node on each."""

    name = "ring"
    shape: Literal["ring"] = "ring"  # type: ignore[assignment]
    nodes: Annotated[int, Bounds(ge=3, le=MAX_NODES)] = Field(description="Number of nodes.")

    def purpose(self) -> str:
        return f"{_nodes(self.nodes)}, each on a separate switch, the switches in a ring"

    def cables(self) -> Iterator[tuple[str, str]]:
        yield from super().cables()
        yield f"s{self.nodes}", "s1"


class FullMesh(_Sized):
    """Switches all linked with each other, a node on each."""

    name = "full-mesh"
    shape: Literal["full-mesh"] = "full-mesh"
    # 200 switches have 19,900 links between them.
    nodes: Annotated[int, Bounds(ge=1, le=200)] = Field(description="Number of nodes.")

    def purpose(self) -> str:
        return f"{_nodes(self.nodes)}, each on a separate switch, every switch linked to every other"

    def cables(self) -> Iterator[tuple[str, str]]:
        yield from super().cables()
        yield from itertools.combinations((f"s{number}" for number in range(1, self.nodes + 1)), 2)


def _even(k: int) -> int:
    if k % 2:
        raise MismatchError("an even number of ports", str(k + 1))
    return k


class FatTree(Switched):
    """The k-ary fat tree of k-port switches: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches,
    k^3/4 nodes (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008, section 2.2)."""

    name = "fat-tree"
    shape: Literal["fat-tree"] = "fat-tree"
    k: Annotated[int, Bounds(ge=2, le=40), After(_even)] = Field(description="Ports of every switch; even.")

    def cluster_name(self) -> str:
        return f"fat-tree-{self.k}"

    def purpose(self) -> str:
        nodes, switches = self.sizes()
        return f"{_nodes(nodes)} under {switches:,} switches of {self.k} ports, a {self.k}-ary fat tree"

    def sizes(self) -> tuple[int, int]:
        return self.k**3 // 4, 5 * self.k**2 // 4

    def cables(self) -> Iterator[tuple[str, str]]:
        """Yield cables; switches are numbered from the core, then pod by pod the aggregation and edge switches."""
        half = self.k // 2
        nodes = itertools.count(1)
        for pod in range(self.k):
            first = half**2 + pod * self.k + 1
            for edge in range(half):
                yield from ((f"n{next(nodes)}", f"s{first + half + edge}") for _ in range(half))
        for pod in range(self.k):
            first = half**2 + pod * self.k + 1
            for aggregation in range(half):
                yield from ((f"s{first + half + edge}", f"s{first + aggregation}") for edge in range(half))
                cores = range(aggregation * half + 1, (aggregation + 1) * half + 1)
                yield from ((f"s{first + aggregation}", f"s{core}") for core in cores)


class Dumbbell(Switched):
    """Two switches with nodes on each, and a bottleneck link between them."""

    if TYPE_CHECKING:

        def __init__(
            self, *, left: int, right: int, bottleneck: Impairments | ImpairmentKeys = ..., kind: str = "ethernet"
        ) -> None: ...

    name = "dumbbell"
    shape: Literal["dumbbell"] = "dumbbell"
    left: Annotated[int, Bounds(ge=1, lt=MAX_BRIDGE_PORTS)] = Field(description="Number of nodes on the first switch.")
    right: Annotated[int, Bounds(ge=1, lt=MAX_BRIDGE_PORTS)] = Field(
        description="Number of nodes on the second switch."
    )
    bottleneck: Impairments = Field(
        default_factory=Impairments, description="Impairments of the link between the switches."
    )

    def cluster_name(self) -> str:
        return f"dumbbell-{self.left + self.right}"

    def purpose(self) -> str:
        return f"{self.left} and {self.right} nodes on two switches joined by one link"

    def sizes(self) -> tuple[int, int]:
        return self.left + self.right, 2

    def cables(self) -> Iterator[tuple[str, str]]:
        yield from ((f"n{number}", "s1") for number in range(1, self.left + 1))
        yield from ((f"n{self.left + number}", "s2") for number in range(1, self.right + 1))
        yield "s1", "s2"

    def make_links(self) -> tuple[Link, ...]:
        *first_links, last = super().make_links()
        return *first_links, last.model_copy(update=self.bottleneck.explicit())


class Now(Switched):
    """The Berkeley NOW: 100 workstations on 40 eight-port Myrinet switches in three subclusters; see `now`."""

    if TYPE_CHECKING:

        def __init__(self, *, kind: str = "myrinet") -> None: ...

    name = "now"
    shape: Literal["now"] = "now"
    kind: KindName = Field(
        MYRINET.name, description="Kind of the switches: myrinet, as in the Berkeley NOW, or ethernet."
    )

    def cluster_name(self) -> str:
        return "now"

    def purpose(self) -> str:
        return "100 nodes on 40 eight-port switches in three subclusters, like the Berkeley NOW"

    def sizes(self) -> tuple[int, int]:
        return 100, 40

    def make_switches(self) -> tuple[Switch, ...]:
        switch = Switch.model_construct(name="", kind=self.kind, ports=8)
        return tuple(switch.model_copy(update={"name": f"s{number}"}) for number in range(1, 41))

    def cables(self) -> Iterator[tuple[str, str]]:
        return now_cables()


SHAPES: dict[str, type[Shape]] = {
    shape.name: shape for shape in (BackToBack, Star, Line, Ring, FullMesh, FatTree, Dumbbell, Now)
}


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"
