"""Stage that decides, by chance and by rules, the fates of the frames of one direction of a link.

The order of decisions on a frame:

1. rules: the first that does not pass it decides; a drop ends here, everything else is combined with the next steps;
2. loss: independent, then Gilbert-Elliott, then the pattern (all three step with every frame);
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
from testbed.fates.flows import Classifier, Counted, Flows
from testbed.fates.header_fields import Fields, Located
from testbed.fates.headers import standard_fields
from testbed.fates.jitter import Jitter, parse_trace, table_of
from testbed.fates.loss_models import GilbertElliott, Pattern
from testbed.fates.records import PASS, Fate, Record
from testbed.fates.rules import Judge, RuleSet
from testbed.fates.text_files import text_of
from testbed.spec.layout import DirectionName, Impairment

NOTHING: Final = Impairment()

_DECIDING: Final = (
    "loss", "corrupt", "corrupt_bits", "duplicate", "reorder", "gemodel", "loss_pattern", "rules", "jitter",
    "distribution", "jitter_file",
)  # fmt: skip
_USUAL_FIELDS: Final = standard_fields()
_draw: Final = fate_hash.draw
_ACCEPTED: Final = Outcome.ACCEPTED


@dataclass(frozen=True, slots=True)
class FateOptions:
    """Options of a direction's fates, beside its impairment.

    now: since when frames are counted. rules: the injected ones, shared with other directions; without them, a direction
    with nothing random does not even count its flows. fields: with the protocols' flow keys; rules, if given, have their
    own. classifier: of these fields, shared with other directions. files: path -> text of the files that the impairment
    names. log: called with every fate that is not a pass.
    """

    seed: int
    now: int = 0
    rules: RuleSet | None = None
    fields: Fields | None = None
    classifier: Classifier | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    log: Callable[[Record], object] | None = None


class Verdict(NamedTuple):
    """A decision on a frame that does not just pass.

    outcome: ACCEPTED, or the cause of a drop; then nothing else counts. frame: as it goes on. spread: nanoseconds that
    jitter adds to the delay, or takes from it. late: nanoseconds by which a rule delays the frame; later ones may overtake
    it. copy: it arrives twice. skip: it skips the delay. flipped: bits of it are flipped.
    """

    outcome: Outcome
    frame: bytes = b""
    spread: int = 0
    late: int = 0
    copy: bool = False
    skip: bool = False
    flipped: bool = False


LOST: Final = Verdict(Outcome.LOSS)
_BY_RULE: Final = Verdict(Outcome.RULE)
_BY_GEMODEL: Final = Verdict(Outcome.GEMODEL)
_BY_PATTERN: Final = Verdict(Outcome.PATTERN)


class FateStage:
    """The fates of a direction's frames: call `decide` once for each frame, in their order."""

    __slots__ = (
        "_chances", "_classifier", "_epoch", "_gemodel", "_impairment", "_injected", "_jitter", "_judges", "_judging",
        "_kept", "_key", "_link", "_log", "_more_chances", "_n", "_name", "_numbers", "_own", "_pattern", "_place", "_steps",
        "_thresholds", "_uneventful", "_version", "flows", "is_idle", "loss",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
    ) -> None:
        """Raises BrokenFileError for a broken file, RuleError for a broken rule."""
        rules = options.rules
        self._link = link
        self._name = direction
        self._key = fate_hash.direction_key(options.seed, link, direction)
        self._injected = rules
        self._log = options.log
        self._impairment = NOTHING
        self._epoch = -1  # how often counts have restarted
        self._n = 0  # frames since the last restart
        self.flows: Flows | None = None
        """The flows of the frames since the last restart; None while nothing is counted."""
        self._version = -1
        self.is_idle = False
        """Whether every frame passes, and no rule can be injected."""
        self._uneventful = False  # every frame passes, until there is another rule
        self.loss = 0
        """Threshold (`fate_hash.threshold`) of an independent loss, if nothing else can happen; else 0."""
        self._judges: list[Judge] = []
        fields = rules.fields if rules is not None else options.fields or _USUAL_FIELDS
        tallies = rules.tallies if rules is not None else None
        self._own = RuleSet(fields, tallies=tallies)
        self._kept = tallies if tallies is not None and tallies.is_kept else None
        self._numbers: Numbers | None = (
            None  # where the direction's frames are counted for the next process, if they are
        )
        self._place = 0
        self._classifier = options.classifier
        self.change(options.now, impairment, options.files, restart=True)

    @property
    def impairment(self) -> Impairment:
        """The impairment in force."""
        return self._impairment

    @property
    def takes_rules(self) -> bool:
        """Whether rules can be injected at any time."""
        return self._injected is not None

    @property
    def is_uneventful(self) -> bool:
        """Whether every frame passes until the next `change` or rule."""
        if self._injected is not None and self._injected.version != self._version:
            self._gather()
        return self._uneventful

    def idle_rules(self) -> list[str]:
        """Return a sentence for each of the impairment's own rules that has never decided anything."""
        return self._own.idle()

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        """Set another impairment for the frames from now on.

        restart: flows and the direction count from 1 again; None: as `restarts` says. A replay sets it, to restart where
        the recorded run did. Raises what the constructor does, and then nothing has changed.
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
            own = RuleSet(self._own.fields, tallies=self._own.tallies)
            for place, rule in enumerate(impairment.rules):
                own.add(now, rule, f"declared {place}")
            self._own = own
        # Nothing fails from here on.
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
            if self._kept is not None:
                self._go_on(self._kept)
        self._more_chances = bool(
            corrupt or duplicate or reorder or self._gemodel or pattern or jitter is not None or steps
        )
        self._chances = bool(loss) or self._more_chances
        self._judging = self._injected is not None or len(self._own) > 0
        self.is_idle = not (self._chances or self._judging)
        if not self.is_idle and self.flows is None:
            if self._classifier is None:
                self._classifier = Classifier(self._own.fields)
            kept = self._kept if self._chances else None  # rules have counts of their own
            self.flows = Flows(self._key, self._classifier, self._epoch, kept, self._place)
        self._gather()

    def _go_on(self, kept: Tallies) -> None:
        """Count on where the process before left off, if it had the same impairment. Kept are the number of the last frame
        and the state in which Gilbert-Elliott found it."""
        deciding = [getattr(self._impairment, key) for key in _DECIDING]
        self._numbers, self._place = kept.cell(("direction", self._link, self._name, *deciding))
        self._n, bad = divmod(self._numbers[self._place], 2)
        epochs, place = kept.cell(("epoch",), self._place)
        self._epoch = epochs[place] = epochs[place] or self._epoch
        if self._gemodel is not None and self._n:
            self._gemodel.stand(bad=bool(bad))
            self._gemodel.step(self._n)

    @property
    def spread(self) -> int:
        """Maximum of nanoseconds that jitter adds to the delay; the typical value of an unbounded distribution."""
        return max(self._steps) if self._steps else self._impairment.jitter

    def decide(self, now: int, frame: bytes) -> Verdict | None:
        """Decide on the next frame; None: it passes unchanged. Without flows (`is_idle`) nothing is counted."""
        flows = self.flows
        if flows is None:
            return None
        injected = self._injected
        if injected is not None and injected.version != self._version:
            self._gather()
        self._n = number = self._n + 1
        if self._numbers is not None and self._more_chances:
            self._numbers[self._place] = (
                number + number if self._gemodel is None else number + number + self._gemodel.bad
            )
        if self.loss:
            counted = flows.lost(flows.known(frame), self.loss)
            return None if counted is None else self.lose(counted)
        counted, located = flows.count(frame)
        if self._uneventful:
            return None
        decided: Fate | None = None
        if self._judges:
            decided = self._judge(now, frame, located, counted)
            if decided is not None and decided.drop:
                if self._gemodel is not None:
                    self._gemodel.step(number)
                return _BY_RULE
        if not self._chances:
            return None if decided is None else self._carried_out(decided, frame, located)
        return self._by_chance(frame, number, counted, decided, located)

    def count(self, frame: bytes, frames: int) -> None:
        """Count a GSO frame of two or more frames of one flow, which all pass (`is_uneventful`)."""
        if self.flows is not None:
            self._n += frames
            self.flows.count(frame)
            counted, _ = self.flows.count(frame)  # from its second frame on a flow is remembered
            self.flows.count_more(counted, frames - 2)

    def passed(self, frames: int) -> None:
        """Count frames that the caller has counted in `flows` and decided on by `loss` alone."""
        self._n += frames

    def lose(self, counted: Counted) -> Verdict:
        """Log the independent loss of a frame of that flow."""
        self._record(counted, fates.LOSS, fates.DROP)
        return LOST

    def _by_chance(
        self, frame: bytes, number: int, counted: Counted, decided: Fate | None, located: Located
    ) -> Verdict | None:
        """Decide on a frame by chance. number: the frame's in the direction. decided: the fate by a rule."""
        n = counted.n
        loss, corrupt, duplicate, reorder = self._thresholds
        gone = self._gemodel is not None and self._gemodel.step(number)
        if loss and _draw(counted.start_of_loss(), n) >> 11 < loss:
            return self.lose(counted)
        if decided is None and not self._more_chances:
            return None
        if gone:
            self._record(counted, fates.GEMODEL, fates.DROP)
            return _BY_GEMODEL
        if self._pattern is not None and self._pattern.loses(number):
            self._record(counted, fates.PATTERN, fates.DROP)
            return _BY_PATTERN
        spread = late = 0
        copy = skip = flipped = altered = False
        if decided is not None:
            altered = decided.changes
            _, frame, _, late, copy, skip, flipped = self._carried_out(decided, frame, located)
        # Where a rule changes bits, chance does not: both choose the same bits, and would undo each other; and checks are
        # mended by the rule, and not after chance.
        if corrupt and not altered and _draw(counted.start(fate_hash.CORRUPT), n) >> 11 < corrupt:
            positions = choose_bits(counted.start(fate_hash.BITS), n, self._impairment.corrupt_bits or 1, len(frame))
            frame = flip_bits(frame, positions)
            flipped = True
            self._record(counted, fates.CORRUPT, Fate(flips=len(positions), positions=positions))
        if duplicate and _draw(counted.start(fate_hash.DUPLICATE), n) >> 11 < duplicate:
            copy = True
            self._record(counted, fates.TWICE, fates.DUPLICATE)
        if reorder and _draw(counted.start(fate_hash.REORDER), n) >> 11 < reorder:
            skip = True
            self._record(counted, fates.SKIP, fates.REORDER)
        if self._jitter is not None:
            spread = self._jitter.at(counted.start(fate_hash.JITTER), n)
        elif self._steps:
            spread = self._steps[(number - 1) % len(self._steps)]
        elif not (copy or skip or flipped or altered or late):
            return None
        return Verdict(_ACCEPTED, frame, spread, late, copy, skip, flipped)

    def _judge(self, now: int, frame: bytes, located: Located, counted: Counted) -> Fate | None:
        for judge in self._judges:
            fate = judge.judge(now, frame, located, counted)
            if fate is not None:
                if fate.changes:
                    fate = resolve(fate, self._own.fields, frame, located, counted.start(fate_hash.BITS), counted.n)
                    if fate == PASS:  # the frame has none of the fields
                        continue
                self._record(counted, fates.RULE, fate, judge.text)
                return fate
        return None

    def _carried_out(self, fate: Fate, frame: bytes, located: Located) -> Verdict:
        """Make the verdict of a rule's fate."""
        if fate.changes:
            frame = apply_changes(fate, self._own.fields, frame, located)
        return Verdict(_ACCEPTED, frame, 0, fate.delay, fate.duplicate, fate.reorder, bool(fate.flips))

    def _record(self, counted: Counted, cause: str, fate: Fate, detail: str = "") -> None:
        if self._log is not None:
            epoch, flow, n = counted.epoch, counted.flow, counted.n
            self._log(Record(self._link, self._name, epoch, flow, n, cause, fate, detail))

    def _gather(self) -> None:
        """Collect the rules in force, injected ones first: they override the impairment's own."""
        injected = self._injected
        self._judges = self._own.judges(self._link, self._name)
        if injected is not None:
            self._judges = injected.judges(self._link, self._name) + self._judges
            self._version = injected.version
        self._uneventful = not (self._judges or self._chances)
        self.loss = 0 if self._judges or self._more_chances else self._thresholds[0]


def restarts(before: Impairment, after: Impairment) -> bool:
    """Whether a change of impairment restarts the counts of frames from 1.

    A change of random events, patterns or rules does. One of delay, rate or queue alone does not, so that it changes no
    frame's fate.
    """
    return any(getattr(before, key) != getattr(after, key) for key in _DECIDING)
