"""The registered fabrics with modelled switches, by kind of switch."""

from __future__ import annotations

from typing import cast

from testbed import registry
from testbed.fabric.interface import Fabric
from testbed.spec.kinds import ETHERNET, kind_of, registered


def fabric(kind: str) -> Fabric:
    """The fabric of a kind of switch.

    Raises NotFoundError if no installed package provides it, TestbedError if it cannot be imported or is no fabric.
    """
    return cast(Fabric, registered(kind)[0])


def is_offered(kind: str) -> bool:
    """Whether switches of that kind are available."""
    return kind in names()


def names() -> list[str]:
    """All available kinds of switches."""
    return [ETHERNET.name, *registry.offered(registry.FABRICS)]


def titles() -> str:
    """The titles of all available kinds for use in sentences: "Ethernet and of ..."."""
    return " and of ".join(kind_of(name).title for name in names())
