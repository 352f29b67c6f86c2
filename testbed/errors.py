"""The errors shown to users, by cause.

Every message is a sentence (or several lines) that says what is wrong and what to do. The command prints it without a
traceback and exits with the class's exit code.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator

from testbed.lazy_dataclass import dataclass


class TestbedError(Exception):
    """The base class of all errors that testbed raises on purpose."""

    __test__ = False  # its name makes pytest take it for a test class
    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle so that unpickling does not call `__init__`, whose parameters may differ from `args`."""
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[TestbedError], arguments: tuple[object, ...]) -> TestbedError:
    return kind.__new__(kind, *arguments)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a description.

    path: its location, such as ``link[3].delay``; empty for the whole file. found: the value found, shortened for
    display; empty if there is none. expected: the expected value, as a phrase; empty if `found` is a complete
    description of the problem. suggestion: the nearest valid name, or empty.
    """

    path: str
    found: str
    expected: str
    suggestion: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        if not self.expected:
            return f"{where}{self.found}"
        actual = f"found {self.found}, " if self.found else ""
        hint = f" — did you mean {self.suggestion!r}?" if self.suggestion else ""
        return f"{where}{actual}expected {self.expected}{hint}"


def merge_equal(sentences: Iterable[str]) -> list[str]:
    """Merge equal sentences of a report: keep the first of them, with the number of occurrences if there are several."""
    return [
        f"{sentence} ({count:,} times)" if count > 1 else sentence for sentence, count in Counter(sentences).items()
    ]


_MAX_SHOWN = 50  # problems in a message; `problems` has all


class DescriptionError(TestbedError):
    """A description is invalid; lists all its problems."""

    exit_code = 2

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {problem}" for problem in problems[:_MAX_SHOWN]]
        if len(problems) > _MAX_SHOWN:
            lines.append(f"  and {len(problems) - _MAX_SHOWN} more")
        super().__init__("\n".join([f"{source}: {count}", *lines]))


class UnsupportedError(TestbedError):
    """The description is valid, but this version or this kernel does not support it."""

    exit_code = 3


class NotFoundError(TestbedError):
    """There is no cluster, node, link or shipped topology of that name."""

    exit_code = 4


class ConflictError(TestbedError):
    """The name is taken by an object that testbed must not change, or the object is in use."""

    exit_code = 5


class UnreadableStateError(TestbedError):
    """A cluster's state file exists but cannot be parsed."""


class OtherPidNamespaceError(ConflictError):
    """A cluster depends on processes of another pid namespace: this process cannot tell whether they are alive."""


class PermissionDeniedError(TestbedError):
    """The user lacks a permission or capability, or a file or directory belongs to another user."""

    exit_code = 6


class KernelError(TestbedError):
    """A kernel operation failed. The message names the operation and the reason; partial effects have been rolled back."""

    exit_code = 7


class ScriptError(TestbedError):
    """A script that ran as a workload has exited with a code other than 0, or with a message."""


class FirmwareError(TestbedError):
    """A NIC's firmware, or the host library above it, has failed or violated its contract.

    what: the failing part and the failure, as a phrase. when: nanoseconds of the run's clock. node: the NIC's node;
    empty if unknown.
    """

    def __init__(self, what: str, when: int, node: str = "") -> None:
        self.what = what
        self.when = when
        super().__init__(f"{node}: at {when} ns: {what}" if node else f"at {when} ns: {what}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the valid name nearest to an unknown one, as a suffix of an error message; empty if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), 1)
    return f" — did you mean {near[0]!r}?" if near else ""


@contextlib.contextmanager
def errors_naming(file: object) -> Iterator[None]:
    """Add the file's name to an OSError that has none: the errors of write(2) and close(2) know only a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(file)
        raise


def reason_of(error: OSError) -> str:
    """The reason of an OSError in words, with the file name if there is one."""
    reason = error.strerror or str(error)
    return f"{reason}: {error.filename}" if error.filename else reason
