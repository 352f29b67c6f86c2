"""Command ``capture``: capture frames of links, into a file or as lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import echo, json_option, name_option, print_json, seconds_of, stop_descriptor

if TYPE_CHECKING:
    from testbed.observe.sniff.capture import CaptureResult
    from testbed.observe.sniff.capture_sinks import Sink


@click.command("capture", short_help="Capture frames of links, with their fates.")
@click.argument("target", metavar="LINK|NODE|@TAG|all")
@click.option("-w", "--write", "path", metavar="FILE", help="Write pcapng to this file; '-' is standard output.")
@click.option("--for", "duration", metavar="TIME", help="End after this time, such as 10s.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many frames.")
@name_option
@json_option
def capture_command(
    target: str, path: str | None, duration: str | None, count: int | None, name: str | None, as_json: bool
) -> None:
    """Capture the frames of a link, of all links of a node, switch or tag, or of all links, until Ctrl-C.

    \b
    testbed capture n1                        a line for every frame
    testbed capture n1--s1 -w n1.pcapng       pcapng for Wireshark: one interface per link end, frames sorted by time
    testbed capture all -w - | wireshark -k -i -

    A frame that is dropped, duplicated, corrupted or delayed, by rule or by chance, is shown where it enters the link,
    with its fate as a comment. '>': the frame leaves the named end; '<': it arrives there. A capture does not disturb the
    link.

    With --json each frame is printed as one line, a document of kind "frame"; the last line has the totals, of kind
    "capture". With -w only the totals are printed.
    """
    if as_json and path == "-":
        raise click.UsageError("--json cannot go with -w -: standard output is the capture")
    from testbed.cluster.records.state import Store
    from testbed.errors import NotFoundError
    from testbed.observe.sniff.capture import capture, enter, open_capture_file
    from testbed.observe.sniff.capture_sinks import CaptureFile, JsonSink, LineSink

    seconds = seconds_of(duration)
    store = Store()
    state = store.choose(name)
    cluster = state.name
    if state.abandoned:  # checked before FILE is opened, which truncates an earlier capture
        raise NotFoundError(f"cluster {cluster} is gone: 'testbed gc' removes what is left of it")
    if path is None:
        sink: Sink = JsonSink(partial(print_json, "frame", line=True)) if as_json else LineSink(click.echo)
    else:
        # Opened before entering the user namespace: the file is this user's.
        sink = CaptureFile(1) if path == "-" else CaptureFile(open_capture_file(store, cluster, target, path), path)
    stop = stop_descriptor()
    enter(store, cluster)

    def on_start() -> None:
        if not (seconds or count):
            echo(f"capturing {target} of {cluster}: Ctrl-C ends it", err=True)

    captured = capture(store, cluster, target, sink, stop, seconds=seconds, count=count or 0, on_start=on_start)
    sys.stdout.flush()
    if as_json:
        print_json("capture", {"cluster": cluster, "target": target, **_document(captured)}, line=path is None)
    else:
        _print_totals(captured)


def _document(captured: CaptureResult) -> Mapping[str, object]:
    return {**asdict(captured), "complete": captured.complete}


def _print_totals(captured: CaptureResult) -> None:
    """Print totals and warnings on standard error: standard output may be the capture."""
    total = sum(captured.frames.values())
    by_end = ", ".join(f"{number} at {end}" for end, number in sorted(captured.frames.items()))
    echo(f"{total} frames in {captured.seconds:.1f} s" + (f": {by_end}" if total else ""), err=True)
    if captured.fates:
        echo("fates: " + ", ".join(f"{number} {cause}" for cause, number in sorted(captured.fates.items())), err=True)
    if captured.gone:
        echo("the cluster was taken down", err=True)
    for end, number in captured.dropped.items():
        echo(f"warning: {number} frames at {end} are missing: they arrived faster than they were read", err=True)
    for number, problem in (
        (captured.cut, "frames were truncated"),
        (captured.unknown_fates, "frames have fates that were not reported"),
        (captured.undecided, "frames may have been dropped by a loss classifier; it is not known which"),
        (captured.late, "frames came late and are out of order"),
    ):
        if number:
            echo(f"warning: {number} {problem}", err=True)
