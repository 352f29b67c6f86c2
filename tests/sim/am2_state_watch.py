"""Compare each transition of AM-II's channels in the firmware with the state tables."""

from __future__ import annotations

import pytest

from protocols.am2 import states
from protocols.am2.transport import PacketClass, ReceiveTable, SendRow, SendTable
from tests.sim.state_watch import Watch


def sending_state(row: SendRow[object]) -> str:
    if row.packet is None:
        return states.FREE
    return states.REFUSED if row.is_refused else states.UNANSWERED


def receiving_state(table: ReceiveTable, channel: int) -> str:
    row = table._rows[channel]
    if row.expected_sequence is None:
        return states.UNUSED
    return states.EXPECTING if row.refused_stamp is None else states.EXPECTING_LATER


def watch_channels(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every channel of this process until the patch is undone."""
    _watch_sending(patch, watch)
    _watch_receiving(patch, watch)


def _watch_sending(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    table, original_begin = states.SEND_CHANNEL, SendTable.begin

    def watched_begin(self: SendTable[object], now: int, packet: object) -> SendRow[object] | None:
        before = sending_state(self.free_rows[0]) if self.free_rows else ""
        row = original_begin(self, now, packet)
        if row is not None:
            watch.record(table, before, "packet to send", sending_state(row))
        return row

    patch.setattr(SendTable, "begin", watched_begin)

    def watch_answers(name: str, event: str, late_event: str) -> None:
        method = getattr(SendTable, name)

        def observed(
            self: SendTable[object], now: int, channel: int, generation: int, sequence: int, stamp: int
        ) -> object:
            rows = self._rows
            before = sending_state(rows[channel]) if channel < len(rows) else ""
            result = method(self, now, channel, generation, sequence, stamp)
            if before:
                watch.record(table, before, late_event if result is None else event, sending_state(rows[channel]))
            return result

        patch.setattr(SendTable, name, observed)

    watch_answers("on_answer", "answer", "late answer")
    watch_answers("on_refusal", "refusal", "late refusal")

    def watch_row(name: str, event: str) -> None:
        method = getattr(SendTable, name)

        def observed(self: SendTable[object], *arguments: object) -> object:
            row = arguments[-1]
            assert isinstance(row, SendRow)
            before = sending_state(row)
            result = method(self, *arguments)
            watch.record(table, before, event, sending_state(row))
            return result

        patch.setattr(SendTable, name, observed)

    watch_row("mark_resent", "timeout")
    watch_row("mark_final", "sent once")
    watch_row("mark_first", "peer introduced")
    watch_row("withdraw", "packet withdrawn")
    watch_row("give_up", "gave up")


def _watch_receiving(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    table = states.RECEIVE_CHANNEL
    classify, advance, refuse = ReceiveTable.classify, ReceiveTable.advance, ReceiveTable.refuse
    events = {PacketClass.NEW: "expected packet", PacketClass.DUPLICATE: "duplicate", PacketClass.OLD: "old copy"}

    def watched_classify(self: ReceiveTable, channel: int, generation: int, sequence: int, stamp: int) -> PacketClass:
        if channel >= self.channel_count:
            return classify(self, channel, generation, sequence, stamp)
        row, before = self._rows[channel], receiving_state(self, channel)
        former_generation = row.generation
        packet_class = classify(self, channel, generation, sequence, stamp)
        is_new = before == states.UNUSED or row.generation != former_generation
        watch.record(
            table, before, "new generation" if is_new else events[packet_class], receiving_state(self, channel)
        )
        return packet_class

    def watched_advance(self: ReceiveTable, channel: int, answer: int = 0) -> None:
        before = receiving_state(self, channel)
        advance(self, channel, answer)
        watch.record(table, before, "packet accepted", receiving_state(self, channel))

    def watched_refuse(self: ReceiveTable, channel: int, stamp: int) -> None:
        before = receiving_state(self, channel)
        refuse(self, channel, stamp)
        watch.record(table, before, "packet refused", receiving_state(self, channel))

    patch.setattr(ReceiveTable, "classify", watched_classify)
    patch.setattr(ReceiveTable, "advance", watched_advance)
    patch.setattr(ReceiveTable, "refuse", watched_refuse)
