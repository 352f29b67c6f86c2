"""Commands ``decode`` and ``dissector``: print a capture, or write a Wireshark dissector for the protocols."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import echo, format_of, json_option, require_compatible, to_json
from testbed.errors import NotFoundError, TestbedError, did_you_mean, errors_naming, reason_of

if TYPE_CHECKING:
    from testbed.observe.decoding.capture_files import CaptureSource
    from testbed.observe.decoding.capture_reader import Frame
    from testbed.observe.decoding.frame_filter import Filter

Formatter = Callable[[list["Frame"]], str]
"""Formats frames as lines of output."""


@click.command("decode", short_help="Print a capture, frame by frame or message by message.")
@click.argument("path", metavar="FILE|FOLDER|-")
@click.option("--follow", "-f", is_flag=True, help="Keep reading as the file grows, until Ctrl-C.")
@click.option("--filter", "condition", metavar="EXPR", help="Only frames that match this condition, as in rules.")
@click.option("--messages", "list_messages", is_flag=True, help="Print a line for each message instead.")
@click.option(
    "--message", "message_id", metavar="ID", help="Print one message in full: NODE/NUMBER or NODE/NODE/NUMBER."
)
@click.option("--verbose", "-v", is_flag=True, help="Show every field of every layer.")
@json_option
def decode_command(
    path: str,
    follow: bool,
    condition: str | None,
    list_messages: bool,
    message_id: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Print the frames of a capture: the time and place of each, its content, and its fate.

    \b
    testbed decode results/runs/20261121-...        all captures of a run, sorted by time
    testbed decode n1.pcapng --filter 'emp.type == 3 and emp.message == 7'
    testbed decode n1.pcapng --follow               while 'testbed capture -w n1.pcapng' writes it
    testbed decode n1.pcapng --messages             each message: frames sent, sent again, lost
    testbed decode n1.pcapng --message n1/n2/7      message 7 from n1 to n2, frame by frame

    '>' leaves the named end, '<' arrives there; a fate follows the frame in brackets. It reads pcapng and pcap files: those
    of 'testbed capture', of simulated runs, and of other programs.

    A filter has the conditions of rules ('testbed inject --help'), except those that count frames; after(1s) is one
    second after the first frame. Times of a simulation are seconds since its beginning, others those of the wall clock.
    """
    from testbed.observe.decoding.capture_files import CaptureSource
    from testbed.observe.decoding.frame_filter import Filter

    if (list_messages or message_id is not None) and (follow or verbose):
        raise click.UsageError("--messages and --message cannot be combined with --follow or --verbose")
    require_compatible(("--messages", list_messages), ("--message", message_id is not None))
    require_compatible(("--verbose", verbose), ("--json", as_json))
    frame_filter = Filter(condition) if condition is not None else None
    source = CaptureSource(path, follow)
    if list_messages or message_id is not None:
        _print_messages(source, frame_filter, message_id, as_json)
        return
    formatter = _json_formatter(source) if as_json else _line_formatter(source, verbose)
    _print_frames(source, frame_filter, formatter, totals=not as_json)


def _print_frames(source: CaptureSource, frame_filter: Filter | None, formatter: Formatter, totals: bool) -> None:
    """Print frames. totals: print totals on standard error."""
    total = printed = with_fate = 0
    try:
        # Ctrl-C is the regular end of --follow.
        with contextlib.suppress(KeyboardInterrupt) if source.follow else contextlib.nullcontext():
            for frames in source.batches():
                total += len(frames)
                if frame_filter is not None:
                    frames = frame_filter.select(frames)
                printed += len(frames)
                with_fate += sum(bool(frame.comment) for frame in frames)
                if frames:
                    sys.stdout.write(formatter(frames))
                    sys.stdout.flush()
    finally:
        if totals and total:
            echo(_format_totals(total, printed, with_fate, frame_filter is not None), err=True)
        if source.skipped:
            echo(f"warning: {source.skipped:,} frames were left out: they are not Ethernet frames", err=True)


