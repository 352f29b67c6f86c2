"""The errors a user can meet, by cause.

Every message is a sentence (or several lines) that says what is wrong and what to do; the command prints it without a
traceback and ends with the class's exit code.
"""

from __future__ import annotations

from dataclasses import dataclass


class TestbedError(Exception):
    """The root of all errors that testbed raises on purpose."""

    __test__ = False  # its name makes pytest take it for a test class
    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a description.

    path: where, as a user would say it: ``link[3].delay``; empty for the whole file.
    found: what stands there, shortened for display; empty where nothing does.
    expected: what should stand there, a phrase.
    suggestion: the nearest valid name, or empty.
    """

    path: str
    found: str
    expected: str
    suggestion: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        found = f"found {self.found}, " if self.found else ""
        hint = f" — did you mean {self.suggestion!r}?" if self.suggestion else ""
        return f"{where}{found}expected {self.expected}{hint}"


_SHOWN = 50  # problems in a message; all of them are in `problems`


class DescriptionError(TestbedError):
    """A description is not valid: all its problems at once."""

    exit_code = 2

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {problem}" for problem in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"  and {len(problems) - _SHOWN} more")
        super().__init__("\n".join([f"{source}: {count}", *lines]))


class UnsupportedError(TestbedError):
    """The description is valid, but this version or this kernel cannot do what it asks for."""

    exit_code = 3


class NotFoundError(TestbedError):
    """No cluster, node, link or shipped topology of that name."""

    exit_code = 4


class ConflictError(TestbedError):
    """Something of that name exists already and is not ours to change, or is in use."""

    exit_code = 5


class UnreadableStateError(TestbedError):
    """A cluster's state file is there but cannot be understood."""


class PermissionDeniedError(TestbedError):
    """The machine does not let us."""

    exit_code = 6


class KernelError(TestbedError):
    """A kernel operation failed: which one and why. What it had begun has been rolled back."""

    exit_code = 7


def reason_of(error: OSError) -> str:
    """What an OSError says, in a sentence's words: the reason, and the file where there is one."""
    reason = error.strerror or str(error)
    return f"{reason}: {error.filename}" if error.filename else reason
