"""Frames of `testbed top` for given snapshots, in terminals of all sizes."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from testbed.cli.screen.frame import frame, page
from testbed.cli.screen.panels import PANELS
from testbed.cli.screen.view import Prompt, View
from testbed.observe.live.snapshot import Absent, Node, Program, Snapshot
from tests.unit.cli.snapshots import star, two_nodes


def terminal_console(width: int, height: int, *, color: bool = True, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    return Console(
        width=width, height=height, file=file, force_terminal=True, no_color=not color, color_system="standard"
    )


def screen_lines(snapshot: Snapshot | Absent, view: View | None = None, width: int = 80, height: int = 24) -> list[str]:
    """Return the lines of the screen without colours."""
    with io.StringIO() as file:
        console = Console(width=width, height=height, file=file)
        console.print(frame(snapshot, view or View(), width, height), end="")
        return file.getvalue().split("\n")


def screen_codes(snapshot: Snapshot, view: View, **settings: bool) -> str:
    """Return the bytes sent to the terminal, as text."""
    screen = terminal_console(80, 24, **settings)
    screen.print(frame(snapshot, view, 80, 24), end="")
    screen.file.flush()
    assert isinstance(screen.file, io.TextIOWrapper)
    buffer = screen.file.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def line_of(lines: list[str], name: str) -> str:
    (matching_line,) = [line for line in lines if line[1:].startswith(name)]
    return matching_line


def test_a_wide_screen_has_every_column_of_a_node() -> None:
    line = line_of(screen_lines(two_nodes(), width=200), "n1 ")
    for cell in ("10.0.0.1", "up", " 2 ", "42%", "5.91M", "98", "1.18M", "iperf3", "@client"):
        assert cell in line


def test_a_narrow_screen_drops_the_least_important_columns_and_truncates_none() -> None:
    wide, narrow = screen_lines(two_nodes(), width=200), screen_lines(two_nodes(), width=80)
    titles = narrow[3].split()
    assert "tags" in wide[3]
    assert "tags" not in narrow[3]
    assert {"node", "CPU", "dropped"} <= set(titles)
    assert "42%" in line_of(narrow, "n1 ")
    assert "463" in line_of(narrow, "n2 ")


def test_truncated_values_are_in_the_detail_of_the_selected_row() -> None:
    detail_text = "\n".join(screen_lines(two_nodes(), width=80))
    assert "02:00:00:00:00:01" in detail_text
    assert "iperf3 (4711) 42% 5.05M, sh (4712) 0% 879K" in detail_text


def test_links_show_both_directions_with_declared_injected_and_lost() -> None:
    lines = screen_lines(two_nodes(), View(panel=1), width=200)
    forward_row, backward_row = line_of(lines, "n2:eth0 → s1:2"), line_of(lines, "s1:2 → n2:eth0")
    for cell in ("relay", "812", "9.74M", "43", "451 loss, 12 queue", "loss 5%", "delay 1ms"):
        assert cell in forward_row
        assert cell not in backward_row.replace("relay", "") or cell == "relay"


def test_the_selected_direction_lists_the_changes_to_its_frames() -> None:
    view = View(panel=1, keys=("", "n2:eth0--s1:2 forward", "", "", ""))
    text = "\n".join(screen_lines(two_nodes(), view))
    assert "9,000 frames, 12.9M bytes; dropped 451 loss, 12 queue; 7 corrupted" in text
    assert "declared: delay 1ms; injected: loss 5%" in text


def test_faults_and_events_have_panels() -> None:
    faults = screen_lines(two_nodes(), View(panel=3))
    assert "loss 5% on n2 (n2-s1)" in line_of(faults, "     3")
    assert "7 s" in line_of(faults, "     3")
    events = screen_lines(two_nodes(), View(panel=4))
    assert "relay behind" in events[4]  # newest first
    assert "inject" in events[5]


def test_the_header_shows_the_total_and_the_relays() -> None:
    first, second, tabs = screen_lines(two_nodes(), width=120)[:3]
    assert first.startswith(" pair  2 nodes, 1 switch, 2 links")
    assert "up for 3 min 12 s" in first
    assert "1.11k frames/s  13.3Mbit/s  43 drops/s  1 injected  relay 8% CPU" in second
    assert all(panel.name in tabs for panel in PANELS)


def test_a_problem_of_the_cluster_replaces_the_summary() -> None:
    assert "its relay is GONE" in screen_lines(replace(two_nodes(), warning="its relay is GONE"))[1]


def test_the_message_without_a_cluster_is_shown() -> None:
    assert "no cluster is up; 'testbed up star-4' brings one up" in "\n".join(
        screen_lines(Absent("no cluster is up; 'testbed up star-4' brings one up"))
    )


def test_the_selected_row_is_visible_among_many_rows() -> None:
    for name in ("n1", "n50", "n100"):
        lines = screen_lines(star(100), View(keys=(name, "", "", "", "")))
        assert [line for line in lines if line.startswith(f"▸{name} ")]


def test_sorting_puts_the_highest_first() -> None:
    view = View(sorts=(1, 0, 0, 0, 0))
    lines = screen_lines(star(100), view)
    assert lines[4][1:].startswith("n100 ")
    assert "by traffic" in lines[2]
    assert screen_lines(star(100), replace(view, reverse=True))[4][1:].startswith("n1 ")


def test_colours_mark_faults_and_losses_and_are_absent_without_them() -> None:
    """31 is red, for losses."""
    view = View(panel=1)
    assert "\x1b[31mn2:eth0 → s1:2" in screen_codes(two_nodes(), view)
    plain = screen_codes(two_nodes(), view, color=False)
    assert "\x1b[3" not in plain
    assert "\x1b[7m" in plain  # the selection is visible without colours
    assert "▸n1:eth0 → s1:1" in "\n".join(screen_lines(two_nodes(), view))


def test_an_ascii_terminal_gets_only_ascii() -> None:
    screen = terminal_console(80, 24, encoding="ascii")
    screen.print(frame(two_nodes(), View(panel=1), 80, 24), end="")  # other characters would raise an encoding error
    assert isinstance(screen.file, io.TextIOWrapper)


def test_control_characters_of_program_names_are_escaped_on_the_terminal() -> None:
    hostile_node = Node("n1", "up", (), (Program(1, "\x1b[2Jx\r\n", 0.5, 1),))
    text = "\n".join(screen_lines(replace(two_nodes(), nodes=(hostile_node,)), width=200))
    assert "?[2Jx??" in text
    assert "\x1b" not in text


def test_a_prompt_is_in_the_last_line_with_its_end_visible() -> None:
    prompt = Prompt("inject n1", ("inject", "n1"), "--delay " + 20 * "12345", 108)
    last = screen_lines(two_nodes(), View(prompt=prompt), width=40)[-1]
    assert last.startswith(" inject n1 ")
    assert last.rstrip().endswith("345")


def test_a_long_message_is_truncated_to_its_line() -> None:
    lines = screen_lines(two_nodes(), View(message="x" * 300, failed=True))
    assert len(lines) == 24
    assert lines[-1].rstrip().endswith("…")


def test_a_printed_page_has_all_rows_and_no_selection() -> None:
    with io.StringIO() as file:
        Console(width=200, file=file).print(page(star(100), 200))
        text = file.getvalue()
    assert all(f" n{i} " in text for i in range(1, 101))
    assert "▸" not in text


@given(
    width=st.integers(1, 250),
    height=st.integers(1, 60),
    panel=st.integers(0, len(PANELS) - 1),
    nodes=st.integers(0, 30),
    view=st.sampled_from(
        [View(), View(help=True), View(message="done"), View(prompt=Prompt("inject n1", (), "abc", 1))]
    ),
)
def test_a_frame_fills_any_screen_exactly(width: int, height: int, panel: int, nodes: int, view: View) -> None:
    for snapshot in (two_nodes(), star(nodes), Absent("there is nothing")):
        lines = frame(snapshot, replace(view, panel=panel), width, height).lines
        assert len(lines) == height
        assert all(sum(len(text) for text, _ in line) <= width for line in lines)


@pytest.mark.parametrize("panel", range(len(PANELS)))
def test_every_row_has_a_cell_for_every_column(panel: int) -> None:
    for row in PANELS[panel].rows(two_nodes()):
        assert len(row.cells) == len(PANELS[panel].columns)
        assert len(row.order) >= len(PANELS[panel].sorts)