def _print_messages(source: CaptureSource, frame_filter: Filter | None, message_id: str | None, as_json: bool) -> None:
    """Print messages. message_id: print this one in full; None: print all, one line each."""
    from testbed.observe.decoding.frame_output import Timelines
    from testbed.observe.decoding.message_timelines import Messages, Names

    names, lines = Names(source.nics), Timelines(source.nics)
    messages = Messages(source.nics, lambda message: message_id is not None and names.matches(message_id, message))
    try:
        for frames in source.batches():
            messages.add(frames if frame_filter is None else frame_filter.select(frames))
    finally:  # also the part of a broken capture that was read
        selected = [
            message for message in messages.assembled if message_id is None or names.matches(message_id, message)
        ]
        if as_json:
            sys.stdout.write(
                "".join([_line("message", lines.facts(message, message_id is not None)) for message in selected])
            )
        elif message_id is None:
            sys.stdout.write("".join([f"{line}\n" for line in lines.summaries(selected)]))
        else:
            sys.stdout.write(
                "\n".join(["".join([f"{line}\n" for line in lines.details(message)]) for message in selected])
            )
        sys.stdout.flush()
        if messages.unnumbered and not messages.assembled and not as_json:
            echo(f"warning: none of the {messages.unnumbered:,} frames has a message number", err=True)
        if messages.unassigned and not as_json:
            echo(
                f"warning: {messages.unassigned:,} frames are malformed, or belong to messages that are not in the capture",
                err=True,
            )
    if message_id is not None and not selected:
        raise NotFoundError(_unknown_message(source, message_id, [names.of(message) for message in messages.assembled]))


def _unknown_message(source: CaptureSource, message_id: str, names: list[str]) -> str:
    if not names:
        return f"there are no messages in {source.path}"
    hint = did_you_mean(message_id, names)
    return f"no message {message_id!r} in {source.path}{hint}; there are {len(names):,}, which --messages lists"


def _format_totals(total: int, printed: int, with_fate: int, is_filtered: bool) -> str:
    frames = f"{printed:,} of {total:,} frames" if is_filtered else f"{total:,} frame{'s' if total > 1 else ''}"
    return f"{frames}, {with_fate:,} of them with a fate" if with_fate else frames


def _line_formatter(source: CaptureSource, verbose: bool) -> Formatter:
    from testbed.observe.decoding.frame_output import FrameLines

    if not verbose:
        return FrameLines(source.nics).lines
    from testbed.observe.format.layers import format_layers

    return FrameLines(source.nics, format_layers).lines


def _json_formatter(source: CaptureSource) -> Formatter:
    from testbed.observe.decoding.frame_output import FrameDocuments

    documents = FrameDocuments(source.nics)

    def format_frames(frames: Iterable[Frame]) -> str:
        return "".join([_line("decoded", documents.of(frame)) for frame in frames])

    return format_frames


def _line(kind: str, document: Mapping[str, object]) -> str:
    return to_json({"format": format_of(kind), "kind": kind, **document}) + "\n"


@click.command("dissector", short_help="Write a dissector of the protocols for Wireshark.")
@click.option("-o", "--output", "path", metavar="FILE", help="Write to this file instead of standard output.")
def dissector_command(path: str | None) -> None:
    """Write a dissector in Lua for Wireshark and tshark: all registered protocols, as their Scapy layers define them.

    \b
    testbed dissector -o testbed.lua
    wireshark -X lua_script:testbed.lua n1.pcapng
    tshark -X lua_script:testbed.lua -r n1.pcapng -Y 'emp.type == 3'

    Fields have the names of fault rules and of filters of 'testbed decode'.
    """
    from testbed.observe.dissector.lua import generate_dissector

    text, warnings = generate_dissector()
    for sentence in warnings:
        click.echo(f"warning: {sentence}", err=True)
    if path is None:
        echo(text, nl=False)
        return
    try:
        with errors_naming(path):
            Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise TestbedError(f"the dissector cannot be written: {reason_of(error)}") from error
