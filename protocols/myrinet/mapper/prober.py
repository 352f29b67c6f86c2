"""Sending of probes, with a limited window and rate, and with retries of those that seem lost.

Silence means that nothing is there, or that a probe or its answer was lost. The number of tries before silence is
believed depends on the number of cables that the probe and its answer would take, and on the losses so far: the
unanswered tries of probes that were answered in the end. The time allowed for an answer depends on how long answers
take, since hosts may be busy. A late answer still counts, as long as its probe matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Final, Protocol

from protocols.core.timers import Timers
from protocols.myrinet.envelope import Route
from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.settings import Settings

_BELIEF: Final = 1e-5
"""Probability with which a probe is judged silent though it would be answered, approximately."""
_REMEMBERED: Final = 1024
"""Number of probes whose late answers are recognised."""
_PRIOR: Final = (1, 100)
"""Initial estimate: tries lost, and cables that tries have taken."""


class Pacer:
    """A rate limit. interval: nanoseconds between two frames on average. burst: frames that may follow each other at
    once."""

    __slots__ = ("_interval", "_slack", "_when")

    def __init__(self, interval: int, burst: int) -> None:
        self._interval = interval
        self._slack = (burst - 1) * interval
        self._when = 0  # due time of the next frame, if all had been sent at equal intervals

    @property
    def free(self) -> int:
        """Time from which a frame may be sent."""
        return self._when - self._slack

    def take(self, now: int) -> bool:
        """Count a frame if it may be sent now; returns whether it may."""
        if now < self.free:
            return False
        self._when = max(self._when, now) + self._interval
        return True


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """A host that has answered. number: its node's. epoch, author: of its route table."""

    number: int
    incarnation: int
    address: bytes
    epoch: int = 0
    author: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe. route: to a host; for a switch, there and back. about: the switch (or entry) and port that it tests."""

    host: bool
    route: Route
    about: tuple[int, int] = (0, 0)

    @property
    def cables(self) -> int:
        """Number of cables that it takes, with its answer."""
        return (1 + self.host) * (len(self.route) + 1)


Answer = HostAnswer | None
"""The host that has answered; None: the probe itself has returned."""


class Batch(Protocol):
    """Probes that do not depend on each other."""

    @property
    def probes(self) -> Sequence[Probe]: ...

    @property
    def once(self) -> bool:
        """Whether silence is believed after one try."""
        ...

    @property
    def is_patient(self) -> bool:
        """Whether each try waits twice as long as the one before: silence would change the map, and may be that of hosts
        that are busy."""
        ...

    def wanted(self, probe: Probe) -> bool:
        """Whether its answer would still be informative."""
        ...

    def answered(self, probe: Probe, answer: Answer) -> None: ...


@dataclass(slots=True)
class _Try:
    """State of a probe. number: of its last try. done: it is answered, or its silence is believed."""

    probe: Probe
    tries: int = 0
    number: int = 0
    done: bool = False


class _Patience:
    """Time allowed for an answer: three times the median of the last ones. The median excludes the rare answers that
    waited for a deadlock of frames to be broken."""

    __slots__ = ("_last", "_least", "_most")

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._last: deque[int] = deque(maxlen=64)

    @property
    def time(self) -> int:
        last = self._last
        return min(max(3 * sorted(last)[len(last) // 2], self._least), self._most) if last else self._least

    def learn(self, took: int) -> None:
        self._last.append(took)


class Prober:
    """Runs one batch after the other. send: sends a probe with that number."""

    __slots__ = (
        "_batch", "_cables", "_counters", "_lost", "_number", "_pacer", "_patience", "_queue", "_send", "_sent", "_settings",
        "_timers", "_waiting",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, counters: Counters, pacer: Pacer, send: Callable[[Probe, int], None]
    ) -> None:
        self._settings, self._counters, self._pacer, self._send = settings, counters, pacer, send
        self._batch: Batch | None = None
        self._queue: deque[_Try] = deque()
        self._waiting: dict[int, _Try] = {}
        self._timers: Timers[int] = Timers()
        self._patience = _Patience(settings.timeout, settings.longest_timeout)
        self._sent: dict[int, tuple[int, _Try]] = {}  # the last probes by number: time sent, and the try
        self._number = 0
        self._lost, self._cables = _PRIOR

    @property
    def busy(self) -> bool:
        """Whether a batch is in progress."""
        return self._batch is not None

    @property
    def lossy(self) -> bool:
        """Whether probes were lost that should have been answered."""
        return self._lost > _PRIOR[0]

    def tries(self, probe: Probe) -> int:
        """Return the number of tries for a probe."""
        settings, lost = self._settings, self._lost / self._cables
        if lost >= 1:
            return settings.most
        gone = 1 - (1 - lost) ** probe.cables
        needed = log(_BELIEF) / log(gone) if gone < 1 else settings.most
        return min(max(ceil(needed), settings.least), settings.most)

    @property
    def deadline(self) -> int | None:
        """Time at which `tick` is due, or None."""
        if self._queue and len(self._waiting) < self._settings.window:
            return self._pacer.free
        return self._timers.deadline

    def run(self, now: int, batch: Batch) -> None:
        """Begin a batch; an unfinished one is abandoned."""
        self.stop()
        self._batch = batch
        self._queue.extend(map(_Try, batch.probes))
        self.on_timer(now)

    def stop(self) -> None:
        self._batch = None
        for sent in (*self._queue, *self._waiting.values()):
            sent.done = True
        self._queue.clear()
        self._waiting.clear()
        self._timers = Timers()

    def answer(self, now: int, number: int, answer: Answer) -> None:
        """Handle the answer to the probe of that number."""
        when, sent = self._sent.pop(number, (0, None))
        if sent is None or sent.probe.host != (answer is not None):
            self._counters.late_answers += 1
            return
        self._patience.learn(now - when)
        batch = self._batch
        if sent.number != number:
            self._counters.late_answers += 1
        if sent.done or batch is None:
            return
        sent.done = True
        if self._waiting.pop(sent.number, None) is not None:
            self._timers.cancel(sent.number)
        self._counters.answers_received += 1
        self._cables += sent.tries * sent.probe.cables
        self._lost += sent.tries - 1
        batch.answered(sent.probe, answer)
        self.on_timer(now)

    def on_timer(self, now: int) -> None:
        """Send the probes that may be sent, and detect lost ones."""
        batch = self._batch
        if batch is None:
            return
        for number in self._timers.expired(now):
            sent = self._waiting.pop(number)
            if not batch.wanted(sent.probe):
                continue
            if sent.tries < (1 if batch.once else self.tries(sent.probe)):
                self._queue.append(sent)
            else:
                sent.done = True
                self._counters.silent += 1
        queue, waiting, settings = self._queue, self._waiting, self._settings
        while queue and len(waiting) < settings.window:
            if queue[0].done or not batch.wanted(queue[0].probe):
                queue.popleft()
                continue
            if not self._pacer.take(now):
                return
            sent = queue.popleft()
            sent.tries += 1
            self._number = sent.number = number = self._number + 1 & 0xFFFF_FFFF
            waiting[number] = sent
            self._sent[number] = now, sent
            if len(self._sent) > _REMEMBERED:
                del self._sent[next(iter(self._sent))]
            wait = self._patience.time
            if batch.is_patient:
                wait = min(wait << sent.tries - 1, settings.longest_timeout)
            self._timers.set(number, now + wait)
            self._counters.probes_sent += 1
            self._send(sent.probe, number)
        if not queue and not waiting:
            self._batch = None
