"""Signals to a full-screen view are not lost in finalizers, where Python ignores exceptions."""

from __future__ import annotations

import os
import pty
import signal
from types import FrameType

import pytest

from testbed.cli.progress_display import step_progress
from testbed.cli.screen.terminal import take_over


class SignalOnFree:
    """Object that signals its own process when it is freed."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_callback_ends_the_view(number: signal.Signals) -> None:
    def on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    keyboard, follower = pty.openpty()
    before = signal.signal(number, on_signal)
    try:
        with take_over(follower) as terminal:
            SignalOnFree(number)
            assert terminal.wait(10).ended_by == number
        with pytest.raises(SystemExit):
            signal.raise_signal(number)  # the previous handler is restored
    finally:
        signal.signal(number, before)
        os.close(keyboard)
        os.close(follower)


def test_a_command_that_takes_more_than_a_second_prints_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # until the timer has been read
    try:
        with step_progress("checking ring-9999"):
            remaining, _ = signal.getitimer(signal.ITIMER_REAL)
            assert 0 < remaining <= 1 or signal.SIGALRM in signal.sigpending()
            signal.raise_signal(signal.SIGALRM)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            assert set(capsys.readouterr().err.splitlines()) == {"checking ring-9999 ..."}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert signal.getsignal(signal.SIGALRM) == handler
