"""Sends probes, so many at a time and so many a second, and again if they seem to be lost.

Silence says that there is nothing, or that a probe or its answer was lost. How often a probe is sent before its silence is
believed depends on how many cables it and its answer would have taken, and on what was lost so far: of the probes that were
answered in the end, how many tries were not. How long its answer is waited for, on how long answers take: a host may have
other things to do. An answer that comes late still counts, as long as its probe is of interest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Final, Protocol

from protocols.am2.mapper.counters import Counters
from protocols.am2.mapper.pacer import Pacer
from protocols.am2.mapper.settings import Settings
from protocols.core.timers import Timers
from protocols.myrinet.envelope import Route

_BELIEF: Final = 1e-5
"""A probe whose answer would have come is judged silent with about this probability."""
_REMEMBERED: Final = 1024
"""Probes whose answers may still come."""
_PRIOR: Final = (1, 100)
"""Tries lost, and cables that tries would have taken, before anything is known."""


@dataclass(frozen=True, slots=True)
class Found:
    """A host that has answered. number: its node's. epoch and author: of the routes that it has."""

    number: int
    incarnation: int
    address: bytes
    epoch: int = 0
    author: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """route: for a host, to it; otherwise there and back again. about: which switch (or entry) and port this is about."""

    host: bool
    route: Route
    about: tuple[int, int] = (0, 0)

    @property
    def cables(self) -> int:
        """That it takes, with its answer."""
        return (1 + self.host) * (len(self.route) + 1)


Answer = Found | None
"""Who has answered; None: the probe itself has come back."""


class Batch(Protocol):
    """Probes that do not wait for each other."""

    @property
    def probes(self) -> Sequence[Probe]: ...

    @property
    def once(self) -> bool:
        """Silence is believed at once."""
        ...

    def wanted(self, probe: Probe) -> bool:
        """Its answer would still say something new."""
        ...

    def answered(self, probe: Probe, answer: Answer) -> None: ...


@dataclass(slots=True)
class _Try:
    """number: of its last try. done: it is answered, or its silence is believed."""

    probe: Probe
    tries: int = 0
    number: int = 0
    done: bool = False


class _Patience:
    """How long an answer may take: three times what the middle one of the last took. Those few that waited for a circle of
    frames to be broken have no part in it."""

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
    """One batch after the other. send: sends a probe with that number."""

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
        self._sent: dict[int, tuple[int, _Try]] = {}  # the last probes by number: when, and which
        self._number = 0
        self._lost, self._cables = _PRIOR

    @property
    def busy(self) -> bool:
        """The batch is not over."""
        return self._batch is not None

    @property
    def lossy(self) -> bool:
        """Probes were lost that should have been answered."""
        return self._lost > _PRIOR[0]

    def tries(self, probe: Probe) -> int:
        """How often it is sent."""
        settings, lost = self._settings, self._lost / self._cables
        if lost >= 1:
            return settings.most
        gone = 1 - (1 - lost) ** probe.cables
        needed = log(_BELIEF) / log(gone) if gone < 1 else settings.most
        return min(max(ceil(needed), settings.least), settings.most)

    @property
    def deadline(self) -> int | None:
        """When `tick` has something to do."""
        if self._queue and len(self._waiting) < self._settings.window:
            return self._pacer.free
        return self._timers.deadline

    def run(self, now: int, batch: Batch) -> None:
        """Begin another batch; what was under way is of no interest any more."""
        self.stop()
        self._batch = batch
        self._queue.extend(map(_Try, batch.probes))
        self.tick(now)

    def stop(self) -> None:
        self._batch = None
        for sent in (*self._queue, *self._waiting.values()):
            sent.done = True
        self._queue.clear()
        self._waiting.clear()
        self._timers = Timers()

    def answer(self, now: int, number: int, answer: Answer) -> None:
        """The probe of that number is answered."""
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
        self.tick(now)

    def tick(self, now: int) -> None:
        """Send what may be sent, and see what is lost."""
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
            self._timers.set(number, now + self._patience.time)
            self._counters.probes_sent += 1
            self._send(sent.probe, number)
        if not queue and not waiting:
            self._batch = None
