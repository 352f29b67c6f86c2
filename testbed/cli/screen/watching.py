"""Showing a cluster in a terminal until the user quits: a look every so often, a picture after each and after every key."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from testbed.cli.screen.commands import Commands
from testbed.cli.screen.frame import frame
from testbed.cli.screen.panels import PANELS
from testbed.cli.screen.terminal import taken
from testbed.cli.screen.view import Command, Quit, View, pressed, told
from testbed.observe.live.gathering import Gathering
from testbed.observe.live.snapshot import Absent, Snapshot


def watch(gathering: Gathering, interval: float, console: Console, keyboard: int) -> None:
    """interval: seconds between two looks. keyboard: the terminal's descriptor. The terminal is as before at the end."""
    commands = Commands()
    try:
        with taken(keyboard) as terminal, console.screen(hide_cursor=True):
            view, due = View(), 0.0
            snapshot: Snapshot | Absent = Absent("")
            while True:
                now = time.monotonic()
                if now >= due and not view.paused:
                    snapshot = gathering.look(agents=PANELS[view.panel].name == "NICs")
                    due = max(due + interval, now) if due else now + interval
                width, height = console.size
                console.update_screen(frame(snapshot, view, width, height))
                left = 60.0 if view.paused else due - time.monotonic()
                woken = terminal.wait(left, commands.descriptors())
                if woken.interrupted or woken.gone:
                    return
                if woken.ready:
                    done = commands.done()
                    view, due = told(view, done.message, failed=done.failed), 0.0
                for key in woken.keys:
                    view, action = pressed(view, key, snapshot)
                    if isinstance(action, Quit):
                        return
                    if isinstance(action, Command) and isinstance(snapshot, Snapshot):
                        commands.start(words(snapshot.cluster, action))
    finally:
        commands.finish()


def words(cluster: str, action: Command) -> Sequence[str]:
    """Of the whole command: what the user has typed after what we know, so that it is he who has the last word."""
    name, *rest = action.words
    return [name, "--name", cluster, *rest]
