"""``events``: what was done to a cluster or in a run and what happened to it, line by line, also while it happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.options import chosen, cluster_argument, json_option, name_option, print_json

if TYPE_CHECKING:
    from testbed.observe.telling import Event

_MOMENT = 0.1  # s between two looks at a file that grows
_KIND_WIDE = 12


@click.command("events", short_help="Show what was done to a cluster and what happened to it.")
@cluster_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C, or the end of the cluster or run.")
@click.option("--since", metavar="TIME", help="Not older than that: 10s (ago), 22:50 (today), 2026-11-21T22:50.")
@click.option(
    "--kind", "kinds", multiple=True, metavar="KIND", help="Only these, such as inject or 'relay'; repeatable."
)
@name_option
@json_option
def events_command(
    cluster: str | None, follow: bool, since: str | None, kinds: Sequence[str], name: str | None, as_json: bool
) -> None:
    """Show what was done to a cluster and what happened to it, the oldest first. In its place may stand a run's folder.

    \b
    testbed events --follow                   what happens from now on, too
    testbed events --since 1min --kind relay  of the relay: died, restarted, behind
    testbed events results/runs/20261121-...  of a run

    With --json every event is a line, an object of kind "event".
    """
    from testbed.observe.telling import told

    begin = _moment(since)
    source = _source(chosen(cluster, name))
    wanted = _wanted(kinds, source)
    try:
        for event in source.events(follow=follow):
            one = told(event)
            if one.time < begin or not wanted(one.kind):
                continue
            if as_json:
                facts = {key: value for key, value in event.items() if key not in ("time", "event")}
                document = {
                    "of": source.name,
                    "time": one.time,
                    "event": one.kind,
                    "where": one.where,
                    "what": one.what,
                }
                print_json("event", {**document, "facts": facts}, line=True)
            else:
                click.echo(_line(one.time, one.kind, one.where, one.what))
    except KeyboardInterrupt:
        if not follow:
            raise
        return
    if follow:
        click.echo(source.end(), err=True)


@dataclass(frozen=True, slots=True)
class _Source:
    """name: of the cluster, or the run's folder. ended: whether nothing more will be written. end: a sentence then."""

    name: str
    file: Path
    ended: Callable[[], bool]
    end: Callable[[], str]

    def events(self, *, follow: bool) -> Iterator[Event]:
        from testbed.observe.following import Tail

        tail = Tail(self.file)
        try:
            while True:
                over = not follow or self.ended()  # asked first: what was written until then is still read
                yield from tail.read()
                if over:
                    return
                time.sleep(_MOMENT)  # a file has no other way to say that it has grown
        finally:
            tail.close()


def _source(name: str | None) -> _Source:
    """NotFoundError says what there is."""
    from testbed.cluster.state import Store
    from testbed.runtime import events

    store = Store()
    if name is not None and (os.sep in name or (name not in store.names() and os.path.isdir(name))):
        return _run(Path(name))
    cluster = store.existing(name)
    directory = store.directory(cluster)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # one that comes up again has another
    return _Source(
        cluster,
        directory / events.FILE,
        lambda: os.fstat(handle).st_nlink == 0,
        lambda: f"{cluster} has been taken down",
    )


def _run(folder: Path) -> _Source:
    from testbed.observe.recorded import EVENTS, RESULT, recorded

    recorded(folder)
    return _Source(
        str(folder),
        folder / EVENTS,
        (folder / RESULT).exists,
        lambda: f"the run has ended: {recorded(folder).status}",
    )


def _wanted(kinds: Sequence[str], source: _Source) -> Callable[[str], bool]:
    """Whether events of a kind are asked for. A kind that neither is known nor has occurred is a mistake."""
    from testbed.observe.telling import kinds as known
    from testbed.observe.telling import told

    def fits(kind: str, asked: str) -> bool:
        return kind.lower() == asked.lower() or kind.lower().startswith(f"{asked.lower()} ")

    there = dict.fromkeys(known()) if kinds else {}
    if any(not any(fits(kind, asked) for kind in there) for asked in kinds):
        there |= dict.fromkeys(told(event).kind for event in source.events(follow=False))
    for asked in kinds:
        if not any(fits(kind, asked) for kind in there):
            from testbed.spec.problems import nearest

            near = nearest(asked, there)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(there))}"
            raise click.BadParameter(f"no event is of kind {asked!r}; {hint}", param_hint="--kind")
    return lambda kind: not kinds or any(fits(kind, asked) for asked in kinds)


def _moment(since: str | None) -> int:
    """Nanoseconds of the epoch."""
    if since is None:
        return 0
    from testbed.spec.units import UnitError, parse_duration

    try:
        return time.time_ns() - parse_duration(since)
    except UnitError:
        pass
    try:
        text = f"{datetime.now().date()}T{since}" if since[2:3] == ":" else since
        return int(datetime.fromisoformat(text).timestamp() * 1e9)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{since!r} is neither a time ago (10s), nor one of today (22:50), nor a date (2026-11-21T22:50)",
            param_hint="--since",
        ) from error


def _line(when: int, kind: str, where: str, what: str) -> str:
    moment = datetime.fromtimestamp(when / 1e9)
    day = "" if moment.date() == datetime.now().date() else f"{moment:%Y-%m-%d} "
    said = ": ".join(part for part in (where, what) if part)
    line = f"{day}{moment:%H:%M:%S}.{when // 10**6 % 1000:03} {f'{kind}:':<{_KIND_WIDE}} {said}".rstrip()
    return line if line.isprintable() else "".join(one if one.isprintable() else "?" for one in line)
