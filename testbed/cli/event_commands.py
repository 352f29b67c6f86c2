"""Command ``events``: print the events of a cluster or a run, also as they happen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import cluster_argument, cluster_named, echo, json_option, name_option, print_json

if TYPE_CHECKING:
    from testbed.observe.format.event_format import Event

_POLL_INTERVAL = 0.1  # s at a file that grows
_KIND_WIDTH = 12


@click.command("events", short_help="Show the events of a cluster or run.")
@cluster_argument
@click.option("-f", "--follow", is_flag=True, help="Keep printing until Ctrl-C, or the end of the cluster or run.")
@click.option("--since", metavar="TIME", help="Oldest event: 10s (ago), 22:50 (today), 2026-11-21T22:50.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Only events of this kind, such as inject or 'relay'; repeatable.",
)
@name_option
@json_option
def events_command(
    cluster: str | None, follow: bool, since: str | None, kinds: Sequence[str], name: str | None, as_json: bool
) -> None:
    """Show the events of a cluster, or of the run in a folder, the oldest first.

    \b
    testbed events --follow                   past and future events
    testbed events --since 1min --kind relay  events of the relay: died, restarted, behind
    testbed events results/runs/20261121-...  events of a run

    With --json each event is printed as one line, a document of kind "event".
    """
    from testbed.observe.format.event_format import format_event

    begin = _parse_since(since)
    source = _find_source(cluster_named(cluster, name))
    is_requested = _kind_filter(kinds, source)
    try:
        for event in source.events(follow=follow):
            formatted = format_event(event)
            if formatted.time < begin or not is_requested(formatted.kind):
                continue
            if as_json:
                facts = {key: value for key, value in event.items() if key not in ("time", "event")}
                document = {
                    "of": source.name,
                    "time": formatted.time,
                    "event": formatted.kind,
                    "where": formatted.where,
                    "what": formatted.what,
                }
                print_json("event", {**document, "facts": facts}, line=True)
            else:
                echo(_line(formatted.time, formatted.kind, formatted.where, formatted.what))
    except KeyboardInterrupt:
        if not follow:
            raise
        return
    if follow:
        echo(source.final_message(), err=True)


@dataclass(frozen=True, slots=True)
class _Source:
    """A file of events. name: name of the cluster, or the run's folder. has_ended: whether no events will be added.
    final_message: returns the message to print then."""

    name: str
    file: Path
    has_ended: Callable[[], bool]
    final_message: Callable[[], str]

    def events(self, *, follow: bool) -> Iterator[Event]:
        from testbed.observe.format.event_format import Tail

        tail = Tail(self.file)
        try:
            while True:
                is_last = not follow or self.has_ended()  # checked before reading, so that the last events are read
                yield from tail.read()
                if is_last:
                    return
                time.sleep(_POLL_INTERVAL)  # poll(2) does not wait for a regular file to grow
        finally:
            tail.close()


def _find_source(name: str | None) -> _Source:
    """Find the events of a cluster, or of the run in a folder. Raises NotFoundError with the valid names."""
    from testbed.cluster.records.state import Store
    from testbed.runtime import event_log

    store = Store()
    if name is not None and (os.sep in name or (name not in store.names() and os.path.isdir(name))):
        return _run_source(Path(name))
    cluster = store.existing_name(name)
    directory = store.directory(cluster)
    # By its descriptor: a cluster that is brought up again has a new directory of the same name.
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return _Source(
        cluster,
        directory / event_log.FILE,
        lambda: os.fstat(handle).st_nlink == 0,
        lambda: f"{cluster} has been taken down",
    )


def _run_source(folder: Path) -> _Source:
    from testbed.observe.recorded import EVENTS, RESULT, read_run

    read_run(folder)
    return _Source(
        str(folder),
        folder / EVENTS,
        (folder / RESULT).exists,
        lambda: f"the run has ended: {read_run(folder).status}",
    )


def _kind_filter(kinds: Sequence[str], source: _Source) -> Callable[[str], bool]:
    """Return a predicate for the requested kinds. Raises click.BadParameter for a kind neither known nor recorded."""
    from testbed.observe.format import event_format

    def matches(kind: str, requested: str) -> bool:
        return kind.lower() == requested.lower() or kind.lower().startswith(f"{requested.lower()} ")

    known_kinds = dict.fromkeys(event_format.kinds()) if kinds else {}
    if any(not any(matches(kind, requested) for kind in known_kinds) for requested in kinds):
        known_kinds |= dict.fromkeys(event_format.format_event(event).kind for event in source.events(follow=False))
    for requested in kinds:
        if not any(matches(kind, requested) for kind in known_kinds):
            from testbed.spec.problems import nearest

            near = nearest(requested, known_kinds)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(known_kinds))}"
            raise click.BadParameter(f"no event is of kind {requested!r}; {hint}", param_hint="--kind")
    return lambda kind: not kinds or any(matches(kind, requested) for requested in kinds)


def _parse_since(since: str | None) -> int:
    """Parse a time; return nanoseconds since the epoch, 0 for None. Raises click.BadParameter."""
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


def _line(nanoseconds: int, kind: str, where: str, what: str) -> str:
    moment = datetime.fromtimestamp(nanoseconds / 1e9)
    day = "" if moment.date() == datetime.now().date() else f"{moment:%Y-%m-%d} "
    details = ": ".join(part for part in (where, what) if part)
    line = f"{day}{moment:%H:%M:%S}.{nanoseconds // 10**6 % 1000:03} {f'{kind}:':<{_KIND_WIDTH}} {details}".rstrip()
    return " ".join(line.splitlines())  # one line for each event
