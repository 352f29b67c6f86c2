"""Drawing of a snapshot in lines and columns, for `testbed top`.

Pure functions from a snapshot and the user's choices to a rich renderable. It consists of lines instead of rich's tables,
which measure every cell of every row twice: too slow for a hundred nodes each second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from testbed.cli.consoles import format_age
from testbed.cli.screen.panels import PANELS, Column, Panel, Row, format_decimal, format_share, format_time, sort_rows
from testbed.cli.screen.view import HELP, View
from testbed.observe.live.snapshot import Absent, Snapshot

Span = tuple[str, Style]
Line = list[Span]

PLAIN = Style()
DIM = Style(dim=True)
BOLD = Style(bold=True)
TITLE = Style(bold=True, color="cyan")
HEADING = Style(underline=True)
SELECTED = Style(reverse=True)
TAB = Style(bold=True, reverse=True)
ALARM = Style(color="red")
CHANGED = Style(color="yellow")
PROMPT = Style(bold=True, color="cyan")

_GAP = "  "
# Minimum heights for the complete head, for details, for events.
_MIN_HEAD_HEIGHT, _MIN_DETAIL_HEIGHT, _MIN_EVENTS_HEIGHT = 8, 16, 20
_MIN_WIDE_COLUMN = 12  # minimum width of a wide column, characters
_ASCII = str.maketrans({"→": ">", "▸": ">", "─": "-", "·": "-", "…": "~", "↓": "v", "↑": "^"})


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines that fit the screen's width."""

    lines: Sequence[Line]
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        end = Segment.line()
        for number, line in enumerate(self.lines):
            if number:
                yield end
            for text, style in line:
                yield Segment(text.translate(_ASCII) if options.ascii_only else text, style)


