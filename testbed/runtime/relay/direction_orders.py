"""Options, injected rules and files of a direction that the relay carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from testbed.engine.loop import Loop
from testbed.fates.fate_counters import Tallies
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
    """Options of all links. arena: of their sockets. seed, files: of the orders. fields, log: see `FateOptions`.
    tallies: see `RuleSet`."""

    loop: Loop
    arena: Arena
    fields: Fields
    seed: int
    files: Mapping[str, str]
    log: Callable[[Record], object] | None = None
    tallies: Tallies | None = None

    def fates(self) -> tuple[FateOptions, RuleSet]:
        """The options of a new direction, with the rule set for its injected rules."""
        rules = RuleSet(self.fields, tallies=self.tallies)
        return FateOptions(self.seed, self.loop.now(), rules, files=self.files, log=self.log), rules


class Model(Protocol):
    """The model of a direction."""

    def idle_rules(self) -> list[str]:
        """A sentence for each of the impairment's own rules that has never decided a fate."""
        ...


class InjectedRules:
    """The injected rules in force on one direction."""

    __slots__ = ("_handles", "_model", "_place", "_rules")

    def __init__(
        self, now: int, model: Model, rules: RuleSet, relayed: RelayedDirection, place: tuple[str, DirectionName]
    ) -> None:
        """rules: the model's. place: link and direction."""
        self._model: Final = model
        self._place: Final = place
        self._rules: Final = rules
        self._handles: dict[str, Handle] = {}
        if relayed.replay:
            rules.add(now, Replay(read_log(Path(relayed.replay))))
        self.set(now, relayed.rules)

    def set(self, now: int, wanted: Mapping[str, str]) -> None:
        """Set the rules in force; rules that stay keep their counts."""
        for name in [name for name in self._handles if name not in wanted]:
            self._handles.pop(name).lift()
        for name, text in wanted.items():
            if name not in self._handles:
                self._handles[name] = handle = self._rules.add(now, text, name)
                handle.compiled(*self._place)  # count from now on, not from its first frame

    def handles(self) -> dict[str, Handle]:
        return dict(self._handles)

    def idle(self) -> list[str]:
        """A sentence for each rule that has never decided a fate, including lifted and declared ones."""
        return [*self._model.idle_rules(), *self._rules.idle_rules()]


class CarriedLink:
    """A link that the relay carries: its orders, and packet sockets, by the direction whose frames come in on them."""

    def __init__(self, carried: RelayedLink, options: LinkOptions) -> None:
        self.carried = carried
        self.seed = options.seed
        self._texts = texts_of(carried, options.files)
        self._loop = options.loop
        self._sockets: dict[str, PacketSocket] = {}

    def close(self) -> None:
        for heard in self._sockets.values():
            heard.close()

    def still_there(self) -> bool:
        """Whether its interfaces are those on which it was opened."""
        return sum(heard.is_current() for heard in self._sockets.values()) == len(self._sockets)  # all: to update MTUs

    def sockets(self) -> dict[str, PacketSocket]:
        """The sockets, by the direction whose frames come in on them."""
        return self._sockets


def texts_of(carried: RelayedLink, files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The texts of the files that each direction's impairment names, since they can change while the names stay."""
    impairments = {"forward": carried.forward.impairment, "backward": carried.backward.impairment}
    return {
        direction: {path: files[path] for path in (impairment.jitter_file, impairment.rate_trace) if path in files}
        for direction, impairment in impairments.items()
    }
