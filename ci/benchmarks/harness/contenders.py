"""Contenders, which bring up stars: their interface, and a process that is driven by lines of text."""

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

NAMES = Path("/run/netns")


class ContenderError(Exception):
    """A contender cannot be measured here; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Start and end of a contender's work, in ns of CLOCK_MONOTONIC. parts: seconds of parts of the work, by name."""

    start: int
    end: int
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


class Contender(Protocol):
    """Brings up and takes down one star at a time."""

    name: str
    settings: dict[str, Any]

    def up(self, cluster: str, hosts: int) -> Timing: ...

    def namespaces(self) -> list[str]:
        """Return the paths of the existing namespaces."""

    def down(self) -> Timing: ...

    def close(self) -> None:
        """Take the cluster down, and end the contender's process."""


def named_namespaces(cluster: str) -> list[str]:
    """Return the named namespaces of a cluster: the wire namespace and the nodes'."""
    names = os.listdir(NAMES) if NAMES.is_dir() else []
    return sorted(str(NAMES / name) for name in names if name.partition(".")[0] == cluster)


class LineProcess:
    """Process that takes commands as lines on standard input and answers each by one line of JSON.

    The process has a session of its own, so that Ctrl-C reaches only the benchmark, which then closes the process's input.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """name: for errors."""
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pid = self._process.pid

    def ask(self, line: str) -> dict[str, Any]:
        """Send a command; return the answer. Raises ContenderError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise ContenderError(f"{self._name} ended at '{line}', exit code {self._process.wait()}")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def time(self, line: str) -> Timing:
        """Send a command; return the timing in the answer."""
        answer = self.ask(line)
        return Timing(answer.pop("start"), answer.pop("end"), answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
