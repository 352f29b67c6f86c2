"""``decode``: a capture, frame by frame or message by message."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click

from testbed.cli.options import FORMAT, json_option
from testbed.errors import NotFoundError

if TYPE_CHECKING:
    from testbed.observe.decoding.files import Source
    from testbed.observe.decoding.filtering import Filter
    from testbed.observe.decoding.reading import Frame

Show = Callable[[list["Frame"]], str]
"""What is printed of frames."""


@click.command("decode", short_help="Print what is in a capture, frame by frame or message by message.")
@click.argument("path", metavar="FILE|FOLDER|-")
@click.option("--follow", "-f", is_flag=True, help="Go on as the file grows, until Ctrl-C.")
@click.option(
    "--filter", "condition", metavar="EXPR", help="Only frames of which this is true; the conditions of rules."
)
@click.option("--messages", "list_messages", is_flag=True, help="A line for each message instead: how it fared.")
@click.option("--message", "wanted", metavar="ID", help="All of one message: NODE/NUMBER or NODE/NODE/NUMBER.")
@click.option("--verbose", "-v", is_flag=True, help="Show every field of every layer.")
@json_option
def decode_command(
    path: str,
    follow: bool,
    condition: str | None,
    list_messages: bool,
    wanted: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Print the frames of a capture: when and where each was seen, what it is, and what it met.

    \b
    testbed decode results/runs/2026-01-31-1        all captures of a run, in the order of time
    testbed decode n1.pcapng --filter 'emp.type == 3 and emp.message == 7'
    testbed decode n1.pcapng --follow               while 'testbed capture -w n1.pcapng' writes it
    testbed decode n1.pcapng --messages             how each message fared
    testbed decode n1.pcapng --message n1/n2/7      message 7 from n1 to n2, frame by frame

    '>' leaves the end that is named, '<' comes to it; behind the frame stands in brackets what it met. Captures of
    'testbed capture' and of simulated runs are read, and those of other programs: pcapng and pcap.

    A filter has the conditions that rules have ('testbed inject --help'), without those that count frames; after(1s) is a
    second behind the first frame. Times of a simulation are seconds since its beginning, others are the clock's.
    """
    from testbed.observe.decoding.files import Source
    from testbed.observe.decoding.filtering import Filter

    if (list_messages or wanted is not None) and (follow or verbose):
        raise click.UsageError("messages are told when all is read: --follow and --verbose are for frames")
    chosen = Filter(condition) if condition is not None else None
    source = Source(path, follow)
    if list_messages or wanted is not None:
        _print_messages(source, chosen, wanted, as_json)
        return
    show = _facts(source) if as_json else _lines(source, verbose)
    _print_frames(source, chosen, show, said=not as_json)


def _print_frames(source: Source, chosen: Filter | None, show: Show, said: bool) -> None:
    """said: the sum is, on standard error."""
    total = shown = met = 0
    try:
        # Following ends with Ctrl-C, and that is no failure.
        with contextlib.suppress(KeyboardInterrupt) if source.follow else contextlib.nullcontext():
            for frames in source.batches():
                total += len(frames)
                if chosen is not None:
                    frames = chosen.passes(frames)
                shown += len(frames)
                met += sum(bool(frame.comment) for frame in frames)
                if frames:
                    sys.stdout.write(show(frames))
                    sys.stdout.flush()
    finally:
        if said and total:
            click.echo(_sum(total, shown, met, chosen is not None), err=True)
        if source.strange:
            click.echo(f"warning: {source.strange:,} frames were left out: they are not Ethernet's", err=True)


def _print_messages(source: Source, chosen: Filter | None, wanted: str | None, as_json: bool) -> None:
    """wanted: of which one all is told; None: all in a line each."""
    from testbed.observe.decoding.messages import Messages, Names
    from testbed.observe.decoding.showing import Timelines

    names, lines = Names(source.nics), Timelines(source.nics)
    messages = Messages(source.nics, lambda one: wanted is not None and names.means(wanted, one))
    try:
        for frames in source.batches():
            messages.take(frames if chosen is None else chosen.passes(frames))
    finally:  # of a broken capture, what was read
        found = [one for one in messages.found if wanted is None or names.means(wanted, one)]
        if as_json:
            sys.stdout.write("".join([_line("message", lines.facts(one, wanted is not None)) for one in found]))
        elif wanted is None:
            sys.stdout.write("".join([f"{line}\n" for line in lines.heads(found)]))
        else:
            sys.stdout.write("\n".join(["".join([f"{line}\n" for line in lines.whole(one)]) for one in found]))
        sys.stdout.flush()
        if messages.strays and not as_json:
            click.echo(f"warning: {messages.strays:,} frames are of messages that are not in it, or broken", err=True)
    if wanted is not None and not found:
        raise NotFoundError(_which(source, wanted, [names.of(one) for one in messages.found]))


def _which(source: Source, wanted: str, there: list[str]) -> str:
    if not there:
        return f"there are no messages in {source.path}"
    from difflib import get_close_matches

    near = get_close_matches(wanted, there, 1)
    hint = f" — did you mean {near[0]!r}?" if near else ""
    return f"no message {wanted!r} in {source.path}{hint}; there are {len(there):,}, which --messages lists"


def _sum(total: int, shown: int, met: int, some: bool) -> str:
    frames = f"{shown:,} of {total:,} frames" if some else f"{total:,} frame{'s' if total > 1 else ''}"
    return f"{frames}, {met:,} of them met something" if met else frames


def _lines(source: Source, verbose: bool) -> Show:
    from testbed.observe.decoding.showing import Lines

    if not verbose:
        return Lines(source.nics).lines
    from testbed.observe.layers import shown

    return Lines(source.nics, shown).lines


def _facts(source: Source) -> Show:
    from testbed.observe.decoding.showing import Facts

    facts = Facts(source.nics)

    def show(frames: Iterable[Frame]) -> str:
        return "".join([_line("decoded", facts.of(frame)) for frame in frames])

    return show


def _line(kind: str, document: Mapping[str, object]) -> str:
    return json.dumps({"format": FORMAT, "kind": kind, **document}, ensure_ascii=False) + "\n"
