"""``decode``: a capture, frame by frame or message by message."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click

from testbed.cli.options import FORMAT, json_option

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
@click.option("--verbose", "-v", is_flag=True, help="Show every field of every layer.")
@json_option
def decode_command(path: str, follow: bool, condition: str | None, verbose: bool, as_json: bool) -> None:
    """Print the frames of a capture: when and where each was seen, what it is, and what it met.

    \b
    testbed decode results/runs/2026-01-31-1        all captures of a run, in the order of time
    testbed decode n1.pcapng --filter 'emp.type == 3 and emp.message == 7'
    testbed decode n1.pcapng --follow               while 'testbed capture -w n1.pcapng' writes it

    '>' leaves the end that is named, '<' comes to it; behind the frame stands in brackets what it met. Captures of
    'testbed capture' and of simulated runs are read, and those of other programs: pcapng and pcap.

    A filter has the conditions that rules have ('testbed inject --help'), without those that count frames; after(1s) is a
    second behind the first frame. Times of a simulation are seconds since its beginning, others are the clock's.
    """
    from testbed.observe.decoding.files import Source
    from testbed.observe.decoding.filtering import Filter

    chosen = Filter(condition) if condition is not None else None
    source = Source(path, follow)
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
