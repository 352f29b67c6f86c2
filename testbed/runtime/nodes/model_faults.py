"""What a fault does to the model of a node where time is dilated: told to its process, which does it to NIC and core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Stand:
    """NIC and host stand still. until: of the model's time, where that is known; None: until `Resume`."""

    until: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """The NIC goes on."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """The NIC takes so many times as long as its profile says; 1 ends it."""

    factor: float


@dataclass(frozen=True, slots=True)
class Burn:
    """Something takes such a share of the host's core."""

    share: float


@dataclass(frozen=True, slots=True)
class Unburn:
    """It ends: the oldest one that takes this share."""

    share: float


ModelFault: TypeAlias = Stand | Resume | Slowed | Burn | Unburn
