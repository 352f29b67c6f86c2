"""Injected faults: rules, the set of those in force, and the handles that lift them.

    with rules.add(now, "drop tcp.dport == 5001 and nth(3)") as fault: ...
    rules.add(now, "set emp.tag = 7 emp.type == MESSAGE and nth(1)")
    rules.add(now, lambda seen: DROP if seen["emp.type"] == 3 and seen.n > 10 else PASS)
    rules.add(now, Replay(log))

The first rule that does not pass a frame decides its fate; later rules neither see nor count it. One set serves any number
of directions; each direction counts a rule's frames separately, so that traffic on one link never changes fates on another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from testbed.fates import expressions
from testbed.fates.conditions import Condition, Count, Test, never
from testbed.fates.fate_counters import Cell, Tallies
from testbed.fates.field_changes import check_changes
from testbed.fates.flows import Counted, Flow
from testbed.fates.header_fields import Fields, Located, Reader, UnknownFieldError
from testbed.fates.records import PASS, Fate, Replay


class Seen:
    """View of a frame for a rule in Python: ``seen["ip.src"]`` is the field's number, or None if the frame has none."""

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

    def show(self, elapsed: int, frame: bytes, located: Located, counted: Counted) -> Seen:
        """Move the view to the next frame."""
        self.elapsed, self.frame, self._located = elapsed, frame, located
        self.flow, self.n = counted.flow, counted.n
        return self


RuleFunction = Callable[[Seen], Fate]


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


