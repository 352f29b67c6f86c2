"""Loading of descriptions from TOML files, of shipped topologies, and of ``star-N``, which needs no file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar, overload

from testbed.errors import DescriptionError, NotFoundError, PermissionDeniedError, Problem
from testbed.lazy_dataclass import dataclass
from testbed.spec.assembly import assemble
from testbed.spec.model import NO_NODE, Description
from testbed.spec.problems import format_value, nearest
from testbed.spec.shipped import shipped_files, topologies

__all__ = ["MAX_FILE_SIZE", "Loaded", "from_dict", "load", "parse", "read_text", "table_of", "topologies"]

D = TypeVar("D", bound=Description)
C = TypeVar("C", bound=Description, covariant=True)

MAX_FILE_SIZE = 4 * 2**20
"""Maximum file size in bytes. 10,000 nodes, each on a separate switch, take less than half of it."""

_MAX = f"{MAX_FILE_SIZE >> 20} MiB"
_TOO_DEEP = ("tables or lists nested too deeply", "a few levels")
_LOCATION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_DEEP = re.compile(r"""(?:(?:[\w-]{1,80}+|"[^"\n]{0,80}"|'[^'\n]{0,80}')[ \t]{0,8}+\.[ \t]{0,8}+){64}""", re.ASCII)
"""A dotted key of more than 64 parts; tomllib's time and memory grow with the square of this number."""

_STAR = re.compile(r"star-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """A description and its origin: the resolved path of its file, or ``topology:NAME``."""

    description: C
    origin: str


@overload
def load(source: str | Path) -> Loaded[Description]: ...
@overload
def load(source: str | Path, cls: type[D]) -> Loaded[D]: ...
def load(source: str | Path, cls: type[Description] = Description) -> Loaded[Description]:
    """Load the description in a file, a shipped topology, or ``star-N``, as an instance of class cls.

    A source is a file if it is a Path, contains a ``/``, ends in ``.toml`` or exists as a file. Raises DescriptionError,
    NotFoundError, PermissionDeniedError.
    """
    text = str(source)
    if isinstance(source, Path) or "/" in text or text.endswith(".toml") or _is_file(text):
        return _load_file(Path(source), cls)
    shipped = shipped_files()
    if text in shipped:
        description = parse(shipped[text].read_text(encoding="utf-8"), f"topology:{text}", cls)
        return Loaded(description, f"topology:{text}")
    star = _STAR.fullmatch(text)
    if star:
        return Loaded(cls.star(int(star[1])), f"topology:star-{int(star[1])}")
    if text and _is_directory(text):
        raise _directory_error(text)
    guess = nearest(text, shipped)
    hint = f" — did you mean {guess!r}?" if guess else ""
    raise NotFoundError(
        f"there is no file and no shipped topology called {format_value(text)}{hint}\n"
        f"  shipped topologies: {', '.join(sorted(shipped))}, and star-N for any number of nodes"
    )


@overload
def parse(text: str, source: str) -> Description: ...
@overload
def parse(text: str, source: str, cls: type[D], name: str = "") -> D: ...
def parse(text: str, source: str, cls: type[Description] = Description, name: str = "") -> Description:
    """Parse the description in a TOML text. source: name for error messages. name: see `assemble`. Raises
    DescriptionError."""
    return from_dict(table_of(text, source), source, cls, name)


def table_of(text: str, source: str) -> dict[str, object]:
    """Parse a TOML text. source: name for error messages. Raises DescriptionError."""
    if len(text) > MAX_FILE_SIZE:
        raise _size_error(source)
    deep = _DEEP.search(text)
    if deep:
        line = text.count("\n", 0, deep.start()) + 1
        raise DescriptionError(source, [Problem(f"line {line}", *_TOO_DEEP)])
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DescriptionError(source, [Problem("", *_TOO_DEEP)]) from None
    except ValueError as error:
        raise DescriptionError(source, [_syntax_problem(text, str(error))]) from None


@overload
def from_dict(data: Mapping[str, object], source: str) -> Description: ...
@overload
def from_dict(data: Mapping[str, object], source: str, cls: type[D], name: str = "") -> D: ...
def from_dict(
    data: Mapping[str, object], source: str, cls: type[Description] = Description, name: str = ""
) -> Description:
    """Make a description from a table as in TOML. Raises DescriptionError with all problems."""
    if not data:
        raise DescriptionError(source, [Problem("", "nothing", NO_NODE.expected)])
    return assemble(data, source, cls, name)


def _load_file(path: Path, cls: type[D]) -> Loaded[D]:
    return Loaded(parse(read_text(path), str(path), cls, _name_of(path)), str(path.resolve()))


def _is_descriptor(path: Path) -> bool:
    """Whether a path names a descriptor of this process, such as /dev/stdin, which may be a pipe."""
    return str(path) == "/dev/stdin" or str(path).startswith(("/dev/fd/", "/proc/self/fd/"))


def read_text(path: Path) -> str:
    """Read a text file of at most MAX_FILE_SIZE bytes. Raises DescriptionError, NotFoundError, PermissionDeniedError."""
    source = str(path)
    try:
        if path.is_dir():
            raise _directory_error(source)
        if path.exists() and not path.is_file() and not _is_descriptor(path):
            raise DescriptionError(source, [Problem("", "a device, socket or named pipe", "a regular file")])
        with path.open("rb") as file:
            data = file.read(MAX_FILE_SIZE + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {source}") from None
    except PermissionError:
        raise PermissionDeniedError(f"{source} cannot be read: permission denied") from None
    except (OSError, ValueError, RuntimeError) as error:
        # Such as a path with a NUL character, a loop of symbolic links, a name too long for the file system, a failing disk.
        cause = getattr(error, "strerror", None) or str(error)
        raise DescriptionError(
            format_value(source), [Problem("", str(cause).lower(), "a readable TOML file")]
        ) from None
    if len(data) > MAX_FILE_SIZE:
        raise _size_error(source)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"the byte 0x{data[error.start]:02x}"
        raise DescriptionError(source, [Problem(f"line {line}", byte, "text in UTF-8")]) from None
    return text.replace("\r\n", "\n")


def _name_of(path: Path) -> str:
    """Return the default name of the cluster in a file, which may be invalid as a name."""
    return path.name.removesuffix(".toml")


def _is_file(text: str) -> bool:
    try:
        return bool(text) and Path(text).is_file()
    except (OSError, ValueError):
        return False


def _is_directory(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False


def _directory_error(source: str) -> DescriptionError:
    return DescriptionError(source, [Problem("", "a directory", "a TOML file")])


def _size_error(source: str) -> DescriptionError:
    return DescriptionError(source, [Problem("", f"more than {_MAX}", f"a description of at most {_MAX}")])


def _syntax_problem(text: str, message: str) -> Problem:
    """Convert a message of tomllib to a problem with the line and column."""
    match = _LOCATION.search(message)
    cause = message[: match.start()] if match else message
    if not match:
        return Problem("", "", f"valid TOML: {cause}")
    lines = text.split("\n")
    line = int(match[1]) if match[1] else len(lines)
    column = int(match[2]) if match[2] else len(lines[-1]) + 1
    return Problem(f"line {line}, column {column}", format_value(lines[line - 1].strip()), f"valid TOML: {cause}")
