"""What orders say of a direction, beside its impairment: rules that were injected, and the files that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testbed.runtime.logs import read_log
from testbed.runtime.orders import Carried, Treated
from testbed.wire.direction import Direction
from testbed.wire.fates import Replay
from testbed.wire.rules import Handle, RuleSet


class InjectedRules:
    """Those in force on one direction."""

    __slots__ = ("_handles", "_model", "_rules")

    def __init__(self, now: int, model: Direction, rules: RuleSet, treated: Treated) -> None:
        """rules: the model's."""
        self._model: Final = model
        self._rules: Final = rules
        self._handles: dict[str, Handle] = {}
        if treated.replay:
            rules.add(now, Replay(read_log(Path(treated.replay))))
        self.set(now, treated.rules)

    def set(self, now: int, wanted: Mapping[str, str]) -> None:
        """Have exactly these in force; one that stays goes on counting."""
        for name in [name for name in self._handles if name not in wanted]:
            self._handles.pop(name).lift()
        for name, text in wanted.items():
            if name not in self._handles:
                self._handles[name] = self._rules.add(now, text)

    def handles(self) -> dict[str, Handle]:
        return dict(self._handles)

    def idle(self) -> list[str]:
        """A sentence for each rule that has never decided a frame's fate, lifted ones and the description's too."""
        return [*self._model.idle_rules(), *self._rules.idle()]


def texts_of(carried: Carried, files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The texts of the files that each direction's impairment names: they may change while the names stay."""
    impairments = {"forward": carried.forward.impairment, "backward": carried.backward.impairment}
    return {
        direction: {path: files[path] for path in (one.jitter_file, one.rate_trace) if path in files}
        for direction, one in impairments.items()
    }