class Judge:
    """A rule on one direction of a link, compiled."""

    __slots__ = ("decided", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Frames for which the condition held, whether or not the counts select them."""
        self.decided = 0
        """Frames whose fate it decided."""

    def judge(self, now: int, frame: bytes, located: Located, counted: Counted) -> Fate | None:
        """Return the frame's fate, or None to pass it on. counted: its flow, with this frame's n."""
        raise NotImplementedError


class _Tally:
    """Frame numbers of one `Count`, for each combination of the values by which it counts separately."""

    __slots__ = ("_cells", "_count", "_numbers", "_place", "_readers", "_tallies")

    def __init__(self, count: Count, fields: Fields, tallies: Tallies, key: tuple[object, ...]) -> None:
        """key: unique among the rules."""
        self._count = count
        self._readers = [None if name == "flow" else fields.reader(name) for name in count.per]
        self._tallies = tallies
        self._numbers, self._place = tallies.cell(key)
        self._cells: dict[tuple[object, ...], Cell] = {}  # for each combination

    def chooses(self, frame: bytes, located: Located, counted: Counted) -> bool:
        numbers, place = self._numbers, self._place
        if self._readers:
            key = tuple([counted.flow if read is None else read(frame, located) for read in self._readers])
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = self._tallies.cell(key, within=place)
            numbers, place = cell
        number = numbers[place] = numbers[place] + 1
        return self._count.chooses(number)


class _ConditionJudge(Judge):
    __slots__ = ("_fate", "_since", "_tallies", "_test")

    def __init__(self, rule: Rule, test: Test, rules: RuleSet, since: int, key: tuple[object, ...]) -> None:
        """key: unique among the rules."""
        super().__init__(rule.text)
        self._fate = rule.fate
        self._test = test
        self._tallies = [_Tally(count, rules.fields, rules.tallies, (*key, at)) for at, count in enumerate(rule.counts)]
        numbers, place = rules.tallies.cell((*key, "since"))
        self._since = numbers[place] = numbers[place] or since

    def judge(self, now: int, frame: bytes, located: Located, counted: Counted) -> Fate | None:
        if not self._test(now - self._since, frame, located):
            return None
        self.matched += 1
        chosen = True
        for tally in self._tallies:  # each counts the frame, whatever the others choose
            if not tally.chooses(frame, located, counted):
                chosen = False
        if not chosen:
            return None
        self.decided += 1
        return self._fate


class _FunctionJudge(Judge):
    __slots__ = ("_function", "_seen", "_since")

    def __init__(self, text: str, function: RuleFunction, seen: Seen, since: int) -> None:
        super().__init__(text)
        self._function = function
        self._seen = seen
        self._since = since

    def judge(self, now: int, frame: bytes, located: Located, counted: Counted) -> Fate | None:
        fate = self._function(self._seen.show(now - self._since, frame, located, counted))
        if fate is PASS or fate == PASS:
            return None
        self.matched += 1
        self.decided += 1
        return fate


class _ReplayJudge(Judge):
    __slots__ = ("_fates", "_replay")

    def __init__(self, replay: Replay, link: str, direction: str) -> None:
        super().__init__("replay")
        self._replay = replay
        self._fates = replay.fates(link, direction)

    def judge(self, now: int, frame: bytes, located: Located, counted: Counted) -> Fate | None:  # noqa: ARG002
        fate = self._fates.get((counted.epoch, counted.flow, counted.n))
        if fate is not None:
            self.matched += 1
            self.decided += 1
            self._replay.applied += 1
        return fate


class Handle:
    """A rule in force, until ``lift()`` or the end of a ``with`` block."""

    __slots__ = ("_judges", "_name", "_rule", "_rules", "_since", "text")

    def __init__(self, rules: RuleSet, rule: Rule | RuleFunction | Replay, since: int, name: str) -> None:
        self._rules = rules
        self._name = name
        self._rule = rule
        self._since = since
        self._judges: dict[tuple[str, str], Judge | None] = {}
        if isinstance(rule, Replay):
            self.text = "replay"
        else:
            self.text = rule.text if isinstance(rule, Rule) else getattr(rule, "__name__", repr(rule))

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lift()

    def lift(self) -> None:
        """Take the rule out of force for frames offered from now on; repeated calls do nothing."""
        self._rules._lift(self)

    @property
    def matched(self) -> int:
        """Frames for which its condition held, on all directions."""
        return sum(judge.matched for judge in self._judges.values() if judge)

    @property
    def decided(self) -> int:
        """Frames whose fate it decided, on all directions."""
        return sum(judge.decided for judge in self._judges.values() if judge)

    def judge(self, link: str, direction: str) -> Judge | None:
        """Return the rule's one judge for a direction of a link; None where it can never decide."""
        place = (link, direction)
        if place not in self._judges:
            self._judges[place] = self._compile(link, direction)
        return self._judges[place]

    def _compile(self, link: str, direction: str) -> Judge | None:
        rule, fields = self._rule, self._rules.fields
        if isinstance(rule, Rule):
            test = rule.when.compile(fields, link, direction)
            key = link, direction, self._name, rule.text
            return None if never(test) else _ConditionJudge(rule, test, self._rules, self._since, key)
        if isinstance(rule, Replay):
            return _ReplayJudge(rule, link, direction) if rule.fates(link, direction) else None
        return _FunctionJudge(self.text, rule, Seen(fields, link, direction, {}), self._since)


class RuleSet:
    """The rules in force, in the order in which they were added, and messages about lifted ones.

    fields: those that rules may name; a protocol registers its own before rules with them are added. tallies: where they
    count. version: changes with the rules in force.
    """

    __slots__ = ("_handles", "_lifted", "_links", "fields", "tallies", "version")

    def __init__(self, fields: Fields, links: Collection[str] = (), tallies: Tallies | None = None) -> None:
        """links: the names that a rule may use for a link; empty: any. tallies: where counts are kept; None: in memory."""
        self.fields: Final = fields
        self.tallies: Final = tallies if tallies is not None else Tallies()
        self.version = 0
        self._links = links
        self._handles: list[Handle] = []
        self._lifted: dict[str, None] = {}  # sentences about lifted rules that never decided

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, now: int, rule: str | Rule | RuleFunction | Replay, name: str = "") -> Handle:
        """Put a rule in force for frames offered from now on; its time windows and counts begin now.

        name: distinguishes the rule from others of the same text, where counts are kept. Raises RuleError for an invalid
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

    def judges(self, link: str, direction: str) -> list[Judge]:
        """List the judges of the rules in force that can decide anything on this direction."""
        return [judge for handle in self._handles if (judge := handle.judge(link, direction))]

    def idle(self) -> list[str]:
        """Return a sentence for each rule, in force or lifted, that has never decided a frame's fate."""
        return [*(_idle(handle) for handle in self._handles if not handle.decided), *self._lifted]

    def _lift(self, handle: Handle) -> None:
        if handle in self._handles:
            self._handles.remove(handle)
            self.version += 1
            if not handle.decided:
                self._lifted[_idle(handle)] = None


def _idle(handle: Handle) -> str:
    if handle.matched:
        frames = "1 frame" if handle.matched == 1 else f"{handle.matched:,} frames"
        return f"the rule {handle.text!r} has matched {frames}, but never the one that it counts to"
    return f"the rule {handle.text!r} has never matched a frame"


__all__ = ["Handle", "Judge", "Rule", "RuleFunction", "RuleSet", "Seen", "UnknownFieldError"]
