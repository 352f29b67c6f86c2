"""Watches AM-II's channels: each transition that the firmware takes is compared with the state tables."""

from __future__ import annotations

import pytest

from protocols.am2 import states
from protocols.am2.transport import Incoming, Outgoing, PacketClass, Sending
from tests.sim.state_watch import Watch


def sending_state(row: Sending[object]) -> str:
    if row.packet is None:
        return states.FREE
    return states.REFUSED if row.refused else states.UNANSWERED


def receiving_state(table: Incoming, channel: int) -> str:
    row = table._rows[channel]
    if row.expected is None:
        return states.UNUSED
    return states.EXPECTING if row.refused is None else states.EXPECTING_LATER


def watch_channels(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every channel of this process until the patch is undone."""
    _watch_sending(patch, watch)
    _watch_receiving(patch, watch)


def _watch_sending(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    table, begin = states.SEND_CHANNEL, Outgoing.begin

    def watched_begin(self: Outgoing[object], now: int, packet: object) -> Sending[object] | None:
        before = sending_state(self.free[0]) if self.free else ""
        row = begin(self, now, packet)
        if row is not None:
            watch.saw(table, before, "packet to send", sending_state(row))
        return row

    patch.setattr(Outgoing, "begin", watched_begin)

    def on_answer(name: str, event: str, late: str) -> None:
        method = getattr(Outgoing, name)

        def watched(
            self: Outgoing[object], now: int, channel: int, generation: int, sequence: int, stamp: int
        ) -> object:
            rows = self._rows
            before = sending_state(rows[channel]) if channel < len(rows) else ""
            result = method(self, now, channel, generation, sequence, stamp)
            if before:
                watch.saw(table, before, late if result is None else event, sending_state(rows[channel]))
            return result

        patch.setattr(Outgoing, name, watched)

    on_answer("answered", "answer", "late answer")
    on_answer("refused", "refusal", "late refusal")

    def on_row(name: str, event: str) -> None:
        method = getattr(Outgoing, name)

        def watched(self: Outgoing[object], *arguments: object) -> object:
            row = arguments[-1]
            assert isinstance(row, Sending)
            before = sending_state(row)
            result = method(self, *arguments)
            watch.saw(table, before, event, sending_state(row))
            return result

        patch.setattr(Outgoing, name, watched)

    on_row("mark_resent", "timeout")
    on_row("mark_last", "no resend wanted")
    on_row("mark_new", "peer introduced")
    on_row("take_back", "packet withdrawn")
    on_row("give_up", "gave up")


def _watch_receiving(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    table, classify, take, refuse = states.RECEIVE_CHANNEL, Incoming.classify, Incoming.take, Incoming.refuse
    events = {PacketClass.NEW: "expected packet", PacketClass.AGAIN: "duplicate", PacketClass.OLD: "old copy"}

    def watched_classify(self: Incoming, channel: int, generation: int, sequence: int, stamp: int) -> PacketClass:
        if channel >= self.channels:
            return classify(self, channel, generation, sequence, stamp)
        row, before = self._rows[channel], receiving_state(self, channel)
        former = row.generation
        packet_class = classify(self, channel, generation, sequence, stamp)
        is_new = before == states.UNUSED or row.generation != former
        watch.saw(table, before, "new generation" if is_new else events[packet_class], receiving_state(self, channel))
        return packet_class

    def watched_take(self: Incoming, channel: int, answer: int = 0) -> None:
        before = receiving_state(self, channel)
        take(self, channel, answer)
        watch.saw(table, before, "packet accepted", receiving_state(self, channel))

    def watched_refuse(self: Incoming, channel: int, stamp: int) -> None:
        before = receiving_state(self, channel)
        refuse(self, channel, stamp)
        watch.saw(table, before, "packet refused", receiving_state(self, channel))

    patch.setattr(Incoming, "classify", watched_classify)
    patch.setattr(Incoming, "take", watched_take)
    patch.setattr(Incoming, "refuse", watched_refuse)
