"""Options, injected rules and files of the directions that the relay forwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from testbed.engine.loop import Loop
from testbed.fates.fate_counters import Tallies
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import Fields
from testbed.fates.records import Record, Replay
from testbed.fates.rules import Handle, RuleSet
from testbed.fates.stage import FateOptions
from testbed.kernel.packet_socket import Arena, PacketSocket
from testbed.runtime.logs import read_log
from testbed.runtime.relay.orders import RelayedDirection, RelayedLink
from testbed.spec.layout import DirectionName


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options that all links of a relay process share. arena: arena of their sockets. seed, files: seed and files of the
    orders. fields, log, classifier: see `FateOptions`. tallies: see `RuleSet`."""

    loop: Loop
    arena: Arena
    fields: Fields
    seed: int
    files: Mapping[str, str]
    log: Callable[[Record], object] | None = None
    tallies: Tallies | None = None
    classifier: Classifier | None = None

    def fates(self) -> tuple[FateOptions, RuleSet]:
        """Make the options of a new direction, and the rule set for its injected rules."""
        rules = RuleSet(self.fields, tallies=self.tallies)
        options = FateOptions(
            self.seed, self.loop.now(), rules, classifier=self.classifier, files=self.files, log=self.log
        )
        return options, rules


class Model(Protocol):
    """The model of a direction."""

    def idle_rules(self) -> list[str]:
        """Return a sentence for each of the impairment's own rules that has never decided a fate."""
        ...


class InjectedRules:
    """The injected rules in force on one direction."""

    __slots__ = ("_direction", "_handles", "_model", "_rules")

    def __init__(
        self, now: int, model: Model, rules: RuleSet, relayed: RelayedDirection, direction: tuple[str, DirectionName]
    ) -> None:
        """rules: the model's. direction: link and direction. Raises the errors of `set` and of `read_log`."""
        self._model: Final = model
        self._direction: Final = direction
        self._rules: Final = rules
        self._handles: dict[str, Handle] = {}
        if relayed.replay:
            rules.add(now, Replay(read_log(Path(relayed.replay))))
        self.set(now, relayed.rules)

    def set(self, now: int, texts: Mapping[str, str]) -> None:
        """Set the rules in force; rules that stay keep their counts. texts: by stable names. Raises RuleError."""
        for name in [name for name in self._handles if name not in texts]:
            self._handles.pop(name).lift()
        for name, text in texts.items():
            if name not in self._handles:
                self._handles[name] = handle = self._rules.add(now, text, name)
                handle.compiled(*self._direction)  # it counts from now on, not from its first match

    def handles(self) -> dict[str, Handle]:
        """Return the handles of the rules in force, by their names."""
        return dict(self._handles)

    def idle(self) -> list[str]:
        """Return a sentence for each rule that has never decided a fate, including lifted and declared rules."""
        return [*self._model.idle_rules(), *self._rules.idle_rules()]


class ForwardedLink:
    """A link that this process forwards: its orders, and its packet sockets, by the direction whose frames they receive.

    link: its orders.
    """

    def __init__(self, link: RelayedLink, options: LinkOptions) -> None:
        self.link = link
        self.seed = options.seed
        self._texts = texts_of(link, options.files)
        self._loop = options.loop
        self._sockets: dict[str, PacketSocket] = {}

    def follows(self, link: RelayedLink, seed: int, files: Mapping[str, str]) -> bool:
        """Whether these are the link's present orders."""
        return (link, seed, texts_of(link, files)) == (self.link, self.seed, self._texts)

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
    """Return path -> text of the files that each direction's impairment names: they can change while the names stay."""
    impairments = {"forward": link.forward.impairment, "backward": link.backward.impairment}
    return {
        direction: {path: files[path] for path in (impairment.jitter_file, impairment.rate_trace) if path in files}
        for direction, impairment in impairments.items()
    }
