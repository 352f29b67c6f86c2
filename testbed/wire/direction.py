"""One direction of a link: frames go in, and come out later, elsewhere in order, changed, twice or not at all.

The order in which a frame meets what can happen to it:

1. rules: the first that does not pass it decides; a drop ends here, everything else is carried out below;
2. loss: independent, then Gilbert-Elliott, then the pattern (all three step with every frame offered);
3. corruption, 4. duplication: the copy, as corrupt as its original, follows it at once;
5. the wire: one frame after the other at the rate, from a bounded queue that drops what does not fit (or, with
   back-pressure, blocks), a frame leaving the queue when its first bit does;
6. propagation: delay and jitter. Order is kept: a frame is never delivered before one that was sent before it, except
   that a reordered frame skips the delay, and that frames may overtake one that a rule delays.

All of it is decided when a frame is offered; what is under way keeps its schedule whatever changes later. Calls give
times in nanoseconds that never go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal

from testbed.errors import DescriptionError, Problem
from testbed.spec.contradictions import contradictions
from testbed.spec.layout import Impairment
from testbed.wire import fates, hashing
from testbed.wire.corruption import choose, flip
from testbed.wire.counters import Outcome
from testbed.wire.fates import Fate, Record
from testbed.wire.fields import Fields, Located
from testbed.wire.flows import Classifier, Counted, Flows
from testbed.wire.headers import standard_fields
from testbed.wire.jitter import Jitter, jitter_of, parse_trace
from testbed.wire.line import NOTHING, Delivery, Line, delivery_trace, text_of
from testbed.wire.losses import GilbertElliott, Pattern
from testbed.wire.rules import Judge, RuleSet

__all__ = ["Delivery", "Direction", "Outcome"]

_DECIDING: Final = (
    "loss", "corrupt", "corrupt_bits", "duplicate", "reorder", "gemodel", "loss_pattern", "rules", "jitter",
    "distribution", "jitter_file",
)  # fmt: skip
_USUAL_FIELDS: Final = standard_fields()
_ACCEPTED: Final = Outcome.ACCEPTED
_draw: Final = hashing.draw


class Direction(Line):
    """The model of one direction of a link.

    offer a frame; poll when `deadline` says so; change what it does at any time. on_space is called from within `poll`
    or `change`.
    """

    __slots__ = (
        "_beyond", "_chances", "_classifier", "_epoch", "_flows", "_gemodel", "_injected", "_jitter", "_judges", "_judging",
        "_key", "_link", "_log", "_loss", "_more_chances", "_n", "_name", "_own", "_pattern", "_plain", "_steps",
        "_thresholds", "_uneventful", "_version",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: Literal["forward", "backward"],
        impairment: Impairment = NOTHING,
        *,
        seed: int,
        now: int = 0,
        rules: RuleSet | None = None,
        fields: Fields | None = None,
        classifier: Classifier | None = None,
        files: Mapping[str, str] | None = None,
        backpressure: bool = False,
        log: Callable[[Record], object] | None = None,
        on_space: Callable[[int], object] | None = None,
    ) -> None:
        """rules: those injected, shared with other directions; without them, a direction that leaves nothing to chance
        does not even count its flows. fields: which protocols name flow keys; rules, if given, bring theirs.
        classifier: of these fields, to be shared with other directions. files: path -> text of the files that the
        impairment names. backpressure: a full queue blocks instead of dropping. log: is given every fate that is not a
        pass.

        Raises DescriptionError for contradictions, BrokenFileError for a broken file, RuleError for a broken rule.
        """
        super().__init__(now, backpressure, on_space)
        self._link = link
        self._name = direction
        self._key = hashing.direction_key(seed, link, direction)
        self._injected = rules
        self._log = log
        self._epoch = -1  # how often frames have been counted from 1 again
        self._n = 0  # frames offered since what decides fates was set
        self._flows: Flows | None = None
        self._version = -1
        self._uneventful = False  # nothing can happen to a frame
        self._beyond = 0  # frames under way in pieces, but for one of each
        self._loss = 0  # nothing but an independent loss can, of this threshold
        self._judges: list[Judge] = []
        self._own = RuleSet(rules.fields if rules is not None else fields or _USUAL_FIELDS)
        self._classifier = classifier
        self._set(now, impairment, files or {}, restart=True)

    @property
    def impairment(self) -> Impairment:
        return self._impairment

    @property
    def held(self) -> int:
        return super().held + self._beyond

    @property
    def carries_pieces(self) -> bool:
        """Whether a piece of several frames, as a sender's offloads leave it, may stay one: those that are offered at one
        time leave at one time, and nothing can happen to one of them. It is so until the next `change` or rule."""
        if self._injected is not None and self._injected.version != self._version:
            self._gather()
        return self._uneventful and not (self._rate or self._shaped)

    def offer_piece(self, now: int, piece: bytes, frames: int) -> None:
        """So many frames, two or more, of one flow in a piece, which comes out as it is; only where `carries_pieces`. They
        count one by one, and `count_piece` must be told when they have come out."""
        if self._flows is not None:
            self._n += frames
            self._flows.count(piece)
            self._flows.count(piece)[0].n += frames - 2  # from its second frame on a flow is remembered
        self._counters.offered += frames
        self._beyond += frames - 1
        self._put(now, piece, self._delay)

    def count_piece(self, frames: int, octets: int) -> None:
        """`poll` has given a piece of so many frames, which as frames are so many bytes longer."""
        self._counters.delivered += frames - 1
        self._counters.delivered_bytes += octets
        self._beyond -= frames - 1

    def idle_rules(self) -> list[str]:
        """A sentence for each of the impairment's own rules that has never decided anything."""
        return self._own.idle()

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        """Another impairment for frames offered from now on.

        restart: flows and the direction count from 1 again; if not said, where `restarts` says so. A replay says it, to
        begin anew where the run did that it repeats. Raises what the constructor does, and then nothing has changed.
        """
        if restart is None:
            restart = restarts(self._impairment, impairment)
        self._set(now, impairment, files or {}, restart)
        if self._space is not None:
            self._space = now
            self._look_ahead()
            self._tell_of_space(now)

    def offer(self, now: int, frame: bytes) -> Outcome:
        """A frame enters: the bytes from its destination on, without a frame check sequence. BLOCKED leaves everything
        as it was."""
        if not self._plain:
            injected, flows, loss = self._injected, self._flows, self._loss
            if flows is None or (injected is not None and injected.version != self._version):
                return self._offer_with_chances(now, frame)
            if loss:
                self._n += 1
                counted = flows.lost(flows.known(frame), loss)
                if counted is not None:
                    self._counters.offered += 1
                    self._counters.loss += 1
                    return self._lost(counted, Outcome.LOSS)
            elif self._uneventful:  # a rule may come: frames count
                self._n += 1
                flows.count(frame)
            else:
                return self._offer_with_chances(now, frame)
        # Rate and delay only: nothing is drawn.
        if self._shaped:
            return self._offer_shaped(now, frame)
        if not self._put(now, frame, self._delay):
            return self._full(now, len(frame))
        self._counters.offered += 1
        return _ACCEPTED

    def _offer_shaped(self, now: int, frame: bytes) -> Outcome:
        """Rate and delay, with a minimum frame, overhead or cells."""
        if self._busy > now and not self._room(now, len(frame)):
            return self._full(now, len(frame))
        self._counters.offered += 1
        self._send(now, frame, self._delay, skip=False, late=0)
        return _ACCEPTED

    def _offer_with_chances(self, now: int, frame: bytes) -> Outcome:
        counters = self._counters
        size = len(frame)
        if self._backpressure and self._is_busy(now) and not self._room(now, size):
            self._block_until_space(now, size)
            return Outcome.BLOCKED
        counters.offered += 1
        self._n = number = self._n + 1
        flows = self._flows
        if flows is None:
            raise AssertionError("a direction with chances has flows")
        counted, located = flows.count(frame)
        n = counted.n
        decided: Fate | None = None
        if self._judging:
            if self._injected is not None and self._injected.version != self._version:
                self._gather()
            if self._judges:
                decided = self._judge(now, frame, located, counted)
                if decided is not None and decided.drop:
                    if self._gemodel is not None:
                        self._gemodel.step(number)
                    counters.rule += 1
                    return Outcome.RULE
        delay = self._delay
        if self._chances:
            loss, corrupt, duplicate, reorder = self._thresholds
            gemodel = self._gemodel
            gone = gemodel is not None and gemodel.step(number)
            if loss and _draw(counted.loss, n) >> 11 < loss:
                counters.loss += 1
                return self._lost(counted, Outcome.LOSS)
            if gone:
                counters.gemodel += 1
                return self._lost(counted, Outcome.GEMODEL)
            if self._pattern is not None and self._pattern.loses(number):
                counters.loss_pattern += 1
                return self._lost(counted, Outcome.PATTERN)
            # Where a rule flips bits, chance does not: both take the same ones and would undo each other.
            flipped = decided is not None and decided.flips
            if corrupt and not flipped and hashing.draw(counted.corrupt, n) >> 11 < corrupt:
                positions = choose(counted.bits, n, self._impairment.corrupt_bits or 1, size)
                frame = flip(frame, positions)
                counters.corrupted += 1
                self._record(counted, fates.CORRUPT, Fate(flips=len(positions), positions=positions))
            copy = bool(duplicate) and hashing.draw(counted.duplicate, n) >> 11 < duplicate
            if copy:
                self._record(counted, fates.TWICE, fates.DUPLICATE)
            skip = bool(reorder) and hashing.draw(counted.reorder, n) >> 11 < reorder
            if skip:
                self._record(counted, fates.SKIP, fates.REORDER)
            if self._jitter is not None:
                delay += self._jitter.at(counted.jitter, n)
            elif self._steps:
                delay += self._steps[(number - 1) % len(self._steps)]
            if delay < 0:
                delay = 0
        else:
            copy = skip = False
        late = 0
        if decided is not None:
            if decided.positions:
                frame = flip(frame, decided.positions)
                counters.corrupted += 1
            copy, skip, late = copy or decided.duplicate, skip or decided.reorder, decided.delay
            counters.delayed += late > 0
        if not (copy or skip or late or self._shaped or self._opportunities):
            if self._put(now, frame, delay):
                return _ACCEPTED
            counters.queue += 1
            return Outcome.QUEUE
        if self._is_busy(now) and not self._room(now, size):
            counters.queue += 1
            return Outcome.QUEUE
        counters.reordered += skip
        self._send(now, frame, delay, skip, late)
        if copy:
            counters.duplicated += 1
            if self._is_busy(now) and not self._room(now, size):
                counters.queue += 1
            else:
                self._send(now, frame, delay, skip, late)
        return _ACCEPTED

    def _judge(self, now: int, frame: bytes, located: Located, counted: Counted) -> Fate | None:
        for judge in self._judges:
            fate = judge.judge(now, frame, located, counted)
            if fate is not None:
                if fate.flips and not fate.positions:
                    positions = choose(counted.bits, counted.n, fate.flips, len(frame))
                    fate = replace(fate, flips=len(positions), positions=positions)
                self._record(counted, fates.RULE, fate, judge.text)
                return fate
        return None

    def _lost(self, counted: Counted, outcome: Outcome) -> Outcome:
        self._record(counted, outcome.value, fates.DROP)
        return outcome

    def _record(self, counted: Counted, cause: str, fate: Fate, detail: str = "") -> None:
        if self._log is not None:
            epoch, flow, n = counted.epoch, counted.flow, counted.n
            self._log(Record(self._link, self._name, epoch, flow, n, cause, fate, detail))

    def _gather(self) -> None:
        """The rules in force: those injected come first, being the later word."""
        injected = self._injected
        self._judges = self._own.judges(self._link, self._name)
        if injected is not None:
            self._judges = injected.judges(self._link, self._name) + self._judges
            self._version = injected.version
        # With back-pressure a frame that is blocked does not count.
        usual = not (self._judges or self._opportunities or self._backpressure)
        self._uneventful = usual and not self._chances
        self._loss = self._thresholds[0] if usual and not self._more_chances else 0

    def _set(self, now: int, impairment: Impairment, files: Mapping[str, str], restart: bool) -> None:
        """Everything that can fail comes first."""
        _refuse(self._link, self._name, impairment)
        trace = delivery_trace(impairment, files)
        jitter: Jitter | None = None
        steps: tuple[int, ...] = ()
        if impairment.distribution == "trace":
            steps = parse_trace(text_of(files, impairment.jitter_file), impairment.jitter_file)
        elif impairment.jitter:
            text = text_of(files, impairment.jitter_file) if impairment.jitter_file else ""
            jitter = jitter_of(impairment.distribution, impairment.jitter, impairment.jitter_file, text)
        pattern = Pattern(impairment.loss_pattern) if impairment.loss_pattern else None
        if impairment.rules != self._impairment.rules:
            own = RuleSet(self._own.fields)
            for rule in impairment.rules:
                own.add(now, rule)
            self._own = own
        shares = (impairment.loss, impairment.corrupt, impairment.duplicate, impairment.reorder)
        self._thresholds = loss, corrupt, duplicate, reorder = tuple([hashing.threshold(share) for share in shares])
        self._lay(now, impairment, trace, max(steps) if steps else impairment.jitter)
        self._jitter = jitter
        self._steps = steps
        self._pattern = pattern
        if restart:
            self._epoch += 1
            self._n = 0
            self._flows = None
            self._gemodel = GilbertElliott(impairment.gemodel, self._key) if impairment.gemodel else None
        self._more_chances = bool(
            corrupt or duplicate or reorder or self._gemodel or pattern or jitter is not None or steps
        )
        self._chances = bool(loss) or self._more_chances
        self._judging = self._injected is not None or len(self._own) > 0
        self._plain = not (self._chances or self._judging or trace)
        if not self._plain and self._flows is None:
            if self._classifier is None:
                self._classifier = Classifier(self._own.fields)
            self._flows = Flows(self._key, self._classifier, self._epoch)
        self._gather()


