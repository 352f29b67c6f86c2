"""Stage that decides, by rules and by chance, the fates of the frames of one direction of a link.

The order of decisions on a frame:

1. rules: the first rule that does not pass the frame decides; a drop is final, any other fate is combined with the next
   steps;
2. loss: independent, then Gilbert-Elliott, then the pattern; all three count every frame, dropped or not;
3. corruption, duplication, reordering, jitter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from testbed.fates import fate_hash
from testbed.fates import records as fates
from testbed.fates.fate_counters import Numbers, Outcome, Tallies
from testbed.fates.field_changes import apply_changes, choose_bits, flip_bits, resolve
from testbed.fates.flows import Classifier, FlowCount, Flows
from testbed.fates.header_fields import Fields, Located
from testbed.fates.headers import standard_fields
from testbed.fates.jitter import Jitter, parse_trace, table_of
from testbed.fates.loss_models import GilbertElliott, Pattern
from testbed.fates.records import PASS, Fate, Record
from testbed.fates.rules import CompiledRule, RuleSet
from testbed.fates.text_files import text_of
from testbed.spec.layout import DirectionName, Impairment

NO_IMPAIRMENT: Final = Impairment()

_FATE_SETTINGS: Final = (
    "loss", "corrupt", "corrupt_bits", "duplicate", "reorder", "gemodel", "loss_pattern", "rules", "jitter",
    "distribution", "jitter_file",
)  # fmt: skip
_STANDARD_FIELDS: Final = standard_fields()
_draw: Final = fate_hash.draw
_ACCEPTED: Final = Outcome.ACCEPTED


@dataclass(frozen=True, slots=True)
class FateOptions:
    """Options of a direction's fates that are not part of its impairment.

    now: time at which the impairment is set, ns. rules: the injected rules, shared with other directions; without
    them, a direction without random impairments does not count flows. fields: the fields of all protocols, with their flow
    keys; not used if `rules` is set. classifier: classifier of these fields, shared with other directions. files: path ->
    text of the files that the impairment names. log: called with every fate that is not a pass.
    """

    seed: int
    now: int = 0
    rules: RuleSet | None = None
    fields: Fields | None = None
    classifier: Classifier | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    log: Callable[[Record], object] | None = None


class Verdict(NamedTuple):
    """A decision on a frame, unless it passes unchanged.

    outcome: ACCEPTED, or the cause of a drop, for which the other fields are not used. frame: the frame after all changes.
    spread: nanoseconds of jitter added to the delay; may be negative. extra_delay: nanoseconds by which a rule delays the
    frame; later frames may overtake it. copy: the frame arrives twice. skip: the frame skips the delay. flipped: bits of the
    frame were flipped.
    """

    outcome: Outcome
    frame: bytes = b""
    spread: int = 0
    extra_delay: int = 0
    copy: bool = False
    skip: bool = False
    flipped: bool = False


_LOST: Final = Verdict(Outcome.LOSS)
_DROPPED_BY_RULE: Final = Verdict(Outcome.RULE)
_LOST_BY_GEMODEL: Final = Verdict(Outcome.GEMODEL)
_LOST_BY_PATTERN: Final = Verdict(Outcome.PATTERN)


class FateStage:
    """The fates of a direction's frames: call `decide` once for each frame, in order."""

    __slots__ = (
        "_active_rules", "_classifier", "_declared", "_epoch", "_gemodel", "_has_other_random_fates",
        "_has_random_fates", "_has_rules", "_impairment", "_index", "_injected", "_jitter", "_key", "_link", "_log",
        "_n", "_name", "_numbers", "_passes_all", "_pattern", "_steps", "_tallies", "_thresholds", "_version", "flows",
        "is_idle", "only_loses",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
    ) -> None:
        """Raises BrokenFileError for an invalid file, RuleError for an invalid rule."""
        rules = options.rules
        self._link = link
        self._name = direction
        self._key = fate_hash.direction_key(options.seed, link, direction)
        self._injected = rules
        self._log = options.log
        self._impairment = NO_IMPAIRMENT
        self._epoch = -1  # number of restarts of the counts
        self._n = 0  # frames since the last restart
        self.flows: Flows | None = None
        """The flows since the last restart; None if flows are not counted."""
        self._version = -1
        self.is_idle = False
        """Whether every frame passes, and no rule can be injected."""
        self._passes_all = False  # whether every frame passes, until the rules change
        self.only_loses = False
        """Whether every frame passes unchanged or is lost independently, until the rules change."""
        self._active_rules: list[CompiledRule] = []
        fields = rules.fields if rules is not None else options.fields or _STANDARD_FIELDS
        tallies = rules.tallies if rules is not None else None
        self._declared = RuleSet(fields, tallies=tallies)
        self._tallies = tallies if tallies is not None and tallies.is_persistent else None
        # The count of the direction's frames is `_numbers[_index]`, if counts are persistent.
        self._numbers: Numbers | None = None
        self._index = 0
        self._classifier = options.classifier
        self.change(options.now, impairment, options.files, restart=True)

    @property
    def impairment(self) -> Impairment:
        """The current impairment."""
        return self._impairment

    @property
    def takes_rules(self) -> bool:
        """Whether rules can be injected at any time."""
        return self._injected is not None

    @property
    def passes_all(self) -> bool:
        """Whether every frame passes until the next `change` or rule."""
        if self._injected is not None and self._injected.version != self._version:
            self._collect_rules()
        return self._passes_all

    def idle_rules(self) -> list[str]:
        """Return a sentence for each of the impairment's rules that has never decided a fate."""
        return self._declared.idle_rules()

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        """Set another impairment for the frames from now on.

        restart: whether to restart the counts of the flows and of the direction from 1; None: as `restarts` returns. A
        replay passes it, to restart at the same frames as the recorded run. Raises the constructor's errors; nothing has
        changed then.
        """
        if restart is None:
            restart = restarts(self._impairment, impairment)
        texts = files or {}
        jitter: Jitter | None = None
        steps: tuple[int, ...] = ()
        if impairment.distribution == "trace":
            steps = parse_trace(text_of(texts, impairment.jitter_file), impairment.jitter_file)
        elif impairment.jitter:
            text = text_of(texts, impairment.jitter_file) if impairment.jitter_file else ""
            jitter = Jitter(impairment.jitter, table_of(impairment.distribution, impairment.jitter_file, text))
        pattern = Pattern(impairment.loss_pattern) if impairment.loss_pattern else None
        if impairment.rules != self._impairment.rules:
            declared = RuleSet(self._declared.fields, tallies=self._declared.tallies)
            for index, rule in enumerate(impairment.rules):
                declared.add(now, rule, f"declared {index}")
            self._declared = declared
        # No errors are possible from here on.
        self._impairment = impairment
        shares = (impairment.loss, impairment.corrupt, impairment.duplicate, impairment.reorder)
        self._thresholds = loss, corrupt, duplicate, reorder = tuple([fate_hash.threshold(share) for share in shares])
        self._jitter = jitter
        self._steps = steps
        self._pattern = pattern
        if restart:
            self._epoch += 1
            self._n = 0
            self.flows = None
            self._gemodel = GilbertElliott(impairment.gemodel, self._key) if impairment.gemodel else None
            if self._tallies is not None:
                self._resume_counts(self._tallies)
        self._has_other_random_fates = bool(
            corrupt or duplicate or reorder or self._gemodel or pattern or jitter is not None or steps
        )
        self._has_random_fates = bool(loss) or self._has_other_random_fates
        self._has_rules = self._injected is not None or len(self._declared) > 0
        self.is_idle = not (self._has_random_fates or self._has_rules)
        if not self.is_idle and self.flows is None:
            if self._classifier is None:
                self._classifier = Classifier(self._declared.fields)
            tallies = self._tallies if self._has_random_fates else None  # rules have counts of their own
            self.flows = Flows(self._key, self._classifier, self._epoch, tallies, self._index)
        self._collect_rules()

    def _resume_counts(self, tallies: Tallies) -> None:
        """Resume the counts of the previous process, if it had the same impairment. The direction's count is twice the
        number of the last frame, plus 1 if the Gilbert-Elliott state before that frame was bad."""
        fate_settings = [getattr(self._impairment, key) for key in _FATE_SETTINGS]
        self._numbers, self._index = tallies.cell(("direction", self._link, self._name, *fate_settings))
        self._n, is_bad = divmod(self._numbers[self._index], 2)
        epochs, index = tallies.cell(("epoch",), self._index)
        self._epoch = epochs[index] = epochs[index] or self._epoch
        if self._gemodel is not None and self._n:
            self._gemodel.set_state(is_bad=bool(is_bad))
            self._gemodel.step(self._n)

    @property
    def spread(self) -> int:
        """Maximum nanoseconds of jitter added to the delay; for distributions other than uniform a typical value."""
        return max(self._steps) if self._steps else self._impairment.jitter

    def decide(self, now: int, frame: bytes) -> Verdict | None:
        """Decide on the next frame; return None if it passes unchanged. Frames are not counted if `is_idle`."""
        flows = self.flows
        if flows is None:
            return None
        injected = self._injected
        if injected is not None and injected.version != self._version:
            self._collect_rules()
        self._n = number = self._n + 1
        if self._passes_all:
            flows.count(frame)
            return None
        if self._numbers is not None and self._has_other_random_fates:
            is_bad = self._gemodel is not None and self._gemodel.is_bad
            self._numbers[self._index] = 2 * number + is_bad
        count, located = flows.count(frame)
        rule_fate: Fate | None = None
        if self._active_rules:
            rule_fate = self._apply_rules(now, frame, located, count)
            if rule_fate is not None and rule_fate.drop:
                if self._gemodel is not None:
                    self._gemodel.step(number)
                return _DROPPED_BY_RULE
        if not self._has_random_fates:
            return None if rule_fate is None else self._verdict_of(rule_fate, frame, located)
        return self._decide_by_chance(frame, number, count, rule_fate, located)

    def count(self, frame: bytes, frames: int) -> None:
        """Count a GSO frame of two or more frames of one flow, which all pass (`passes_all`)."""
        if self.flows is not None:
            self._n += frames
            self.flows.count(frame)
            count, _ = self.flows.count(frame)  # only from the second frame on is the returned count that of the flow
            self.flows.count_more(count, frames - 2)

    def _decide_by_chance(
        self, frame: bytes, number: int, count: FlowCount, rule_fate: Fate | None, located: Located
    ) -> Verdict | None:
        """Decide on a frame by chance. number: the frame's number in the direction. rule_fate: the fate that a rule has
        decided, no drop."""
        n = count.n
        loss, corrupt, duplicate, reorder = self._thresholds
        is_gemodel_loss = self._gemodel is not None and self._gemodel.step(number)
        if loss and _draw(count.loss_start(), n) >> 11 < loss:
            self._record(count, fates.LOSS, fates.DROP)
            return _LOST
        if rule_fate is None and not self._has_other_random_fates:
            return None
        if is_gemodel_loss:
            self._record(count, fates.GEMODEL, fates.DROP)
            return _LOST_BY_GEMODEL
        if self._pattern is not None and self._pattern.loses(number):
            self._record(count, fates.PATTERN, fates.DROP)
            return _LOST_BY_PATTERN
        spread = extra_delay = 0
        copy = skip = flipped = is_changed_by_rule = False
        if rule_fate is not None:
            is_changed_by_rule = rule_fate.changes
            _, frame, _, extra_delay, copy, skip, flipped = self._verdict_of(rule_fate, frame, located)
        # No random corruption after a change by a rule: both would flip the same bits, and random flips would invalidate
        # checks that the rule has recomputed.
        if corrupt and not is_changed_by_rule and _draw(count.start(fate_hash.CORRUPT), n) >> 11 < corrupt:
            positions = choose_bits(count.start(fate_hash.BITS), n, self._impairment.corrupt_bits or 1, len(frame))
            frame = flip_bits(frame, positions)
            flipped = True
            self._record(count, fates.CORRUPT, Fate(flips=len(positions), positions=positions))
        if duplicate and _draw(count.start(fate_hash.DUPLICATE), n) >> 11 < duplicate:
            copy = True
            self._record(count, fates.DUPLICATION, fates.DUPLICATE)
        if reorder and _draw(count.start(fate_hash.REORDER), n) >> 11 < reorder:
            skip = True
            self._record(count, fates.REORDERING, fates.REORDER)
        if self._jitter is not None:
            spread = self._jitter.at(count.start(fate_hash.JITTER), n)
        elif self._steps:
            spread = self._steps[(number - 1) % len(self._steps)]
        elif not (copy or skip or flipped or is_changed_by_rule or extra_delay):
            return None
        return Verdict(_ACCEPTED, frame, spread, extra_delay, copy, skip, flipped)

    def _apply_rules(self, now: int, frame: bytes, located: Located, count: FlowCount) -> Fate | None:
        for rule in self._active_rules:
            fate = rule.decide(now, frame, located, count)
            if fate is not None:
                if fate.changes:
                    fate = resolve(fate, self._declared.fields, frame, located, count.start(fate_hash.BITS), count.n)
                    if fate == PASS:  # the frame has none of the fields
                        continue
                self._record(count, fates.RULE, fate, rule.text)
                return fate
        return None

    def _verdict_of(self, fate: Fate, frame: bytes, located: Located) -> Verdict:
        """Make the verdict of a rule's fate."""
        if fate.changes:
            frame = apply_changes(fate, self._declared.fields, frame, located)
        return Verdict(_ACCEPTED, frame, 0, fate.delay, fate.duplicate, fate.reorder, bool(fate.flips))

    def _record(self, count: FlowCount, cause: str, fate: Fate, detail: str = "") -> None:
        if self._log is not None:
            epoch, flow, n = count.epoch, count.flow, count.n
            self._log(Record(self._link, self._name, epoch, flow, n, cause, fate, detail))

    def _collect_rules(self) -> None:
        """Collect the active rules: injected rules first, since they override the impairment's rules."""
        injected = self._injected
        self._active_rules = self._declared.compiled_rules(self._link, self._name)
        if injected is not None:
            self._active_rules = injected.compiled_rules(self._link, self._name) + self._active_rules
            self._version = injected.version
        self._passes_all = not (self._active_rules or self._has_random_fates)
        self.only_loses = not (self._active_rules or self._has_other_random_fates)


def restarts(before: Impairment, after: Impairment) -> bool:
    """Whether a change of impairment restarts the counts of frames from 1.

    A change of random fates, patterns, rules or jitter does. A change of only delay, rate or queue does not, so that the
    fates remain those of the unchanged impairment.
    """
    return any(getattr(before, key) != getattr(after, key) for key in _FATE_SETTINGS)
