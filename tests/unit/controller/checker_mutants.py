"""Mutants of the checkers, each with one mistake that the histories must detect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from testbed.controller.checkers import alignment, message_matching
from testbed.controller.checkers.histories import Receive, Send
from testbed.controller.checkers.promises import Ending, _HistoryChecker
from testbed.controller.checkers.unreceived import Restarts, UnmatchedReceives
from tests.unit.protocols.mutants import Mutant


def greedy_matching(patch: pytest.MonkeyPatch) -> None:
    def align_greedily(sends: Sequence[Send], receives: Sequence[Receive], _costs: Sequence[int]) -> list[int] | None:
        positions, position = [], 0
        for receive in receives:
            while position < len(sends) and not alignment.fits(sends[position], receive):
                position += 1
            if position == len(sends):
                return None
            positions.append(position)
            position += 1
        return positions

    patch.setattr(message_matching, "align", align_greedily)


def skip_complete_sends(patch: pytest.MonkeyPatch, is_skipped: Callable[[_HistoryChecker], bool]) -> None:
    original = _HistoryChecker._check_complete_send

    def check_complete_send(self: _HistoryChecker, *arguments: object) -> None:
        if not is_skipped(self):
            original(self, *arguments)  # type: ignore[arg-type]  # passed on unchanged

    patch.setattr(_HistoryChecker, "_check_complete_send", check_complete_send)


def has_error(check: _HistoryChecker) -> bool:
    transfer_lists = (*check._histories.sends, *check._histories.receives)
    return any(transfer.error for transfers in transfer_lists for transfer in transfers)


def no_loss_after_an_error(patch: pytest.MonkeyPatch) -> None:
    skip_complete_sends(patch, has_error)


def no_loss_in_an_aborted_run(patch: pytest.MonkeyPatch) -> None:
    skip_complete_sends(patch, lambda check: check._circumstances.ending is Ending.ABORTED)


def excused_by_any_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restarts, "lost_memory", lambda self, node, *_: bool(self._spans[node]))


def excused_by_no_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restarts, "lost_memory", lambda *_: False)


def sender_restarts_ignored(patch: pytest.MonkeyPatch) -> None:
    lost_memory = Restarts.lost_memory
    patch.setattr(Restarts, "lost_memory", lambda self, node, *span: node != "n1" and lost_memory(self, node, *span))


def receive_claimed_repeatedly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnmatchedReceives, "claim", lambda self, send, before: next(self._matching(send, before), None))


def first_receive_claimed(patch: pytest.MonkeyPatch) -> None:
    def claim(self: UnmatchedReceives, send: Send, before: Receive | None) -> Receive | None:
        matching = next((candidate for candidate in self._matching(send, before) if candidate not in self._taken), None)
        if matching is not None:
            self._taken[matching] = send, before
        return matching

    patch.setattr(UnmatchedReceives, "claim", claim)


def any_error_excuses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_HistoryChecker, "_is_excused", lambda _, receive: bool(receive.error))


def always_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_HistoryChecker, "_has_waited", lambda *_: True)


def never_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_HistoryChecker, "_has_waited", lambda *_: False)


def incarnations_merged(patch: pytest.MonkeyPatch) -> None:
    def match_as_one_life(*arguments: object) -> None:
        sends = arguments[0]
        assert isinstance(sends, list)
        for send in sends:
            send.life = 0
        original(*arguments)  # type: ignore[arg-type]  # passed on unchanged

    original = message_matching._match_channel
    patch.setattr(message_matching, "_match_channel", match_as_one_life)


MUTANTS = (
    Mutant("greedy matching", "a receive is matched with the first message that fits", greedy_matching),
    Mutant("no loss after an error", "a loss is not reported if any transfer failed", no_loss_after_an_error),
    Mutant("no loss in an aborted run", "a loss is not reported if the run was aborted", no_loss_in_an_aborted_run),
    Mutant("excused by any restart", "a restart explains a loss at any other time", excused_by_any_restart),
    Mutant("excused by no restart", "a restart explains nothing", excused_by_no_restart),
    Mutant("sender restarts ignored", "the end of a sender explains nothing", sender_restarts_ignored),
    Mutant("receive claimed repeatedly", "one failed receive explains every loss", receive_claimed_repeatedly),
    Mutant("first receive claimed", "a receive that another message needs is taken", first_receive_claimed),
    Mutant("any error excuses", "an error that no fault allows explains a loss", any_error_excuses),
    Mutant("always waits", "a receive that its program abandoned proves a loss", always_waits),
    Mutant("never waits", "a receive that waits proves nothing", never_waits),
    Mutant(
        "incarnations merged", "a message of a restarted program proves the loss of an earlier one", incarnations_merged
    ),
)
