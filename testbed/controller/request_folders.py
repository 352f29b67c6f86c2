"""Folders of resumable work, such as a study: a file with the request, and the results so far.

Files are JSON, written atomically, with a format version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypedDict, get_type_hints

from testbed.controller.runs.folders import run_environment
from testbed.errors import ConflictError, NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.json_text import check, loads
from testbed.runtime.journal import UnwritableError, write_atomically

FORMAT: Final = 1


class _Format(TypedDict):
    format: int


def begin(file: Path, work: str, request: Mapping[str, object]) -> None:
    """Create a request's folder, and write the request with the machine and versions.

    file: path of the request's file. work: noun phrase for error messages, such as "a study". Raises ConflictError if the
    folder is not empty, UnwritableError.
    """
    folder = file.parent
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(f"{folder} exists and is not empty; --continue continues {work}")
    make_folder(folder)
    write_document(file, {"format": FORMAT, **request, "environment": run_environment()})


def resume(file: Path, work: str) -> dict[str, Any]:
    """Read a request, and check its format version. Raises NotFoundError if the file is missing, UnsupportedError for a
    newer format, TestbedError for a damaged file."""
    request = read_document(file)
    if request is None:
        raise NotFoundError(f"{file.parent} is not the folder of {work}: it has no {file.name}")
    check_document(file, request, _Format)
    if request["format"] > FORMAT:
        raise UnsupportedError(
            f"{file.parent} has format {request['format']}, written by a newer testbed; this one reads up to {FORMAT}"
        )
    return request


def check_document(file: Path, document: Mapping[str, object], keys: type) -> None:
    """Raise TestbedError if a file's document lacks a key of a typed dictionary, or has a value of another type there."""
    if missing := [key for key in get_type_hints(keys) if key not in document]:
        raise TestbedError(f"{file} is damaged: key {missing[0]!r} is missing")
    try:
        check(document, keys)
    except ValueError as error:
        raise TestbedError(f"{file} is damaged: {error}") from error


def read_document(file: Path) -> dict[str, Any] | None:
    """Read a JSON object from a file; None if the file does not exist. Raises TestbedError for a damaged file."""
    try:
        document = loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TestbedError(f"{file} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise TestbedError(f"{file} is damaged: {error}") from error
    if not isinstance(document, dict):
        raise TestbedError(f"{file} is damaged: it is not a JSON object")
    return document


def write_document(file: Path, document: Mapping[str, object]) -> None:
    """Write a file atomically. Raises UnwritableError."""
    write_atomically(file, json.dumps(document, default=repr, ensure_ascii=False, indent=1) + "\n")


def make_folder(path: Path) -> None:
    """Create a folder and its parents. Raises UnwritableError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableError(f"results cannot be written to {path}: {reason_of(error)}") from error
