"""Checkers with one mistake, which the histories must find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from testbed.controller.checkers import alignment, message_matching
from testbed.controller.checkers.histories import Receive, Send
from testbed.controller.checkers.promises import Ending, _HistoryCheck
from testbed.controller.checkers.unreceived import Restarts, UnmatchedReceives
from tests.unit.protocols.mutants import Mutant


def paired_by_first_come(patch: pytest.MonkeyPatch) -> None:
    def greedy(sends: Sequence[Send], receives: Sequence[Receive], _costs: Sequence[int]) -> list[int] | None:
        positions, position = [], 0
        for receive in receives:
            while position < len(sends) and not alignment.fits(sends[position], receive):
                position += 1
            if position == len(sends):
                return None
            positions.append(position)
            position += 1
        return positions

    patch.setattr(message_matching, "align", greedy)


def _quiet_if(patch: pytest.MonkeyPatch, is_quiet: str) -> None:
    original = _HistoryCheck._check_complete_send

    def check_complete_send(self: _HistoryCheck, *arguments: object) -> None:
        transfers = [
            event for transfer_list in (*self._histories.sends, *self._histories.receives) for event in transfer_list
        ]
        if not (
            any(transfer.error for transfer in transfers)
            if is_quiet == "error"
            else self._circumstances.ending is Ending.ABORTED
        ):
            original(self, *arguments)  # type: ignore[arg-type]  # as they came

    patch.setattr(_HistoryCheck, "_check_complete_send", check_complete_send)


def quiet_after_an_error(patch: pytest.MonkeyPatch) -> None:
    _quiet_if(patch, "error")


def quiet_where_broken_off(patch: pytest.MonkeyPatch) -> None:
    _quiet_if(patch, "broken off")


def excused_by_any_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restarts, "lost_memory", lambda self, node, *_: bool(self._spans[node]))


def excused_by_no_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restarts, "lost_memory", lambda *_: False)


def senders_keep_nothing(patch: pytest.MonkeyPatch) -> None:
    lost_memory = Restarts.lost_memory
    patch.setattr(Restarts, "lost_memory", lambda self, node, *span: node != "n1" and lost_memory(self, node, *span))


def explained_again_and_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnmatchedReceives, "claim", lambda self, send, before: next(self._matching(send, before), None))


def explained_by_the_first_that_fits(patch: pytest.MonkeyPatch) -> None:
    def claim(self: UnmatchedReceives, send: Send, before: Receive | None) -> Receive | None:
        matching = next((candidate for candidate in self._matching(send, before) if candidate not in self._taken), None)
        if matching is not None:
            self._taken[matching] = send, before
        return matching

    patch.setattr(UnmatchedReceives, "claim", claim)


def explained_by_what_fails_for_no_reason(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_HistoryCheck, "_is_excused", lambda _, receive: bool(receive.error))


def waits_in_any_case(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_HistoryCheck, "_has_waited", lambda *_: True)


def waits_in_no_case(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_HistoryCheck, "_has_waited", lambda *_: False)


def lives_are_one(patch: pytest.MonkeyPatch) -> None:
    def pair(*arguments: object) -> None:
        sends = arguments[0]
        assert isinstance(sends, list)
        for send in sends:
            send.life = 0
        original(*arguments)  # type: ignore[arg-type]  # as they came

    original = message_matching._match_channel
    patch.setattr(message_matching, "_match_channel", pair)


MUTANTS = (
    Mutant("paired by first come", "a receive is paired with the first message that was sent", paired_by_first_come),
    Mutant("quiet after an error", "a lost message is not told where a transfer has failed", quiet_after_an_error),
    Mutant("quiet where broken off", "a lost message is not told where the run was broken off", quiet_where_broken_off),
    Mutant("excused by any restart", "a restart explains what was lost at other times", excused_by_any_restart),
    Mutant("excused by no restart", "a restart explains nothing", excused_by_no_restart),
    Mutant("senders keep nothing", "the end of a sender explains nothing", senders_keep_nothing),
    Mutant("explained again and again", "one failed receive explains all", explained_again_and_again),
    Mutant("explained by the first", "a receive that another message needs is taken", explained_by_the_first_that_fits),
    Mutant("explained by any failure", "an error that no fault allows explains", explained_by_what_fails_for_no_reason),
    Mutant("waits in any case", "a receive that was left behind proves a loss", waits_in_any_case),
    Mutant("waits in no case", "a receive that waits proves nothing", waits_in_no_case),
    Mutant("lives are one", "a message of the next life proves that one of the last was lost", lives_are_one),
)
