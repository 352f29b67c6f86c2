"""The send and the receive table: logical channels between two NICs, on each of which one packet at a time is unanswered.

"At-most-once delivery: stop and wait on many independent logical channels" (Chun, Mainwaring, Culler, "Transport
protocols"). With 2 sequence numbers a channel is the alternating-bit protocol; that stands on a network which keeps frames
in order. There is no timer for a packet: what has not been answered is looked for from time to time, and only where there
is any.

A channel that is given up with a packet unanswered is in doubt: the peer may or may not have taken it. The paper marks its
sequence number as uninitialised; here its generation grows, and a receiver takes the first packet of a generation as it is
and none of an earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final, Generic, TypeVar

from protocols.am2.settings import Settings

Packet = TypeVar("Packet")

_GENERATIONS: Final = 1 << 8
_STAMPS: Final = 1 << 32


class Sending(Generic[Packet]):
    """One row of the send table, which is a channel's. packet: what is unanswered; None: the channel is free. stamp: of its
    last sending; first: of its first one, at the time begun. due: when it is sent again. retries: how often that has
    happened since the peer was last heard about it. refused: the last sending was answered with a refusal that passes, so
    that no copy of it is under way any more."""

    __slots__ = (
        "begun", "channel", "due", "first", "generation", "packet", "patience", "refused", "retries", "sequence", "stamp",
    )  # fmt: skip

    def __init__(self, channel: int) -> None:
        self.channel: Final = channel
        self.generation = 0
        self.sequence = 0
        self.packet: Packet | None = None
        self.stamp = 0
        self.first = 0
        self.begun = 0
        self.due = 0
        self.patience = 0
        self.retries = 0
        self.refused = False


class Outgoing(Generic[Packet]):
    """The send table for one peer. Times are nanoseconds.

    Answers echo the stamp of the sending that they answer: so what a round trip takes is known of packets that were sent
    again, too. Where round trips are long, as both hosts have other work or a queue is full, a packet waits for as long as
    RFC 6298 says, at least the settings' time-out and at most the longest: else most of what is sent again would have
    arrived, and the work that this makes on both sides would make round trips longer still."""

    __slots__ = (
        "_long", "_rows", "_sequences", "_settings", "_stamp", "_trip", "_variation", "free", "patience", "unanswered",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sequences = settings.sequences - 1
        self._rows: list[Sending[Packet]] = [Sending(channel) for channel in range(settings.channels)]
        self.free = deque(self._rows)
        """Rows without a packet: the one that has been free for longest is the next."""
        self._stamp = 0
        self._long = settings.timeout // 3  # shorter round trips are no matter, unless there have been longer ones
        self._trip = 0
        self._variation = 0
        self.patience = settings.timeout
        """Without an answer, after a first sending."""
        self.unanswered = 0
        """Channels that are not free."""

    @property
    def is_full(self) -> bool:
        return not self.free

    def begin(self, now: int, packet: Packet) -> Sending[Packet] | None:
        """A channel for a packet that is sent now; None while none is free."""
        if not self.free:
            return None
        row = self.free.popleft()
        row.packet = packet
        row.retries = 0
        self.unanswered += 1
        # `_sent`, without the call: every packet comes by here.
        self._stamp = row.stamp = row.first = (self._stamp + 1) % _STAMPS
        row.refused = False
        row.patience = patience = self.patience
        row.begun = now
        row.due = now + patience
        return row

    def answered(self, now: int, channel: int, generation: int, sequence: int, stamp: int) -> Packet | None:
        """The peer has taken, or undone, the packet: it, or None where that was known. The channel is free."""
        row = self._row(channel, generation, sequence)
        if row is None:
            return None
        if stamp == row.first:
            took = now - row.begun
            if took > self._long or self._trip:
                self._learn(took)
        elif stamp == row.stamp and not row.refused:
            self._learn(now - row.due + row.patience)
        row.sequence = (row.sequence + 1) & self._sequences
        packet = row.packet
        row.packet = None
        self.free.append(row)
        self.unanswered -= 1
        return packet

    def refused(self, now: int, channel: int, generation: int, sequence: int, stamp: int) -> Sending[Packet] | None:
        """The peer cannot take the packet for the time being: its row; None if this is about another packet, or about an
        earlier sending of this one, of which a later may have been taken."""
        row = self._row(channel, generation, sequence)
        if row is None or row.stamp != stamp:
            return None
        row.refused = True
        row.retries = 0
        row.patience = self.patience
        row.due = now + self._settings.refused
        return row

    def take_back(self, row: Sending[Packet]) -> Packet:
        """A packet whose last sending was refused: no copy of it will be taken any more. Its channel is free, its sequence
        number the next packet's."""
        if not row.refused:
            raise ValueError(f"channel {row.channel}: what may be under way cannot be taken back")
        return self._released(row)

    def give_up(self, row: Sending[Packet]) -> Packet:
        """A packet that has not been answered; the peer may have taken it."""
        row.generation = (row.generation + 1) % _GENERATIONS
        row.sequence = 0
        return self._released(row)

    def due(self, now: int) -> Iterator[Sending[Packet]]:
        """What is to be sent again, or given up: see `is_hopeless` and `again`."""
        for row in self._rows:
            if row.packet is not None and row.due <= now:
                yield row

    def is_hopeless(self, row: Sending[Packet]) -> bool:
        """It has been sent as often as it may."""
        return row.retries >= self._settings.retries

    def again(self, now: int, row: Sending[Packet]) -> None:
        """It is sent once more."""
        row.retries += 1
        self._sent(now, row, min(2 * row.patience, self._settings.longest_timeout))

    def once(self, now: int, row: Sending[Packet]) -> None:
        """It has just been sent, and is not sent again: what comes late is waited for."""
        row.retries = self._settings.retries
        row.patience = self._settings.longest_timeout
        row.due = now + row.patience

    def anew(self, now: int, row: Sending[Packet]) -> None:
        """It is sent as if it had not been: nobody has taken it."""
        row.retries = 0
        self._sent(now, row, self.patience)
        row.first, row.begun = row.stamp, now

    def under_way(self) -> Iterator[Sending[Packet]]:
        """The rows that have a packet."""
        return (row for row in self._rows if row.packet is not None)

    def _learn(self, took: int) -> None:
        """A round trip has taken so long."""
        settings = self._settings
        if self._trip:
            away = took - self._trip
            self._trip += away >> 3
            self._variation += (abs(away) - self._variation) >> 2
        else:
            self._trip, self._variation = took, took >> 1
        wanted = self._trip + 4 * self._variation
        if wanted <= settings.timeout:
            self._trip = self._variation = 0  # it is the usual again
        self.patience = min(max(wanted, settings.timeout), settings.longest_timeout)

    def _sent(self, now: int, row: Sending[Packet], patience: int) -> None:
        self._stamp = row.stamp = (self._stamp + 1) % _STAMPS
        row.refused = False
        row.patience = patience
        row.due = now + patience

    def _row(self, channel: int, generation: int, sequence: int) -> Sending[Packet] | None:
        if channel >= len(self._rows):
            return None
        row = self._rows[channel]
        if row.packet is None or row.sequence != sequence or row.generation != generation:
            return None
        return row

    def _released(self, row: Sending[Packet]) -> Packet:
        packet = row.packet
        if packet is None:
            raise ValueError(f"channel {row.channel} is free")
        row.packet = None
        self.free.append(row)
        self.unanswered -= 1
        return packet


