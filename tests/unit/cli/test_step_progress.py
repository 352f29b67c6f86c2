"""Progress of many steps as lines of a log: steps done, and remaining time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from testbed.cli import progress_display
from testbed.cli.progress_display import step_progress


def test_the_remaining_time_ignores_steps_of_earlier_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress_display, "time", SimpleNamespace(monotonic=lambda: now))
    with step_progress("study") as show:
        show(100, 1000)  # done by an earlier command
        now = 10.0
        show(100, 1000)
        now = 30.0
        show(110, 1000)
        now = 3_000.0
        show(1000, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "study: 100 of 1000 done",
        "study: 110 of 1000 done, about 0:44:30 left",  # 10 steps took 30 s, 890 are left
        "study: 1000 of 1000 done",
    ]
