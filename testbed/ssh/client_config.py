"""OpenSSH's client configuration of the user and of the system, ssh_config(5), with the files that it includes.

Paramiko's parser ignores ``Include``. Here each ``Include`` is replaced by the lines of its files, and each ``Host`` or
``Match`` line becomes a ``Match`` line that also has the conditions of the enclosing blocks. A ``Match`` with a condition
that paramiko does not support is made to match nothing, since paramiko would treat the condition as fulfilled.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from paramiko import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from testbed.errors import TestbedError, reason_of

_FILES: Final = ("~/.ssh/config", "/etc/ssh/ssh_config")
_MAX_DEPTH: Final = 16  # levels of included files, as in OpenSSH
_CONDITIONS: Final = frozenset({"exec", "host", "originalhost", "user", "localuser"})  # with a value
_PLAIN_CONDITIONS: Final = frozenset({"all", "canonical", "final"})  # without a value
_NEVER: Final = "originalhost !*"  # condition that matches nothing
_OPTION: Final = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)")


class _Config(SSHConfig):  # type: ignore[misc]  # paramiko has no types
    _TOKENS: Final = SSHConfig.TOKENS_BY_CONFIG_KEY["match-exec"]
    TOKENS_BY_CONFIG_KEY: Final = {
        **SSHConfig.TOKENS_BY_CONFIG_KEY,
        "certificatefile": _TOKENS,
        "identityagent": _TOKENS,
    }


def client_config() -> SSHConfig:
    """Read the configuration of this process's user and of the system. Raises TestbedError."""
    config = _Config()
    for name in _FILES:
        file = Path(name).expanduser()
        if file.is_file():
            try:
                config.parse(_lines(file, file.parent, "", 0))
            except (ConfigParseError, ValueError) as error:  # ValueError: from shlex
                raise TestbedError(f"{file} is not a configuration of ssh: {error}") from error
    return config


def _lines(file: Path, folder: Path, around: str, depth: int) -> Iterator[str]:
    """Yield the lines of a file, and of the files that it includes. folder: directory of relative names. around: conditions
    of the enclosing blocks; empty: none. depth: levels of includes above the file."""
    if depth > _MAX_DEPTH:
        raise TestbedError(f"{file} includes itself, or is included more than {_MAX_DEPTH} levels deep")
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        raise TestbedError(f"{file} cannot be read: {reason_of(error)}") from error
    block = around
    for line in text.splitlines():
        option = _OPTION.match(line)
        keyword, value = (option[1].lower(), option[2]) if option else ("", "")
        if keyword in ("host", "match"):
            block = " ".join(filter(None, (around, _conditions(keyword, value))))
            yield _header(block)
        elif keyword == "include":
            for name in shlex.split(value):
                pattern = folder / Path(name).expanduser()
                for included in sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))):
                    yield from _lines(included, folder, block, depth + 1)
                    yield _header(block)
        else:
            yield line


def _conditions(keyword: str, value: str) -> str:
    """Return the conditions of a ``Host`` or ``Match`` line, in the syntax of ``Match``; empty: none."""
    words = shlex.split(value)
    if keyword == "host":
        return shlex.join(["originalhost", ",".join(words)])
    conditions: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name = word.lower().removeprefix("!")
        if name not in _CONDITIONS and name not in _PLAIN_CONDITIONS:
            return _NEVER
        if name != "all":
            conditions += [word.lower(), *([] if name in _PLAIN_CONDITIONS else islice(remaining, 1))]
    return shlex.join(conditions)


def _header(block: str) -> str:
    return f"Match {block}" if block else "Host *"
