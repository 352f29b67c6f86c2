"""The golden loss matrix agrees with the firmware."""

from __future__ import annotations

from difflib import unified_diff

import pytest

from protocols.am2 import settings as am2
from protocols.am2.plug import plug as am2_plug
from protocols.emp.host import plug
from protocols.emp.settings import Settings
from tests.sim import golden_loss
from tests.sim.exhaustive import SUBJECTS


@pytest.mark.parametrize("name", golden_loss.SUBJECTS)
def test_the_cost_of_losses_equals_the_golden_table(name: str) -> None:
    golden, current = golden_loss.path(name).read_text(encoding="utf-8"), golden_loss.table(name)
    difference = "\n".join(
        unified_diff(golden.splitlines(), current.splitlines(), "golden", "current", n=0, lineterm="")
    )
    if difference:
        pytest.fail(
            f"{difference}\n\nIf that is intended: python -m tests.sim.golden_loss {name} --write, and say why.",
            pytrace=False,
        )


def test_every_subject_of_the_exhaustive_search_has_a_golden_table() -> None:
    assert set(golden_loss.SUBJECTS) == set(SUBJECTS)


@pytest.mark.parametrize("size", golden_loss.MESSAGES)
def test_no_frame_is_resent_without_losses(size: int) -> None:
    row = golden_loss.row("emp", "none", size)
    frames = (size + 16 + 1471) // 1472  # payload after EMP's headers; the first frame has a longer header
    assert row["frames"] == golden_loss.MESSAGES[size] * frames
    assert row["acks"] == golden_loss.MESSAGES[size] * ((frames + 2) // 3)
    assert row["resent"] == row["time-outs"] == 0


@pytest.mark.parametrize(
    "settings", [Settings(timeout=4_000_000), Settings(unit=4), Settings(window=8)], ids=["timeout", "unit", "window"]
)
def test_another_setting_of_emp_changes_a_row_of_the_golden_table(settings: Settings) -> None:
    default_row = golden_loss.row("emp", "1%", 1_048_576)
    assert golden_loss.row("emp", "1%", 1_048_576, plug(settings)) != default_row


@pytest.mark.parametrize(
    "settings", [am2.Settings(timeout=4_000_000), am2.Settings(channels=4), am2.Settings(packet=1024)],
    ids=["timeout", "channels", "packet"],
)  # fmt: skip
def test_another_setting_of_am2_changes_a_row_of_the_golden_table(settings: am2.Settings) -> None:
    default_row = golden_loss.row("am2", "1%", 1_048_576)
    assert golden_loss.row("am2", "1%", 1_048_576, am2_plug(settings)) != default_row
