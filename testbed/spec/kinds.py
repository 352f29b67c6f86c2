"""Kinds of networks in descriptions: built-in kinds, and those of fabrics that packages register."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from testbed import registry
from testbed.errors import NotFoundError, TestbedError
from testbed.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from testbed.spec.elements import Impairments
    from testbed.spec.layout import Impairment

MAX_BRIDGE_PORTS: Final = 1023
"""BR_MAX_PORTS of the Linux bridge is 1 << 10; number 0 is not used."""

SOURCE_ROUTES: Final = "source routes"
CELLS: Final = "cells"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of network, and so of its switches and links. name: name in descriptions. title: name in sentences.

    ports: default number of a switch's ports; 0: as many as its links need. max_ports: maximum number of ports; 0: no
    limit. why_max: reason of the maximum ("on a ... switch: ..."). lacks: keys of impairments that its links cannot have.
    why_lacks: the reason. framing: header by which its switches forward, such as source routes; only protocols whose frames
    have it can cross the network; empty: Ethernet addresses. planned: whether its switches get
    forwarding tables. modelled: whether its switches and links are simulated, in namespaces by the relay; otherwise a switch
    is a bridge of the kernel. needs_switch: whether no link may join two nodes."""

    name: str
    title: str
    ports: int = 0
    max_ports: int = 0
    why_max: str = ""
    lacks: tuple[str, ...] = ()
    why_lacks: str = ""
    framing: str = ""
    planned: bool = False
    modelled: bool = True
    needs_switch: bool = False

    @property
    def refusal(self) -> str:
        """The reason why the kernel's protocols cannot cross it, for a kind with a framing."""
        return f"the kernel's datagrams have no {self.framing}, by which {self.title} forwards"

    @property
    def routed(self) -> bool:
        """Whether it forwards by source routes; then its NICs receive STOP and GO."""
        return self.framing == SOURCE_ROUTES

    def unsupported(self, impairment: Impairment | Impairments) -> list[str]:
        """Return the keys of an impairment that its links cannot have."""
        return [key for key in self.lacks if getattr(impairment, key)]


ETHERNET: Final = Kind(
    "ethernet", "Ethernet", MAX_BRIDGE_PORTS, MAX_BRIDGE_PORTS,
    "on an Ethernet switch, which is the Linux bridge's limit: use two switches with a link between them", modelled=False,
)  # fmt: skip
MYRINET: Final = Kind(
    "myrinet", "Myrinet", 8, 32,  # the switches of the Berkeley NOW had eight ports
    "on a Myrinet switch: a byte of a route reaches no further",
    (
        "jitter", "distribution", "jitter_file", "rate_trace", "reorder", "queue", "queue_frames", "minimum_frame",
        "overhead", "cell_size", "cell_overhead",
    ),
    "a link of a Myrinet network has no queue and keeps the order of its frames", framing=SOURCE_ROUTES,
)  # fmt: skip
ATM: Final = Kind(
    "atm", "ATM",
    lacks=(
        "jitter", "distribution", "jitter_file", "rate_trace", "reorder", "queue", "minimum_frame", "cell_size",
        "cell_overhead",
    ),
    why_lacks="a link of an ATM network keeps the order of its cells, and has a queue_frames of them and an overhead",
    framing=CELLS, planned=True,
)  # fmt: skip

DEFAULT: Final = ETHERNET
"""The default kind."""

_BUILT_IN: Final = {kind.name: kind for kind in (ETHERNET, MYRINET, ATM)}


def kind_of(name: str) -> Kind:
    """Return the kind of that name. Raises NotFoundError, and TestbedError if the fabric of a package cannot be imported or
    is invalid."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    return registered(name)[1]


@cache
def registered(name: str) -> tuple[object, Kind]:
    """Return the fabric that a package has registered under that name, and its kind. Raises the errors of `kind_of`."""
    fabric = registry.load(registry.FABRICS, name)
    kind = getattr(fabric, "kind", None)
    entry = registry.offered(registry.FABRICS)[name]
    registration = f"package {entry.package} registers {entry} as fabric {name!r}"
    if not isinstance(kind, Kind) or kind.name != name:
        raise TestbedError(f"{registration}, whose kind is {kind!r}: expected a testbed.spec.kinds.Kind of that name")
    if not callable(getattr(fabric, "network", None)):
        raise TestbedError(f"{registration}, which has no method network: expected a testbed.fabric.interface.Fabric")
    return fabric, kind


def is_kind(name: str) -> bool:
    """Whether a kind of that name exists."""
    if name in _BUILT_IN:
        return True
    try:
        kind_of(name)
    except NotFoundError:
        return False
    return True


def kinds() -> list[str]:
    """Return the names of all kinds, built-in ones first."""
    return [*_BUILT_IN, *(name for name in registry.offered(registry.FABRICS) if name not in _BUILT_IN)]
