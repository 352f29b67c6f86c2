"""Faults of a node's model in a dilated run, which its process applies to NIC and core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Stand:
    """NIC and host are paused. until: a model time; None: until `Resume`."""

    until: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """The NIC is resumed."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """The NIC is slower than its profile by a factor; 1 ends it."""

    factor: float


@dataclass(frozen=True, slots=True)
class Burn:
    """A background load takes a share of the host's core."""

    share: float


@dataclass(frozen=True, slots=True)
class Unburn:
    """The oldest background load of this share ends."""

    share: float


ModelFault: TypeAlias = Stand | Resume | Slowed | Burn | Unburn