def frame(snapshot: Snapshot | Absent, view: View, width: int, height: int) -> Frame:
    """Draw the complete screen. width, height: of the terminal, characters."""
    if isinstance(snapshot, Absent):
        body = [[("", PLAIN)], *([(f" {line}", BOLD)] for line in _wrap(snapshot.why, width - 2))]
        lines = [_spread([(" testbed top", TITLE)], [], width), *body]
        return _fit_height(lines, view, width, height)
    lines = _head(snapshot, view, width)
    if height < _MIN_HEAD_HEIGHT:
        lines = lines[:1]
    if view.help:
        return _fit_height([*lines, *([(f" {line}", PLAIN)] for line in HELP)], view, width, height)
    panel = PANELS[view.panel]
    rows = sort_rows(panel, snapshot, view.sort, reverse=view.reverse)
    remaining = height - len(lines) - 2  # the table's titles and the foot take a line each
    detail = _detail(rows, view, width, height)
    events = (
        _events(snapshot, width, max(height // 8, remaining - len(detail) - len(rows) - 1))
        if height >= _MIN_EVENTS_HEIGHT
        else []
    )
    below = [*detail, *events] if panel.name != "Events" else detail
    max_rows = max(1, remaining - len(below))
    return _fit_height([*lines, *_table(panel, rows, view, width, max_rows), *below], view, width, height)


def page(snapshot: Snapshot, width: int) -> Frame:
    """Draw all panels with rows, one below the other, for output without a terminal."""
    lines = _head(snapshot, View(), width)[:2]
    for panel in PANELS:
        rows = panel.rows(snapshot)
        if rows:
            lines += [[], [(f" {panel.name}", TITLE)], *_table(panel, rows, None, width, len(rows))]
    return Frame([_cut(line, width) for line in lines], width)


def _fit_height(lines: list[Line], view: View, width: int, height: int) -> Frame:
    """Cut or fill to the height, with the foot as the last line."""
    fitted = lines[: height - 1]
    fitted += [[]] * (height - 1 - len(fitted))
    return Frame([_cut(line, width) for line in [*fitted, _foot(view, width)]], width)


def _head(snapshot: Snapshot, view: View, width: int) -> list[Line]:
    title: Line = [(f" {clean(snapshot.cluster)}", TITLE), (f"  {snapshot.summary}", PLAIN)]
    first = _spread(title, [(f"up for {format_age(snapshot.age)}  {format_time(snapshot.time)[:8]} ", DIM)], width)
    if snapshot.warning:
        second: Line = [(f" {clean(snapshot.warning)}", ALARM)]
    else:
        directions = [direction for link in snapshot.links for direction in (link.forward, link.backward)]
        drops = sum(direction.drop_rate for direction in directions)
        second = [
            (
                f" {format_decimal(sum(direction.rate for direction in directions))} frames/s  "
                f"{format_decimal(sum(direction.bits for direction in directions))}bit/s  ",
                PLAIN,
            ),
            (f"{format_decimal(drops)} drops/s", ALARM if drops else PLAIN),
            (f"  {len(snapshot.faults)} injected", CHANGED if snapshot.faults else PLAIN),
            *(
                (f"  {clean(program.name).removeprefix('testbed-')} {format_share(program.cpu)} CPU", DIM)
                for program in snapshot.carriers[:3]
            ),
        ]
    tabs: Line = []
    for number, panel in enumerate(PANELS):
        tabs += [(" ", PLAIN), (f" {panel.name} ", TAB if number == view.panel else DIM)]
    sorts = PANELS[view.panel].sorts
    remarks = []
    if view.sort and view.sort <= len(sorts):
        remarks.append(f"by {sorts[view.sort - 1]}")
    remarks += ["reversed"] if view.reverse else []
    remarks += ["PAUSED"] if view.paused else []
    return [first, second, _spread(tabs, [(f"{', '.join(remarks)} ", BOLD)], width)]


def _table(panel: Panel, rows: Sequence[Row], view: View | None, width: int, max_rows: int) -> list[Line]:
    """Draw the column titles and the rows around the selected row. Without a view no row is selected."""
    if not rows:
        return [[(f" {panel.none}", DIM)]]
    selected = view.selected(rows) if view is not None else -1
    first = max(0, min(selected - max_rows // 2, len(rows) - max_rows))
    shown = rows[first : first + max_rows]
    columns_shown = _column_widths(panel.columns, rows, width - 1)
    titles: Line = [(" ", PLAIN)]
    for number, (column_index, column_width) in enumerate(columns_shown):
        column = panel.columns[column_index]
        titles += [(_GAP if number else "", PLAIN), (_fit(column.title, column_width, right=column.right), HEADING)]
    lines = [titles]
    for number, row in enumerate(shown, first):
        style = SELECTED if number == selected else ALARM if row.alarm else CHANGED if row.changed else PLAIN
        text = _GAP.join(
            _fit(row.cells[column_index], column_width, right=panel.columns[column_index].right)
            for column_index, column_width in columns_shown
        )
        lines.append([("▸" if number == selected else " ", BOLD), (text, style)])
    return lines


def _column_widths(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[tuple[int, int]]:
    """Return the indices and widths of the columns that fit. Columns of equal importance are shown or hidden together."""
    full_widths, importance = {}, {}
    for index, column in enumerate(columns):
        longest = max(len(row.cells[index]) for row in rows)
        if longest or not column.wide:
            full_widths[index] = max(len(column.title), longest)
            importance[index] = column.importance if longest else min(column.importance, 1)
    widths = {
        index: min(full_width, _MIN_WIDE_COLUMN) if columns[index].wide else full_width
        for index, full_width in full_widths.items()
    }
    for level in sorted(set(importance.values()) - {0}):
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) <= width:
            break
        widths = {index: column_width for index, column_width in widths.items() if importance[index] != level}
    spare = width - sum(widths.values()) - len(_GAP) * (len(widths) - 1)
    for index in widths:
        growth = max(0, min(full_widths[index] - widths[index], spare))
        widths[index] += growth
        spare -= growth
    return list(widths.items())


def _detail(rows: Sequence[Row], view: View, width: int, height: int) -> list[Line]:
    """Return the lines with the details of the selected row."""
    if not rows or height < _MIN_DETAIL_HEIGHT:
        return []
    detail = rows[view.selected(rows)].detail
    lines = [part for text in detail for part in _wrap(clean(text), width - 2)[: 2 if height < 30 else 4]]
    return [[("─" * width, DIM)], *([(f" {text}", PLAIN)] for text in lines)]


def _events(snapshot: Snapshot, width: int, max_events: int) -> list[Line]:
    """Return the lines for the last events, at most `max_events`."""
    if not snapshot.events:
        return []
    lines: list[Line] = [[("─" * width, DIM)]]
    for event in snapshot.events[-max_events:]:
        words = ": ".join(part for part in (event.kind, event.where, event.what) if part)
        lines.append([(_fit(f" {format_time(event.time)[:8]} {words}", width).rstrip(), DIM)])
    return lines


def _foot(view: View, width: int) -> Line:
    if view.prompt is not None:
        title = f" {view.prompt.title} "
        room = max(8, width - len(title) - 1)
        before, after = view.prompt.text[: view.prompt.cursor], view.prompt.text[view.prompt.cursor :]
        before = before[-(room - 1) :]
        after = after[: room - len(before)]
        return [(title, PROMPT), (before, PLAIN), (after[:1] or " ", SELECTED), (after[1:], PLAIN)]
    if view.message:
        return [(f" {_fit(view.message, width - 1).rstrip()}", ALARM if view.failed else BOLD)]
    return [(" q quit  ? help  tab panel  i inject  d down  u up  f flap  h heal  s sort  p pause", DIM)]


def clean(text: str) -> str:
    """Replace unprintable characters by "?"; a program's name may contain them."""
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)


def _fit(text: str, width: int, *, right: bool = False) -> str:
    """Pad or truncate the text to the width."""
    text = clean(text)
    if len(text) > width:
        return f"{text[: max(0, width - 1)]}…"[:width]
    return text.rjust(width) if right else text.ljust(width)


def _wrap(text: str, width: int) -> list[str]:
    lines, rest = [], text
    while len(rest) > width > 0:
        at = rest.rfind(" ", 0, width + 1)
        at = at if at > 0 else width
        lines.append(rest[:at])
        rest = rest[at:].lstrip()
    return [*lines, rest]


def _spread(left: Line, right: Line, width: int) -> Line:
    """Put one line at the left edge and one at the right; only the left line if both do not fit."""
    spaces = width - sum(len(text) for text, _ in (*left, *right))
    return [*left, (" " * spaces, PLAIN), *right] if spaces >= 1 else left


def _cut(line: Line, width: int) -> Line:
    fitted: Line = []
    for text, style in line:
        if len(text) >= width:
            fitted.append((text[:width], style))
            return fitted
        fitted.append((text, style))
        width -= len(text)
    return fitted
