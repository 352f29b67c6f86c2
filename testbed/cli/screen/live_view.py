"""Loop of the full-screen view: a snapshot at each interval, a redraw after each snapshot and each key, until the user
quits."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console

from testbed.cli.screen.frame import frame
from testbed.cli.screen.key_commands import Commands
from testbed.cli.screen.panels import PANELS
from testbed.cli.screen.terminal import take_over
from testbed.cli.screen.view import Command, Quit, View, press, show_result
from testbed.observe.live.snapshot import Absent, Snapshot


class Sampler(Protocol):
    """Sampler of a cluster: `SnapshotSampler`, or `SpreadSampler` for a cluster on several machines."""

    def sample(self, *, agents: bool = True) -> Snapshot | Absent: ...


def watch(
    sampler: Sampler, interval: float, console: Console, keyboard: int, command_prefix: Sequence[str] = ()
) -> None:
    """Show the cluster until the user quits. interval: seconds between two snapshots. keyboard: the terminal's
    descriptor. command_prefix: ('machines', FILE) for a cluster on several machines, otherwise empty. A signal that ends the
    program is raised again after the terminal has been restored."""
    commands = Commands()
    ended_by = 0
    try:
        with take_over(keyboard) as terminal, console.screen(hide_cursor=True):
            view, due = View(), 0.0
            has_agents = False  # whether the snapshot has the data of agents, which only one panel shows
            snapshot: Snapshot | Absent = Absent("")
            while True:
                now = time.monotonic()
                needs_agents = PANELS[view.panel].name == "NICs"
                if (now >= due and not view.paused) or (needs_agents and not has_agents):
                    snapshot = sampler.sample(agents=needs_agents)
                    has_agents = needs_agents
                    due = due + interval if now >= due > now - interval else now + interval
                width, height = console.size
                console.update_screen(frame(snapshot, view, width, height))
                timeout = 60.0 if view.paused else due - time.monotonic()
                event = terminal.wait(timeout, commands.descriptors())
                if event.interrupted or event.gone or event.ended_by:
                    ended_by = event.ended_by
                    break
                if event.ready:
                    result = commands.wait()
                    view, due = show_result(view, result.message, failed=result.failed), 0.0
                for key in event.keys:
                    view, action = press(view, key, snapshot)
                    if isinstance(action, Quit):
                        return
                    if isinstance(action, Command) and isinstance(snapshot, Snapshot):
                        commands.start(arguments(snapshot.cluster, action, command_prefix))
        if ended_by:
            signal.raise_signal(ended_by)
    finally:
        commands.finish()


def arguments(cluster: str, action: Command, command_prefix: Sequence[str] = ()) -> Sequence[str]:
    """Return the arguments of a command on the cluster. The user's arguments are last, so that they take precedence.
    command_prefix: see `watch`."""
    name, *user_arguments = action.words
    if command_prefix:
        group, file = command_prefix
        return [group, name, file, cluster, *user_arguments]
    return [name, "--name", cluster, *user_arguments]
