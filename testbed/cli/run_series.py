"""A series of runs of one workload, over several protocols or in several modes, in one table and one report.

    testbed run star-2 pingpong --protocol emp,via,tcp --mode sim,live

A protocol that a mode does not support is reported with the reason, and the other runs continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.cli.consoles import echo
from testbed.cli.report_command import missing_packages
from testbed.cli.table_layout import print_rows, print_table
from testbed.errors import TestbedError, UnsupportedError

if TYPE_CHECKING:
    from testbed.controller.runs.run_options import Mode
    from testbed.controller.runs.runner import RunResult

REPORT: Final = "report.html"
"""The report's file name in the folder of the series."""

Run = Callable[[str, "Mode", Path], "RunResult"]
"""Run the workload over a protocol in a mode, with its results in a folder."""


@dataclass(frozen=True, slots=True)
class Member:
    """A run of the series. result: None if the run was rejected or has failed. error: the reason."""

    protocol: str
    mode: str
    folder: Path
    result: RunResult | None = None
    error: TestbedError | None = None

    @property
    def verdict(self) -> str:
        """The grade of its verdict; without a result, the reason."""
        if self.result is not None:
            return self.result.verdict.grade.value
        return f"{'not run' if self.is_rejected else 'failed'}: {self.error}"

    @property
    def is_rejected(self) -> bool:
        return isinstance(self.error, UnsupportedError)

    @property
    def has_failed(self) -> bool:
        return self.error is not None and not self.is_rejected


def run_each(protocols: Sequence[str], modes: Sequence[Mode], folder_of_series: Path, run: Run) -> list[Member]:
    """Run every protocol in every mode, sequentially. Raises UnsupportedError if all of them are rejected."""
    members = []
    for protocol in protocols:
        for mode in modes:
            folder = folder_of_series / f"{protocol}-{mode}"
            try:
                members.append(Member(protocol, mode, folder, run(protocol, mode, folder)))
            except TestbedError as error:
                members.append(Member(protocol, mode, folder, error=error))
    if all(member.is_rejected for member in members):
        raise UnsupportedError("\n".join(f"{member.protocol}, {member.mode}: {member.error}" for member in members))
    return members


def write_report(members: Sequence[Member], folder_of_series: Path) -> Path | None:
    """Write one report of all runs with a result, and return its path. Write none and return None if no run has a result,
    if packages for drawing are missing, or if there are too many runs."""
    shown = [member for member in members if member.result is not None]
    if not shown or missing_packages():
        return None
    from testbed.observe.report.builder import MAX_RUNS, make_report

    if len(shown) > MAX_RUNS:
        return None
    modes = {member.mode for member in shown}
    labels = [member.protocol if len(modes) == 1 else f"{member.protocol} {member.mode}" for member in shown]
    make_report([member.folder for member in shown], folder_of_series / REPORT, labels=labels)
    return folder_of_series / REPORT


def print_series(members: Sequence[Member], report: Path | None, folder_of_series: Path) -> None:
    """Print one table of all rows, except those of invalid runs, and the verdict of each run."""
    print_rows(rows_of(members))
    verdicts = [[member.protocol, member.mode, "failed" if member.has_failed else member.verdict] for member in members]
    print_table(["protocol", "mode", "verdict"], verdicts)
    for member in members:
        if member.has_failed:
            echo(f"{member.protocol}, {member.mode}: {member.error}", err=True)
    if report is not None:
        echo(f"the report is in {report}")
    echo(f"results are in {folder_of_series}")


def rows_of(members: Sequence[Member]) -> list[Mapping[str, Any]]:
    """Return the rows of all valid runs, with their protocols and modes.

    The rows of a run with equal keys are a table. The first tables of all runs are merged into one with the keys of all, and
    so are the second tables, and so on, since the keys may depend on the protocol.
    """
    tables: list[list[Mapping[str, Any]]] = []
    for member in members:
        if member.result is None or member.result.verdict.grade.value == "invalid":
            continue
        kinds: dict[tuple[str, ...], int] = {}
        for row in member.result.rows:
            number = kinds.setdefault(tuple(row), len(kinds))
            if number == len(tables):
                tables.append([])
            tables[number].append({"protocol": member.protocol, "mode": member.mode, **row})
    rows: list[Mapping[str, Any]] = []
    for table in tables:
        keys = dict.fromkeys(key for row in table for key in row)
        rows += [{key: row.get(key, "") for key in keys} for row in table]
    return rows


def exit_code(members: Sequence[Member], codes: Mapping[str, int]) -> int:
    """Return the exit code of the first run that has failed, else the maximum of the verdicts' exit codes. codes: exit code
    by grade."""
    for member in members:
        if member.error is not None and not member.is_rejected:
            return member.error.exit_code
    return max(codes.get(member.verdict, 0) for member in members)
