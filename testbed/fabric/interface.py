"""Interface of fabrics with modelled switches, through which the simulation and the relay drive them.

A package registers a `Fabric` under the entry points "testbed.fabrics", by its kind's name. It makes networks without clock
and socket: time is an argument, `deadline` says when to poll next, and frames are delivered by callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from testbed.lazy_dataclass import dataclass

if TYPE_CHECKING:  # the models themselves: who only names a switch's port does not import them
    from testbed.fabric.entrance import Entrance
    from testbed.fates.stage import FateOptions
    from testbed.spec.kinds import Kind
    from testbed.spec.layout import DirectionName, Impairment, Layout, Switch

Receive = Callable[[int, bytes], object]
"""Callback for a frame that has come, with the time in nanoseconds."""

Table = Mapping[str, int]
"""Data that a switch gets from the plan, such as port numbers by destination; its fabric defines the keys."""

OnDrop = Callable[[int, str, int, str, str, bytes], object]
"""Callback for a frame that a switch does not forward, or truncates: time, switch, input port, the action ("loses a
frame"), the reason, the frame."""


@dataclass(frozen=True, slots=True)
class Plug:
    """A port of a switch."""

    switch: str
    port: int


class Channel(Protocol):
    """One direction of a link. entrance: its cable, fates and counters. receive: called with frames that come to a NIC.
    on_space: called with the time when a NIC that was refused may offer its frame again."""

    @property
    def entrance(self) -> Entrance: ...

    receive: Receive
    on_space: Callable[[int], object] | None

    @property
    def held(self) -> int:
        """Frames that have entered and have not left yet."""
        ...

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `Direction.change`."""
        ...

    def offer(self, now: int, frame: bytes) -> bool:
        """Offer a frame of the NIC at its beginning. False: refused now; `on_space` says when to offer it again."""
        ...

    def leave(self) -> None:
        """Remove the direction; its frames under way are lost."""
        ...


class Network(Protocol):
    """Switches of one kind, and their links. Offer frames to the channels; poll when `deadline` says so. Times in
    nanoseconds, which never go backwards."""

    @property
    def deadline(self) -> int | None:
        """When to poll next; None: never."""
        ...

    @property
    def switches(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of each switch: frames that it did not forward, or truncated, by cause."""
        ...

    def keep(self, tables: Mapping[str, Table]) -> None:
        """Add and remove switches, so that these exist and no others, and give each its table."""
        ...

    def join(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        start: Plug | None = None,
        end: Plug | None = None,
    ) -> Channel:
        """Add a direction of a link from one port to another; None: a NIC. Raises what `Entrance` does."""
        ...

    def poll(self, now: int) -> None:
        """Process all events that are due, such as deliveries of frames."""
        ...


class Fabric(Protocol):
    """A kind of network."""

    @property
    def kind(self) -> Kind: ...

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Network:
        """Make an empty network. slowed: the factor by which its hardware is slower."""
        ...

    def table(self, layout: Layout, switch: Switch) -> Table:
        """Return the table of one of its switches; empty if they need none."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """A way from one node's NIC to another's, or back to it. hops: the switches on it, with their input and output ports."""

    source: str
    sink: str
    hops: tuple[tuple[str, int, int], ...]


@runtime_checkable
class Routing(Protocol):
    """A fabric that can lead a frame along a way."""

    def leads(self, layout: Layout, way: Way) -> bool:
        """Whether there is such a way for frames."""
        ...

    def along(self, layout: Layout, way: Way, frame: bytes) -> bytes:
        """Make a frame that takes the way, of one that is to arrive, of at most 60 bytes."""
        ...


def ignore(now: int, frame: bytes) -> None:
    """Ignore a frame: the receiver of a channel's end without a NIC."""
