"""Keys of `testbed top`: decoding of terminal input, and their effect on view and cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from testbed.cli.screen import live_view
from testbed.cli.screen.keys import Keys
from testbed.cli.screen.panels import PANELS
from testbed.cli.screen.terminal import Wakeup
from testbed.cli.screen.view import Action, Command, Quit, View, press, show_result
from testbed.observe.live.snapshot import Absent, Snapshot
from tests.unit.cli.snapshots import star, two_nodes


def press_keys(view: View, keys: list[str], snapshot: Snapshot | Absent | None = None) -> tuple[View, list[Action]]:
    """Press keys in turn; return the view and the requested actions."""
    actions = []
    for key in keys:
        view, action = press(view, key, snapshot or two_nodes())
        actions += [action] if action is not None else []
    return view, actions


# Decoding


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~\x1b[Z\t", ["page-up", "page-down", "shift-tab", "tab"]),
        (b"\x03\x7f\r", ["ctrl-c", "backspace", "enter"]),
        ("ä→".encode(), ["ä", "→"]),
        (b"\x1b[1;5A\x1b[200~x", ["x"]),  # unknown sequences are ignored
        (b"\x00\x0bq", ["q"]),
    ],
)
def test_input_is_decoded_to_keys(data: bytes, keys: list[str]) -> None:
    assert Keys().feed(data) == keys


def test_an_escape_byte_is_a_key_if_no_sequence_follows() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.is_incomplete
    assert keys.feed(b"") == ["escape"]
    assert not keys.is_incomplete


@given(st.lists(st.sampled_from([b"\x1b[A", b"\x1bOB", b"\x1b[6~", b"q", "ä".encode(), b"\t"])), st.data())
def test_keys_are_decoded_from_partial_reads(parts: list[bytes], data: st.DataObject) -> None:
    key_bytes = b"".join(parts)
    cut = data.draw(st.integers(0, len(key_bytes)))
    keys = Keys()
    fed_keys = [key for piece in (key_bytes[:cut], key_bytes[cut:]) if piece for key in keys.feed(piece)]
    assert fed_keys == Keys().feed(key_bytes)
    assert len(fed_keys) == len(parts)


@given(st.binary(max_size=40))
def test_unknown_input_is_ignored(data: bytes) -> None:
    keys = Keys()
    for key in [*keys.feed(data), *keys.feed(b"")]:
        press(View(), key, two_nodes())
    assert not keys.is_incomplete


# Navigation


def test_arrows_and_letters_move_the_selection_and_stop_at_the_ends() -> None:
    snapshot = star(30)
    assert press_keys(View(), ["down", "j", "j", "k"], snapshot)[0].keys[0] == "n3"
    assert press_keys(View(), ["up", "k"], snapshot)[0].keys[0] == "n1"
    assert press_keys(View(), ["G", "down"], snapshot)[0].keys[0] == "n30"
    assert press_keys(View(), ["page-down", "page-down", "page-up"], snapshot)[0].keys[0] == "n11"


def test_the_selection_stays_with_its_row_when_the_order_changes() -> None:
    view, _ = press_keys(View(), ["j", "s"], star(9))
    assert view.keys[0] == "n2"
    assert view.sort == 1


def test_each_panel_has_its_selection_and_sort_order() -> None:
    view, _ = press_keys(View(), ["j", "s", "tab", "j", "j", "shift-tab"])
    assert (view.panel, view.keys[0], view.keys[1]) == (0, "n2", "n2:eth0--s1:2 forward")
    assert view.sorts == (1, 0, 0, 0, 0)


def test_the_sort_order_cycles() -> None:
    assert press_keys(View(), ["s"] * 5)[0].sort == 0


def test_any_key_only_closes_the_help() -> None:
    view, actions = press_keys(View(), ["?", "d"])
    assert not view.help
    assert actions == []


def test_q_and_ctrl_c_quit() -> None:
    assert press_keys(View(), ["q"])[1] == [Quit()]
    assert press_keys(View(), ["i", "ctrl-c"])[1] == [Quit()]
    assert press_keys(View(), ["q"], Absent("nothing"))[1] == [Quit()]


# Commands


def test_typed_text_becomes_options_of_inject() -> None:
    view, actions = press_keys(View(), ["j", "i", *"--loss 5% --rule 'drop udp'", "enter"])
    assert actions == [Command(("inject", "n2", "--loss", "5%", "--rule", "drop udp"))]
    assert view.prompt is None


def test_a_prompt_is_edited_where_the_cursor_is() -> None:
    view, _ = press_keys(View(), ["i", *"losss", "home", *"--", "end", "backspace", *"= 5%", "left", "backspace", "6"])
    assert view.prompt is not None
    assert view.prompt.text == "--loss= 6%"
    view, _ = press_keys(view, ["ctrl-u", "delete"])
    assert view.prompt is not None
    assert view.prompt.text == ""


def test_command_keys_are_text_in_a_prompt() -> None:
    view, actions = press_keys(View(), ["i", *"qdhHp?s "])
    assert actions == []
    assert view.prompt is not None
    assert view.prompt.text == "qdhHp?s "


def test_rejected_input_stays_editable() -> None:
    view, _ = press_keys(View(), ["i", *"--los 5%", "enter"])
    view, _ = press_keys(show_result(view, "No such option", failed=True), ["i"])
    assert view.prompt is not None
    assert view.prompt.text == "--los 5%"
    view, _ = press_keys(show_result(replace(view, prompt=None), "done", failed=False), ["i"])
    assert view.prompt is not None
    assert view.prompt.text == ""


def test_unbalanced_quotes_are_an_error_in_the_last_line() -> None:
    view, actions = press_keys(View(), ["i", *"--rule 'drop", "enter"])
    assert actions == []
    assert view.failed
    assert "No closing quotation" in view.message


def test_links_are_cut_and_plugged_in_again_by_the_selected_row() -> None:
    assert press_keys(View(panel=1), ["j", "j", "d"])[1] == [Command(("link", "n2:eth0--s1:2", "down"))]
    assert press_keys(View(), ["u"])[1] == [Command(("link", "n1", "up"))]
    assert press_keys(View(), ["f"])[1] == [Command(("link", "n1", "flap"))]


def test_healing_removes_the_faults_of_the_selection() -> None:
    assert press_keys(View(), ["j", "h"])[1] == [Command(("heal", "3"))]
    assert press_keys(View(panel=1), ["G", "h"])[1] == [Command(("heal", "3"))]
    assert press_keys(View(panel=3), ["h"])[1] == [Command(("heal", "3"))]
    assert press_keys(View(), ["H"])[1] == [Command(("heal",))]


def test_healing_without_injections_does_nothing() -> None:
    view, actions = press_keys(View(), ["h"])
    assert actions == []
    assert view.message == "nothing is injected on n1"


def test_nothing_can_be_injected_on_an_event() -> None:
    view, actions = press_keys(View(panel=4), ["i"])
    assert (view.prompt, actions, view.failed) == (None, [], True)


def test_keys_without_a_cluster_have_no_effect() -> None:
    view, actions = press_keys(View(), ["i", "d", "h", "H", "j", "G"], Absent("nothing"))
    assert (view, actions) == (View(), [])


# Samples


@dataclass
class Screen:
    """A terminal with a clock of its own, and a sampler that records the time of each sample and whether it had agents.
    wakeups: seconds until each wake-up, with the key that is pressed then, if any; 0 seconds: at the timeout. The last one
    quits."""

    wakeups: list[tuple[float, str]]
    now: float = 100.0
    samples: list[tuple[float, bool]] = field(default_factory=list)

    def sample(self, *, agents: bool = True) -> Snapshot | Absent:
        self.samples.append((self.now, agents))
        return two_nodes()

    def wait(self, seconds: float, _: Collection[int]) -> Wakeup:
        pause, key = self.wakeups.pop(0) if self.wakeups else (0.0, "q")
        self.now += pause or max(0.0, seconds)
        return Wakeup(keys=[key] if key else [])


def samples_of(monkeypatch: pytest.MonkeyPatch, *wakeups: tuple[float, str]) -> list[tuple[float, bool]]:
    """Show a cluster with one sample a second; return the seconds of the samples, and whether they had agents."""
    screen = Screen([*wakeups])

    @contextmanager
    def take_over(_: int) -> Iterator[Screen]:
        yield screen

    monkeypatch.setattr(live_view, "take_over", take_over)
    monkeypatch.setattr("time.monotonic", lambda: screen.now)
    live_view.watch(screen, 1.0, Console(file=StringIO(), force_terminal=True), 0)
    return [(round(when - 100, 3), agents) for when, agents in screen.samples]


def test_samples_are_a_whole_interval_apart_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    late = samples_of(monkeypatch, (0, ""), (0.004, "p"), (7.5, "p"), (0, ""), (0, ""))
    assert [when for when, _ in late] == [0, 1, 8.504, 9.504, 10.504]


def test_samples_stay_on_schedule_if_one_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [when for when, _ in samples_of(monkeypatch, (1.25, ""), (0, ""), (0, ""))] == [0, 1.25, 2, 3]


@pytest.mark.parametrize("paused", [False, True])
def test_a_change_to_the_panel_of_nics_samples_their_agents(monkeypatch: pytest.MonkeyPatch, paused: bool) -> None:
    number = str([panel.name for panel in PANELS].index("NICs") + 1)
    keys = [(0.25, "p")] if paused else []
    samples = samples_of(monkeypatch, *keys, (0.25, number), (0.25, "1"), (0.125, ""))
    assert samples == [(0, False), (0.5 if paused else 0.25, True)]