class Sight(Enum):
    """What a packet is to the receive table."""

    NEW = "to be taken or refused"
    AGAIN = "taken or undone before: it is answered as it was then"
    OLD = "a copy that nobody waits for any more"


_NEW: Final = Sight.NEW  # an enumeration's own members are found slowly
_AGAIN: Final = Sight.AGAIN
_OLD: Final = Sight.OLD


class _Receiving:
    __slots__ = ("answer", "expected", "generation", "refused")

    def __init__(self) -> None:
        self.expected: int | None = None  # nothing has come yet
        self.generation = 0
        self.answer = 0
        self.refused: int | None = None  # the stamp of the last sending that was


class Incoming:
    """The receive table for one peer.

    Its sender may do without a packet of which it knows that the last sending was refused (section "Endpoint unloading").
    So a sending that was refused once is never taken, nor one before it: else a copy that a network makes of it could be,
    when the packet has gone another way. That is ours: Myrinet makes no copies.
    """

    __slots__ = ("_rows", "_sequences", "channels")

    def __init__(self, settings: Settings) -> None:
        self._sequences = settings.sequences - 1
        self._rows = [_Receiving() for _ in range(settings.channels)]
        self.channels: Final = settings.channels

    def look(self, channel: int, generation: int, sequence: int, stamp: int) -> Sight:
        """What a packet of that channel is. Raises IndexError for a channel that there is not."""
        row = self._rows[channel]
        if row.expected is None or (ahead := (generation - row.generation) % _GENERATIONS):
            if row.expected is not None and ahead >= _GENERATIONS // 2:
                return _OLD
            row.generation, row.expected, row.answer, row.refused = generation, sequence, 0, None
            return _NEW
        if sequence == row.expected:
            if row.refused is not None and (row.refused - stamp) % _STAMPS < _STAMPS // 2:
                return _OLD
            return _NEW
        return _AGAIN if sequence == (row.expected - 1) & self._sequences else _OLD

    def take(self, channel: int, answer: int = 0) -> None:
        """The packet that `look` has called new is taken, or undone for that reason."""
        row = self._rows[channel]
        if row.expected is None:
            raise ValueError(f"channel {channel}: no packet has come")
        row.expected = (row.expected + 1) & self._sequences
        row.answer = answer

    def refuse(self, channel: int, stamp: int) -> None:
        """The packet that `look` has called new cannot be taken for the time being."""
        self._rows[channel].refused = stamp

    def answer(self, channel: int) -> int:
        """How the last packet was answered: 0, or why it was undone."""
        return self._rows[channel].answer