def restarts(before: Impairment, after: Impairment) -> bool:
    """The impairment that decides fates is another, so that frames are counted from 1 again.

    That is everything which leaves something to chance, patterns, and rules. A change of delay, rate or queue alone lets
    the counting go on, so that it shifts nobody's fate.
    """
    return any(getattr(before, key) != getattr(after, key) for key in _DECIDING)


def _refuse(link: str, direction: str, impairment: Impairment) -> None:
    """DescriptionError for what contradicts itself or is out of range."""
    found = [Problem(key, what, expected) for key, what, expected in contradictions(impairment, settled=True)]
    for key in ("delay", "jitter", "rate", "queue", "queue_frames", "corrupt_bits", "minimum_frame", "cell_size"):
        if getattr(impairment, key) < 0:
            found.append(Problem(key, str(getattr(impairment, key)), "0 or more"))
    for key in ("loss", "corrupt", "duplicate", "reorder"):
        if not 0.0 <= getattr(impairment, key) <= 1.0:
            found.append(Problem(key, str(getattr(impairment, key)), "a probability, 0 to 1"))
    if impairment.gemodel and (
        len(impairment.gemodel) != 4 or not all(0 <= share <= 1 for share in impairment.gemodel)
    ):
        found.append(Problem("gemodel", str(impairment.gemodel), "four probabilities: p, r, 1-h, 1-k"))
    if found:
        raise DescriptionError(f"{link} {direction}", found)
