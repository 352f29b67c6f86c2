"""State of the view, and its changes by keys: pure functions.

A key may also request an action: to run a `testbed` command, or to quit.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from testbed.cli.screen.panels import PANELS, Row, sort_rows
from testbed.observe.live.snapshot import Absent, Snapshot

HELP: Final = (
    "",
    "↑ ↓ j k    select             tab        next panel (shift-tab: previous; 1 to 5)",
    "page keys  a screenful        g G        the first, the last",
    "i          inject on the selected link or node: the options of 'testbed inject',",
    "           such as --loss 5% --delay 2ms --for 10s",
    "d u        link down, up      f          flap (down for a second)",
    "h          heal the injections on the selection, or the selected fault",
    "H          heal all injections",
    "s S        next sort order, reverse",
    "p space    pause              ?          this help",
    "q Ctrl-C   quit               Esc        close the prompt or this help",
)
_PAGE: Final = 10  # rows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    """An input line. title: shown before it. words: arguments of the command that it completes."""

    title: str
    words: tuple[str, ...]
    text: str = ""
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The user's choices. panel: index of the panel shown. keys: key of each panel's selected row. sorts: sort order of each
    panel, see `sort_rows`. reverse: whether the order is reversed. paused: whether the snapshot is kept. help: whether the
    help is shown. prompt: open input line. typed: text of the last prompt. message: text of the last line. failed: whether
    the message is an error."""

    panel: int = 0
    keys: tuple[str, ...] = field(default=("",) * len(PANELS))
    sorts: tuple[int, ...] = field(default=(0,) * len(PANELS))
    reverse: bool = False
    paused: bool = False
    help: bool = False
    prompt: Prompt | None = None
    typed: str = ""
    message: str = ""
    failed: bool = False

    @property
    def sort(self) -> int:
        return self.sorts[self.panel]

    def selected(self, rows: Sequence[Row]) -> int:
        """Return the index of the selected row; 0 if the row no longer exists, or no row has been selected."""
        key = self.keys[self.panel]
        return next((index for index, row in enumerate(rows) if row.key == key), 0)


@dataclass(frozen=True, slots=True)
class Quit:
    """Action: end the view."""


@dataclass(frozen=True, slots=True)
class Command:
    """Action: run a `testbed` command. words: its arguments, without the cluster's name."""

    words: tuple[str, ...]


Action = Quit | Command | None


def press(view: View, key: str, snapshot: Snapshot | Absent) -> tuple[View, Action]:
    """Apply a key; return the changed view and the requested action. key: a name as of `Keys`."""
    if key == "ctrl-c":
        return view, Quit()
    if view.prompt is not None:
        return _edit(view, view.prompt, key)
    view = replace(view, message="", failed=False)
    if view.help:
        return replace(view, help=False), None
    match key:
        case "q":
            return view, Quit()
        case "?":
            return replace(view, help=True), None
        case "p" | " ":
            return replace(view, paused=not view.paused), None
        case "tab" | "right":
            return _switch_panel(view, (view.panel + 1) % len(PANELS)), None
        case "shift-tab" | "left":
            return _switch_panel(view, (view.panel - 1) % len(PANELS)), None
        case "s":
            count = len(PANELS[view.panel].sorts) + 1
            return replace(view, sorts=_replace_at(view.sorts, view.panel, (view.sort + 1) % count)), None
        case "S":
            return replace(view, reverse=not view.reverse), None
    if key.isdigit() and 1 <= int(key) <= len(PANELS):
        return _switch_panel(view, int(key) - 1), None
    if isinstance(snapshot, Absent):
        return view, None
    rows = sort_rows(PANELS[view.panel], snapshot, view.sort, reverse=view.reverse)
    steps = {"down": 1, "j": 1, "up": -1, "k": -1, "page-down": _PAGE, "page-up": -_PAGE, "home": -len(rows)}
    steps |= {"g": -len(rows), "end": len(rows), "G": len(rows)}
    if key in steps:
        if not rows:
            return view, None
        index = max(0, min(len(rows) - 1, view.selected(rows) + steps[key]))
        return replace(view, keys=_replace_at(view.keys, view.panel, rows[index].key)), None
    return _request(view, key, rows, snapshot)


def _request(view: View, key: str, rows: Sequence[Row], snapshot: Snapshot) -> tuple[View, Action]:
    """Apply a key that changes the cluster."""
    row = rows[view.selected(rows)] if rows else None
    target = row.target if row is not None else ""
    if key == "H":
        return replace(view, message="healing everything ..."), Command(("heal",))
    if key == "h":
        numbers = _numbers(view, row, snapshot)
        if not numbers:
            return replace(view, message=f"nothing is injected on {target}" if target else "nothing is injected"), None
        return replace(view, message="healing ..."), Command(("heal", *numbers))
    if key not in ("i", "d", "u", "f"):
        return view, None
    if not target:
        return replace(view, message="select a node or a link first (tab)", failed=True), None
    if key == "i":
        prompt = Prompt(f"inject {target}", ("inject", target), view.typed, len(view.typed))
        return replace(view, prompt=prompt), None
    action = {"d": "down", "u": "up", "f": "flap"}[key]
    return replace(view, message=f"link {target} {action} ..."), Command(("link", target, action))


def _numbers(view: View, row: Row | None, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the numbers of the faults on the selection."""
    if row is None:
        return ()
    if PANELS[view.panel].name == "Faults":
        return (row.key,)
    links = {link.name for link in snapshot.links if row.target in (link.name, _owner(link.a), _owner(link.b))}
    return tuple(str(fault.number) for fault in snapshot.faults if links & set(fault.links))


def _owner(end: str) -> str:
    """Return the node or switch of a link's end, which is written OWNER:PORT."""
    return end.partition(":")[0]


def _edit(view: View, prompt: Prompt, key: str) -> tuple[View, Action]:
    """Apply a key to the prompt."""
    text, cursor = prompt.text, prompt.cursor
    match key:
        case "escape":
            return replace(view, prompt=None, typed=text), None
        case "enter":
            view = replace(view, prompt=None, typed=text)
            try:
                words = (*prompt.words, *shlex.split(text))
            except ValueError as error:
                return replace(view, message=f"{text}: {error}", failed=True), None
            return replace(view, message=f"{shlex.join(words)} ..."), Command(words)
        case "backspace":
            text, cursor = text[: max(0, cursor - 1)] + text[cursor:], max(0, cursor - 1)
        case "delete":
            text = text[:cursor] + text[cursor + 1 :]
        case "ctrl-u":
            text, cursor = text[cursor:], 0
        case "left":
            cursor = max(0, cursor - 1)
        case "right":
            cursor = min(len(text), cursor + 1)
        case "home":
            cursor = 0
        case "end":
            cursor = len(text)
        case _ if len(key) == 1 and key.isprintable():
            text, cursor = text[:cursor] + key + text[cursor:], cursor + 1
    return replace(view, prompt=replace(prompt, text=text, cursor=cursor)), None


def show_result(view: View, message: str, *, failed: bool) -> View:
    """Show the result of a command. An open prompt stays; the text of a failed command is kept for the next prompt."""
    return replace(view, message=message, failed=failed, typed=view.typed if failed else "")


def _switch_panel(view: View, panel: int) -> View:
    return replace(view, panel=panel, reverse=False)


def _replace_at(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
