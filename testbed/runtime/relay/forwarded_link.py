"""Base classes of the links that the relay forwards: orders, sockets, and directions with injected rules and statistics.

`link_forwarder` implements links between two interfaces; `relay_network` implements links of modelled networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from testbed.engine.loop import Loop
from testbed.fabric.direction_counters import Counters
from testbed.fates.fate_counters import Tallies
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import Fields
from testbed.fates.records import Record, Replay
from testbed.fates.rules import Handle, RuleSet
from testbed.fates.stage import FateOptions, FateStage
from testbed.kernel.packet_socket import Arena, PacketSocket
from testbed.runtime.logs import read_log
from testbed.runtime.relay.lateness import Lateness
from testbed.runtime.relay.orders import RelayedDirection, RelayedLink
from testbed.spec.layout import DirectionName, Impairment


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options that all links of a relay process share. arena: arena of their sockets. fields: see `RuleSet`. seed, files:
    seed and files of the orders. log, classifier: see `FateOptions`. tallies: see `RuleSet`."""

    loop: Loop
    arena: Arena
    fields: Fields
    seed: int
    files: Mapping[str, str]
    log: Callable[[Record], object] | None = None
    tallies: Tallies | None = None
    classifier: Classifier | None = None

    def fates(self) -> tuple[FateOptions, RuleSet]:
        """Make the options of a new direction, and the rule set for the rules to be injected into it."""
        rules = RuleSet(self.fields, tallies=self.tallies)
        options = FateOptions(
            self.seed, self.loop.now(), rules, classifier=self.classifier, files=self.files, log=self.log
        )
        return options, rules


class InjectedRules:
    """The injected rules in force on one direction."""

    __slots__ = ("_direction", "_handles", "_rules", "_stage")

    def __init__(
        self,
        now: int,
        stage: FateStage,
        rules: RuleSet,
        relayed: RelayedDirection,
        direction: tuple[str, DirectionName],
    ) -> None:
        """now: nanoseconds on the loop's clock. stage: the direction's fate stage. rules: rule set of the stage. relayed:
        orders of the direction. direction: names of link and direction. Raises the errors of `set` and of `read_log`."""
        self._stage: Final = stage
        self._direction: Final = direction
        self._rules: Final = rules
        self._handles: dict[str, Handle] = {}
        if relayed.replay:
            rules.add(now, Replay(read_log(Path(relayed.replay))))
        self.set(now, relayed.rules)

    def set(self, now: int, texts: Mapping[str, str]) -> None:
        """Set the rules in force; rules that stay keep their counts. texts: texts of the rules, by stable names. Raises
        RuleError."""
        for name in [name for name in self._handles if name not in texts]:
            self._handles.pop(name).lift()
        for name, text in texts.items():
            if name not in self._handles:
                self._handles[name] = handle = self._rules.add(now, text, name)
                handle.compiled(*self._direction)  # so that it counts from now on, not from its first match

    def handles(self) -> dict[str, Handle]:
        """Return the handles of the rules in force, by their names."""
        return dict(self._handles)

    def idle_rules(self) -> list[str]:
        """Return a sentence for each rule that has never decided a fate, including lifted and declared rules."""
        return [*self._stage.idle_rules(), *self._rules.idle_rules()]


class ForwardedDirection(ABC):
    """A direction of a link that this process forwards.

    injected: injected rules. lateness: lateness of the frames. gso_frames: number of GSO frames of several segments that
    were forwarded unsegmented. segmented: number of GSO frames that the relay has segmented.
    """

    __slots__ = ("gso_frames", "injected", "lateness", "segmented")

    def __init__(self, injected: InjectedRules) -> None:
        self.injected: Final = injected
        self.lateness: Final = Lateness()
        self.gso_frames = 0
        self.segmented = 0

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """Counters of the direction's frames, by outcome."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Number of frames that have entered the direction and have not left it yet."""

    @abstractmethod
    def change(self, now: int, impairment: Impairment, files: Mapping[str, str]) -> None:
        """Set another impairment. Raises the errors of `LinkDirection.change`."""


D = TypeVar("D", bound=ForwardedDirection)


class ForwardedLink(ABC, Generic[D]):
    """A link that this process forwards. link: orders of the link. seed: seed of the relay's orders. directions: directions
    by name, "forward" and "backward"."""

    def __init__(self, link: RelayedLink, options: LinkOptions) -> None:
        self.link = link
        self.seed = options.seed
        self._texts = texts_of(link, options.files)
        self._loop = options.loop
        self.directions: Final[dict[str, D]] = {}
        self._sockets: dict[str, PacketSocket] = {}  # by the direction whose frames they receive

    def has_orders(self, link: RelayedLink, seed: int, files: Mapping[str, str]) -> bool:
        """Whether these are the link's present orders."""
        return (link, seed, texts_of(link, files)) == (self.link, self.seed, self._texts)

    def change(self, link: RelayedLink, files: Mapping[str, str]) -> None:
        """Apply new orders to frames received from now on. Raises the errors of `ForwardedDirection.change` and
        `InjectedRules.set`."""
        texts = texts_of(link, files)
        if (link, texts) == (self.link, self._texts):
            return
        self.catch_up()  # frames received before the change have the former impairment
        now = self._loop.now()
        for name, direction in self.directions.items():
            before: RelayedDirection = getattr(self.link, name)
            after: RelayedDirection = getattr(link, name)
            if (after.impairment, texts[name]) != (before.impairment, self._texts[name]):
                direction.change(now, after.impairment, files)
            direction.injected.set(now, after.rules)
        self.link, self._texts = link, texts

    @abstractmethod
    def catch_up(self) -> None:
        """Offer all frames that the sockets have received."""

    def close(self) -> None:
        """Close the sockets."""
        for packet_socket in self._sockets.values():
            packet_socket.close()

    def is_current(self) -> bool:
        """Whether the link's interfaces are still those on which its sockets were opened."""
        current = [packet_socket.is_current() for packet_socket in self._sockets.values()]  # all: it updates MTUs
        return all(current)

    def sockets(self) -> dict[str, PacketSocket]:
        """Return the sockets, by the direction whose frames they receive."""
        return self._sockets


def texts_of(link: RelayedLink, files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return direction -> path -> text of the files that the direction's impairment names. A text can change while its path
    stays."""
    impairments = {"forward": link.forward.impairment, "backward": link.backward.impairment}
    return {
        direction: {path: files[path] for path in (impairment.jitter_file, impairment.rate_trace) if path in files}
        for direction, impairment in impairments.items()
    }
