"""Drawing of a snapshot in lines and columns, for `testbed top`.

Pure: a snapshot and the user's choices in, a rich renderable out. It is made of lines and not of rich's tables, which
measure every cell of every row twice: a hundred nodes are drawn each second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from testbed.cli.consoles import in_words
from testbed.cli.screen.panels import PANELS, Column, Panel, Row, clock, ordered, scaled, share
from testbed.cli.screen.view import HELP, View
from testbed.observe.live.snapshot import Absent, Snapshot

Span = tuple[str, Style]
Line = list[Span]

PLAIN = Style()
DIM = Style(dim=True)
BOLD = Style(bold=True)
TITLE = Style(bold=True, color="cyan")
HEADING = Style(underline=True)
CHOSEN = Style(reverse=True)
TAB = Style(bold=True, reverse=True)
ALARM = Style(color="red")
CHANGED = Style(color="yellow")
PROMPT = Style(bold=True, color="cyan")

_GAP = "  "
# Heights from which there is room for the complete head, for details, for events.
_LOW, _MIDDLE, _TALL = 8, 16, 20
_MIN_WIDE = 12  # characters that a wide column needs at least
_ASCII = str.maketrans({"→": ">", "▸": ">", "─": "-", "·": "-", "…": "~", "↓": "v", "↑": "^"})


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines, none wider than the screen."""

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
    """Draw the complete screen."""
    if isinstance(snapshot, Absent):
        body = [[("", PLAIN)], *([(f" {line}", BOLD)] for line in _wrapped(snapshot.why, width - 2))]
        lines = [_spread([(" testbed top", TITLE)], [], width), *body]
        return _finished(lines, view, width, height)
    lines = _head(snapshot, view, width)
    if height < _LOW:
        lines = lines[:1]
    if view.help:
        return _finished([*lines, *([(f" {line}", PLAIN)] for line in HELP)], view, width, height)
    panel = PANELS[view.panel]
    rows = ordered(panel, snapshot, view.sort, reverse=view.reverse)
    left = height - len(lines) - 2  # without the table's titles and the foot
    detail = _detail(rows, view, width, height)
    events = _events(snapshot, width, max(height // 8, left - len(detail) - len(rows) - 1)) if height >= _TALL else []
    below = [*detail, *events] if panel.name != "Events" else detail
    room = max(1, left - len(below))
    return _finished([*lines, *_table(panel, rows, view, width, room), *below], view, width, height)


def page(snapshot: Snapshot, width: int) -> Frame:
    """Draw all panels with rows below one another, for output without a terminal."""
    lines = _head(snapshot, View(), width)[:2]
    for panel in PANELS:
        rows = panel.rows(snapshot)
        if rows:
            lines += [[], [(f" {panel.name}", TITLE)], *_table(panel, rows, None, width, len(rows))]
    return Frame([_cut(line, width) for line in lines], width)


def _finished(lines: list[Line], view: View, width: int, height: int) -> Frame:
    """Cut or fill to the height, with the foot as the last line."""
    kept = lines[: height - 1]
    kept += [[]] * (height - 1 - len(kept))
    return Frame([_cut(line, width) for line in [*kept, _foot(view, width)]], width)


def _head(snapshot: Snapshot, view: View, width: int) -> list[Line]:
    title: Line = [(f" {clean(snapshot.cluster)}", TITLE), (f"  {snapshot.summary}", PLAIN)]
    first = _spread(title, [(f"up for {in_words(snapshot.age)}  {clock(snapshot.time)[:8]} ", DIM)], width)
    if snapshot.warning:
        second: Line = [(f" {clean(snapshot.warning)}", ALARM)]
    else:
        ways = [direction for link in snapshot.links for direction in (link.forward, link.backward)]
        drops = sum(way.drop_rate for way in ways)
        second = [
            (
                f" {scaled(sum(way.rate for way in ways))} frames/s  {scaled(sum(way.bits for way in ways))}bit/s  ",
                PLAIN,
            ),
            (f"{scaled(drops)} drops/s", ALARM if drops else PLAIN),
            (f"  {len(snapshot.faults)} injected", CHANGED if snapshot.faults else PLAIN),
            *(
                (f"  {clean(program.name).removeprefix('testbed-')} {share(program.cpu)} CPU", DIM)
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


def _table(panel: Panel, rows: Sequence[Row], view: View | None, width: int, room: int) -> list[Line]:
    """Draw the column titles and the rows around the selected one. Without a view none is selected."""
    if not rows:
        return [[(f" {panel.none}", DIM)]]
    chosen = view.chosen(rows) if view is not None else -1
    first = max(0, min(chosen - room // 2, len(rows) - room))
    shown = rows[first : first + room]
    places = _places(panel.columns, rows, width - 1)
    titles: Line = [(" ", PLAIN)]
    for number, (column_index, wide) in enumerate(places):
        column = panel.columns[column_index]
        titles += [(_GAP if number else "", PLAIN), (_fitted(column.title, wide, right=column.right), HEADING)]
    lines = [titles]
    for number, row in enumerate(shown, first):
        style = CHOSEN if number == chosen else ALARM if row.alarm else CHANGED if row.changed else PLAIN
        text = _GAP.join(
            _fitted(row.cells[column_index], wide, right=panel.columns[column_index].right)
            for column_index, wide in places
        )
        lines.append([("▸" if number == chosen else " ", BOLD), (text, style)])
    return lines


def _places(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[tuple[int, int]]:
    """Select the columns that fit, with their widths. Those of equal importance stay or go together."""
    wanted, importance = {}, {}
    for place, column in enumerate(columns):
        longest = max(len(row.cells[place]) for row in rows)
        if longest or not column.wide:
            wanted[place] = max(len(column.title), longest)
            importance[place] = column.importance if longest else min(column.importance, 1)
    least = {place: min(wide, _MIN_WIDE) if columns[place].wide else wide for place, wide in wanted.items()}
    for level in sorted(set(importance.values()) - {0}):
        if sum(least.values()) + len(_GAP) * (len(least) - 1) <= width:
            break
        least = {place: wide for place, wide in least.items() if importance[place] != level}
    spare = width - sum(least.values()) - len(_GAP) * (len(least) - 1)
    for place in least:
        more = max(0, min(wanted[place] - least[place], spare))
        least[place] += more
        spare -= more
    return list(least.items())


def _detail(rows: Sequence[Row], view: View, width: int, height: int) -> list[Line]:
    """Lines on the selected row."""
    if not rows or height < _MIDDLE:
        return []
    detail = rows[view.chosen(rows)].detail
    lines = [part for text in detail for part in _wrapped(clean(text), width - 2)[: 2 if height < 30 else 4]]
    return [[("─" * width, DIM)], *([(f" {text}", PLAIN)] for text in lines)]


def _events(snapshot: Snapshot, width: int, max_events: int) -> list[Line]:
    """Lines for the last events, at most `max_events`."""
    if not snapshot.events:
        return []
    lines: list[Line] = [[("─" * width, DIM)]]
    for event in snapshot.events[-max_events:]:
        words = ": ".join(part for part in (event.kind, event.where, event.what) if part)
        lines.append([(_fitted(f" {clock(event.time)[:8]} {words}", width).rstrip(), DIM)])
    return lines


def _foot(view: View, width: int) -> Line:
    if view.prompt is not None:
        title = f" {view.prompt.title} "
        room = max(8, width - len(title) - 1)
        before, after = view.prompt.text[: view.prompt.cursor], view.prompt.text[view.prompt.cursor :]
        before = before[-(room - 1) :]
        after = after[: room - len(before)]
        return [(title, PROMPT), (before, PLAIN), (after[:1] or " ", CHOSEN), (after[1:], PLAIN)]
    if view.message:
        return [(f" {_fitted(view.message, width - 1).rstrip()}", ALARM if view.failed else BOLD)]
    return [(" q quit  ? help  tab panel  i inject  d down  u up  f flap  h heal  s sort  p pause", DIM)]


def clean(text: str) -> str:
    """Replace unprintable characters: a program's name may be anything."""
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)


def _fitted(text: str, width: int, *, right: bool = False) -> str:
    """Pad or cut the text to the width."""
    text = clean(text)
    if len(text) > width:
        return f"{text[: max(0, width - 1)]}…"[:width]
    return text.rjust(width) if right else text.ljust(width)


def _wrapped(text: str, width: int) -> list[str]:
    lines, rest = [], text
    while len(rest) > width > 0:
        at = rest.rfind(" ", 0, width + 1)
        at = at if at > 0 else width
        lines.append(rest[:at])
        rest = rest[at:].lstrip()
    return [*lines, rest]


def _spread(left: Line, right: Line, width: int) -> Line:
    """Put one line at the left edge and one at the right; the left one alone where both do not fit."""
    used = sum(len(text) for text, _ in left)
    more = sum(len(text) for text, _ in right)
    return [*left, (" " * (width - used - more), PLAIN), *right] if used + more + 1 <= width else left


def _cut(line: Line, width: int) -> Line:
    kept: Line = []
    for text, style in line:
        if len(text) >= width:
            kept.append((text[:width], style))
            return kept
        kept.append((text, style))
        width -= len(text)
    return kept
