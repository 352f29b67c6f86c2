"""Output of the commands, and options and folders that several commands share.

Text from files, programs or frames cannot control the terminal: control characters are escaped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource

from testbed.errors import errors_naming

_ALLOWED_CONTROLS = "\n\t"
_COLOUR = re.compile(r"(\x1b\[(?:3[1-6]|0)m)")
_CONTROL_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories: control, format, surrogate, line separator, paragraph separator."""

_MAX_PURPOSE = 200  # bytes; a file name has at most 255, and the time and a number are added
FORMAT = 1  # format version of JSON documents whose form has never changed; documents.py describes all
_FORMATS = dict.fromkeys(  # format version by kind, of the others
    (
        "capture", "decoded", "doctor", "frame", "machines-capture", "machines-check", "machines-status", "message",
        "reproduce", "status", "top",
    ),
    2,
)  # fmt: skip

name_option = click.option("--name", metavar="CLUSTER", help="Cluster; default: the only one that is up.", default=None)
cluster_argument = click.argument("cluster", required=False, metavar="[CLUSTER]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; 'testbed schema COMMAND' describes it.")


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text of any origin. Control characters are escaped, except the colours of `click.style`."""
    if not _is_plain(text):
        text = "".join(part if _COLOUR.fullmatch(part) else printable(part) for part in _COLOUR.split(text))
    with errors_naming("standard error" if err else "standard output"):
        click.echo(text, err=err, nl=nl)


def printable(text: str) -> str:
    r"""Escape control characters as ``\x1b``; line breaks and tabs are kept."""
    return text if _is_plain(text) else "".join(map(_escape, text))


def to_json(document: object, indent: int | None = None) -> str:
    """Format as JSON, with terminal control characters escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return (
        text
        if _is_plain(text)
        else "".join(json.dumps(character)[1:-1] if _is_control(character) else character for character in text)
    )


def _is_plain(text: str) -> bool:
    """Whether no character needs to be escaped; a fast check for long documents."""
    return text.replace("\n", "").replace("\t", "").isprintable()


def _is_control(character: str) -> bool:
    return character not in _ALLOWED_CONTROLS and unicodedata.category(character) in _CONTROL_CATEGORIES


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode() if _is_control(character) else character


def format_of(kind: str) -> int:
    """Return the format version of a kind of document."""
    return _FORMATS.get(kind, FORMAT)


def print_json(kind: str, document: Mapping[str, object], *, line: bool = False) -> None:
    """Print a document with its kind and format version. line: on one line, for streams of documents."""
    echo(to_json({"format": format_of(kind), "kind": kind, **document}, indent=None if line else 2))


def print_warnings(sentences: Iterable[str]) -> None:
    """Print warnings on standard error."""
    for sentence in sentences:
        echo(f"warning: {sentence}", err=True)


def seconds_of(duration: str | None) -> float:
    """Parse the value of --for; 0 if it is None. Raises click.BadParameter."""
    if duration is None:
        return 0.0
    from testbed.spec.units import UnitError, parse_duration

    try:
        nanoseconds = parse_duration(duration)
    except UnitError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error
    if nanoseconds == 0:
        raise click.BadParameter(f"must be longer than 0, got {duration}", param_hint="--for")
    return nanoseconds / 1e9


def to_seconds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Callback of an option in seconds: parse a number (``2.5``) or a duration (``2500ms``). Raises click.BadParameter."""
    if text is None:
        return None
    from testbed.spec.units import UnitError, parse_duration

    with suppress(ValueError):
        return float(text)  # `check_seconds` checks the range
    try:
        return parse_duration(text) / 1e9
    except UnitError as error:
        expected = "expected seconds, or a duration with its unit: 2.5 or 2500ms"
        raise click.BadParameter(f"found {text!r}, {expected}") from error


def format_age(seconds: float) -> str:
    """Format an age or a remaining time: ``2 h 5 min``, ``3 min 20 s``, ``7 s``."""
    total = max(0, round(seconds))
    hours, minutes = divmod(total // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {total % 60} s" if minutes else f"{total} s"


def stop_descriptor() -> int:
    """Return a descriptor that becomes readable at Ctrl-C, SIGTERM or SIGHUP; the signals have no other effect."""
    reading_end, writing_end = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os.write(writing_end, b"\n"))
    return reading_end


def show_phase(phase: str = "") -> None:
    """Show the current phase in a terminal, in a line that replaces the previous phase; empty: clear the line."""
    if sys.stderr.isatty():
        click.echo(f"\r{phase}\x1b[K", err=True, nl=False)


def cluster_named(cluster: str | None, name: str | None) -> str | None:
    """Return the cluster named by an argument or by --name, None if there is neither. Raises click.UsageError if they
    differ."""
    if cluster is not None and name is not None and cluster != name:
        raise click.UsageError(f"two clusters are named, {cluster} and --name {name}: name one")
    return cluster if cluster is not None else name


def require_compatible(*options: tuple[str, object]) -> None:
    """Raise click.UsageError if more than one of the options is given. options: names, and values that are true if given."""
    given = [option for option, value in options if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} cannot be combined with {' or '.join(given[1:])}")


def require_given(needed: str, has_needed: object, *options: tuple[str, object]) -> None:
    """Raise click.UsageError if one of the options is given without the one that it needs. needed: name of the latter.
    has_needed: whether it is given. options: as for `require_compatible`."""
    for option, value in options:
        if value and not has_needed:
            raise click.UsageError(f"{option} needs {needed}")


def is_given(ctx: click.Context, parameter: str) -> bool:
    """Whether a parameter is given on the command line."""
    return ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def new_results_folder(parent: Path, purpose: str) -> Path:
    """Create and return a new folder named by the time and `purpose`, shortened to the maximum length of a file name. It
    is created immediately, since another command may begin in the same second."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.fsencode(purpose)[:_MAX_PURPOSE].decode(errors='ignore')}"
    count, folder = 1, parent / stem
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            count += 1
            folder = parent / f"{stem}-{count}"
        except OSError:  # reported when the command first writes to the folder
            return folder
        else:
            return folder
