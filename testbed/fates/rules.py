"""Injected faults: rules, the set of active rules, and handles to lift them.

    with rules.add(now, "drop tcp.dport == 5001 and nth(3)") as fault: ...
    rules.add(now, "set emp.tag = 7 emp.type == MESSAGE and nth(1)")
    rules.add(now, lambda view: DROP if view["emp.type"] == 3 and view.n > 10 else PASS)
    rules.add(now, Replay(log))

The first rule that does not pass a frame decides its fate; later rules do not count the frame. A rule set serves any number
of directions; each direction counts a rule's frames separately, so that traffic on one link does not change fates on
another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from testbed.fates import expressions
from testbed.fates.conditions import Condition, Count, Test, never_holds
from testbed.fates.fate_counters import Cell, Tallies
from testbed.fates.field_changes import check_changes
from testbed.fates.flows import Flow, FlowCount
from testbed.fates.header_fields import Fields, Located, Reader, UnknownFieldError
from testbed.fates.records import PASS, Fate, Replay


class FrameView:
    """View of a frame for a rule in Python: ``view["ip.src"]`` is the field's value as a number, or None if the frame does
    not have the field. frame: its bytes. link, direction: where it is."""

    __slots__ = ("_fields", "_located", "_readers", "direction", "elapsed", "flow", "frame", "link", "n")

    def __init__(self, fields: Fields, link: str, direction: str, readers: dict[str, Reader]) -> None:
        self._fields = fields
        self._readers = readers
        self._located: Located = (-1, -1, -1, -1)
        self.link = link
        self.direction = direction
        self.frame = b""
        self.flow: Flow = Flow(0, 0, 0)
        self.n = 0
        """The frame's number in its flow, from 1."""
        self.elapsed = 0
        """Nanoseconds since the rule was set."""

    def __getitem__(self, name: str) -> int | None:
        read = self._readers.get(name)
        if read is None:
            read = self._readers[name] = self._fields.reader(name)
        value = read(self.frame, self._located)
        return value if value >= 0 else None

    def move_to(self, elapsed: int, frame: bytes, located: Located, count: FlowCount) -> FrameView:
        """Move the view to the next frame."""
        self.elapsed, self.frame, self._located = elapsed, frame, located
        self.flow, self.n = count.flow, count.n
        return self


RuleFunction = Callable[[FrameView], Fate]
"""A rule in Python: returns the fate of a frame; PASS leaves the frame to the next rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: the fate of the frames that its condition and counts select. text: shown to users."""

    fate: Fate
    when: Condition
    counts: tuple[Count, ...] = ()
    text: str = ""

    @classmethod
    def parse(cls, text: str, fields: Fields, links: Collection[str] = ()) -> Rule:
        """Parse a rule's text form, see `expressions`. Raises RuleError."""
        return cls(*expressions.parse(text, fields, links), text.strip())


