"""Folders of work that can be continued: one file has the request, and what is done is kept beside it.

Files are JSON, written atomically, with the version of their form.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from testbed.controller.runs.folders import run_environment
from testbed.errors import ConflictError, NotFoundError, TestbedError, UnsupportedError, reason_of
from testbed.runtime.journal import UnwritableError, write_atomically

FORMAT: Final = 1


def begin(file: Path, work: str, request: Mapping[str, object]) -> None:
    """Make the folder of a request's file, and write the request with the machine and the versions.

    work: what is to be done there, as "a study". Raises ConflictError where the folder is not empty, UnwritableError.
    """
    folder = file.parent
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(f"{folder} is there already, and not empty; --continue goes on with {work}")
    make_folder(folder)
    write_document(file, {"format": FORMAT, **request, "environment": run_environment()})


def resume(file: Path, work: str, keys: Collection[str]) -> dict[str, Any]:
    """Read a request that has these keys. Raises NotFoundError where there is none, UnsupportedError for one of a newer
    version, TestbedError for a damaged one."""
    request = read_document(file)
    if request is None:
        raise NotFoundError(f"{file.parent} is not the folder of {work}: it has no {file.name}")
    if not isinstance(request.get("format"), int) or request["format"] > FORMAT:
        raise UnsupportedError(f"{file.parent} is of another version of testbed (format {request.get('format')!r})")
    if missing := [key for key in keys if key not in request]:
        raise TestbedError(f"{file} is damaged: it has no {missing[0]}")
    return request


def read_document(file: Path) -> dict[str, Any] | None:
    """Read a file; None if there is none. Raises TestbedError for a damaged one."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
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
    """Make a folder, and those above it. Raises UnwritableError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableError(f"results cannot be written to {path}: {reason_of(error)}") from error