class CompiledRule:
    """A rule on one direction of a link, compiled."""

    __slots__ = ("decided", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Number of frames for which the condition held, whether or not the counts select them."""
        self.decided = 0
        """Number of frames whose fate the rule decided."""

    def decide(self, now: int, frame: bytes, located: Located, count: FlowCount) -> Fate | None:
        """Return the frame's fate, or None to leave the frame to the next rule. count: the frame's flow, with its n."""
        raise NotImplementedError


class _Tally:
    """The numbers of frames for a `Count`, one for each combination of the values of its fields."""

    __slots__ = ("_cells", "_count", "_index", "_numbers", "_readers", "_tallies")

    def __init__(self, count: Count, fields: Fields, tallies: Tallies, key: tuple[object, ...]) -> None:
        """key: unique among the rules."""
        self._count = count
        self._readers = [None if name == "flow" else fields.reader(name) for name in count.per]
        self._tallies = tallies
        self._numbers, self._index = tallies.cell(key)
        self._cells: dict[tuple[object, ...], Cell] = {}  # by combination of values

    def selects(self, frame: bytes, located: Located, count: FlowCount) -> bool:
        numbers, index = self._numbers, self._index
        if self._readers:
            key = tuple([count.flow if read is None else read(frame, located) for read in self._readers])
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = self._tallies.cell(key, within=index)
            numbers, index = cell
        number = numbers[index] = numbers[index] + 1
        return self._count.selects(number)


class _CompiledCondition(CompiledRule):
    __slots__ = ("_fate", "_since", "_tallies", "_test")

    def __init__(self, rule: Rule, test: Test, rules: RuleSet, since: int, key: tuple[object, ...]) -> None:
        """key: unique among the rules."""
        super().__init__(rule.text)
        self._fate = rule.fate
        self._test = test
        self._tallies = [
            _Tally(count, rules.fields, rules.tallies, (*key, number)) for number, count in enumerate(rule.counts)
        ]
        numbers, index = rules.tallies.cell((*key, "since"))
        self._since = numbers[index] = numbers[index] or since

    def decide(self, now: int, frame: bytes, located: Located, count: FlowCount) -> Fate | None:
        if not self._test(now - self._since, frame, located):
            return None
        self.matched += 1
        is_selected = True
        for tally in self._tallies:  # all of them must count the frame
            if not tally.selects(frame, located, count):
                is_selected = False
        if not is_selected:
            return None
        self.decided += 1
        return self._fate


class _CompiledFunction(CompiledRule):
    __slots__ = ("_function", "_since", "_view")

    def __init__(self, text: str, function: RuleFunction, view: FrameView, since: int) -> None:
        super().__init__(text)
        self._function = function
        self._view = view
        self._since = since

    def decide(self, now: int, frame: bytes, located: Located, count: FlowCount) -> Fate | None:
        fate = self._function(self._view.move_to(now - self._since, frame, located, count))
        if fate is PASS or fate == PASS:
            return None
        self.matched += 1
        self.decided += 1
        return fate


class _CompiledReplay(CompiledRule):
    __slots__ = ("_fates", "_replay")

    def __init__(self, replay: Replay, link: str, direction: str) -> None:
        super().__init__("replay")
        self._replay = replay
        self._fates = replay.fates(link, direction)

    def decide(self, now: int, frame: bytes, located: Located, count: FlowCount) -> Fate | None:  # noqa: ARG002
        fate = self._fates.get((count.epoch, count.flow, count.n))
        if fate is not None:
            self.matched += 1
            self.decided += 1
            self._replay.applied += 1
        return fate


class Handle:
    """An active rule, until ``lift()`` or the end of a ``with`` block."""

    __slots__ = ("_compiled", "_name", "_rule", "_rules", "_since", "text")

    def __init__(self, rules: RuleSet, rule: Rule | RuleFunction | Replay, since: int, name: str) -> None:
        self._rules = rules
        self._name = name
        self._rule = rule
        self._since = since
        self._compiled: dict[tuple[str, str], CompiledRule | None] = {}
        if isinstance(rule, Replay):
            self.text = "replay"
        else:
            self.text = rule.text if isinstance(rule, Rule) else getattr(rule, "__name__", repr(rule))

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lift()

    def lift(self) -> None:
        """Deactivate the rule for frames offered from now on; repeated calls do nothing."""
        self._rules._lift(self)

    @property
    def matched(self) -> int:
        """Number of frames for which the rule's condition held, in all directions."""
        return sum(rule.matched for rule in self._compiled.values() if rule)

    @property
    def decided(self) -> int:
        """Number of frames whose fate the rule decided, in all directions."""
        return sum(rule.decided for rule in self._compiled.values() if rule)

    def compiled(self, link: str, direction: str) -> CompiledRule | None:
        """Return the rule compiled for a direction of a link; None if it can never decide there."""
        key = (link, direction)
        if key not in self._compiled:
            self._compiled[key] = self._compile(link, direction)
        return self._compiled[key]

    def _compile(self, link: str, direction: str) -> CompiledRule | None:
        rule, fields = self._rule, self._rules.fields
        if isinstance(rule, Rule):
            test = rule.when.compile(fields, link, direction)
            key = link, direction, self._name, rule.text
            return None if never_holds(test) else _CompiledCondition(rule, test, self._rules, self._since, key)
        if isinstance(rule, Replay):
            return _CompiledReplay(rule, link, direction) if rule.fates(link, direction) else None
        return _CompiledFunction(self.text, rule, FrameView(fields, link, direction, {}), self._since)


class RuleSet:
    """The active rules, in the order in which they were added.

    fields: the fields that rules may name; a protocol registers its fields before rules with them are added. tallies: the
    rules' counts. version: a number that increases whenever a rule is added or lifted.
    """

    __slots__ = ("_handles", "_lifted", "_links", "fields", "tallies", "version")

    def __init__(self, fields: Fields, links: Collection[str] = (), tallies: Tallies | None = None) -> None:
        """links: the link names that a rule may use; empty: any. tallies: stores the counts; None: in memory."""
        self.fields: Final = fields
        self.tallies: Final = tallies if tallies is not None else Tallies()
        self.version = 0
        self._links = links
        self._handles: list[Handle] = []
        self._lifted: dict[str, None] = {}  # sentences about lifted rules that never decided

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, now: int, rule: str | Rule | RuleFunction | Replay, name: str = "") -> Handle:
        """Activate a rule for frames offered from now on; its time windows and counts start now.

        name: distinguishes the rule from rules with the same text in persistent counts. Raises RuleError for an invalid
        text, ChangeError for a rule or log that changes an unknown field or a field that cannot be changed.
        """
        parsed = Rule.parse(rule, self.fields, self._links) if isinstance(rule, str) else rule
        if isinstance(parsed, Rule | Replay):
            for fate in [parsed.fate] if isinstance(parsed, Rule) else parsed.changes():
                check_changes(self.fields, fate)
        handle = Handle(self, parsed, now, name)
        self._handles.append(handle)
        self.version += 1
        return handle

    def compiled_rules(self, link: str, direction: str) -> list[CompiledRule]:
        """List the active rules that can decide anything on a direction, compiled for it."""
        return [rule for handle in self._handles if (rule := handle.compiled(link, direction))]

    def idle_rules(self) -> list[str]:
        """Return a sentence for each rule, active or lifted, that has never decided a frame's fate."""
        return [*(_describe_idle(handle) for handle in self._handles if not handle.decided), *self._lifted]

    def _lift(self, handle: Handle) -> None:
        if handle in self._handles:
            self._handles.remove(handle)
            self.version += 1
            if not handle.decided:
                self._lifted[_describe_idle(handle)] = None


def _describe_idle(handle: Handle) -> str:
    if handle.matched:
        frames = "1 frame" if handle.matched == 1 else f"{handle.matched:,} frames"
        return f"the rule {handle.text!r} has matched {frames}, but its counts have selected none"
    return f"the rule {handle.text!r} has never matched a frame"


__all__ = ["CompiledRule", "FrameView", "Handle", "Rule", "RuleFunction", "RuleSet", "UnknownFieldError"]
