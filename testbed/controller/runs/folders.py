"""The folder of a run, which has all data of its report:

    run.json        the request: cluster, workload, settings, protocol, mode, seed, command; its process and the machine
    cluster.json    the resolved layout; cluster.toml: the description, if there is one
    scenario.toml   the faults, if the run has a scenario
    rows.jsonl      the rows, each written when it was measured
    events.jsonl    events of the run and, in namespaces, of the cluster
    logs/n1.log     output of the programs (also warm.log, of the node processes' parent)
    history/n1.jsonl  sends, receives and notifications of the application on a node, if requested
    checks.json     the checkers' report, if histories were checked
    undelivered.jsonl, message-counts.jsonl  messages that were lost without an error, and numbers of messages by pair of
                    ranks (`lost_messages`)
    fates.jsonl     every fate that is not a pass; in namespaces of all repetitions together. There the log can be
                    incomplete, see "fates" in result.json: fates decided by the kernel are missing, and it ends at 128 MiB
    capture.pcapng  with trace.jsonl: every frame of a simulation, if requested
    result.json     status, verdict, results, counters; missing if the run was killed

With several repetitions, their files are in ``repeat-1``, ``repeat-2``, ..., and rows have the repetition's number.
``run.json`` and ``result.json`` have a format version. Within a version, keys may be added; existing keys keep their names
and meanings.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocols.core.compiled_build import build
from testbed.errors import ConflictError, reason_of
from testbed.observe.recorded import EVENTS, FORMAT, RESULT, ROWS, RUN
from testbed.registry import versions
from testbed.runtime.journal import Journal, UnwritableError, write_atomically


@dataclass(frozen=True, slots=True)
class RepetitionFiles:
    """Files of one repetition. number: counted from 1; 0 for a single repetition. rows: journal of all repetitions."""

    folder: Path
    number: int
    rows: Journal

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def history(self) -> Path:
        return self.folder / "history"


class RunFolder:
    """Folder of a run in progress."""

    def __init__(
        self, path: Path, request: Mapping[str, object], description: str, layout: Mapping[str, object]
    ) -> None:
        """description: in TOML, or empty. Raises ConflictError if the folder is not empty, UnwritableError."""
        self.path: Final = path.absolute()
        with _errors_as_unwritable(self.path):
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ConflictError(f"{path} exists and is not empty: a run needs a folder of its own")
            self.path.mkdir(parents=True, exist_ok=True)
        self._write_document(RUN, {"format": FORMAT, **request})
        self._write_document("cluster.json", layout)
        with _errors_as_unwritable(self.path):
            if description:
                (self.path / "cluster.toml").write_text(description, encoding="utf-8")
            (self.path / ROWS).touch()
        self.rows: Final = Journal(self.path / ROWS)
        self._events = Journal(self.path / EVENTS)

    def write_scenario(self, text: str) -> None:
        """Write the scenario, in TOML."""
        with _errors_as_unwritable(self.path):
            (self.path / "scenario.toml").write_text(text, encoding="utf-8")

    def create_repetition(self, number: int, count: int) -> RepetitionFiles:
        """Create the folder of repetition `number`, from 1, of `count`."""
        folder = self.path if count == 1 else self.path / f"repeat-{number}"
        files = RepetitionFiles(folder, number if count > 1 else 0, self.rows)
        with _errors_as_unwritable(folder):
            files.logs.mkdir(parents=True, exist_ok=True)
        return files

    def add_event(self, event: str, **facts: object) -> None:
        """Append an event that happens now. facts: further JSON keys of the event."""
        self.add_events([{"time": time.time_ns(), "clock": time.monotonic_ns(), "event": event, **facts}])

    def add_events(self, events: list[Mapping[str, object]]) -> None:
        """Append events recorded elsewhere."""
        for event in events:
            self._events.write(event)

    def close(self, result: Mapping[str, object]) -> None:
        """Close the journals and write the result."""
        self.rows.close()
        self._events.close()
        self._write_document(RESULT, {"format": FORMAT, **result})

    def _write_document(self, name: str, document: Mapping[str, object]) -> None:
        """Write a JSON file atomically."""
        text = json.dumps(document, default=repr, ensure_ascii=False, indent=1) + "\n"
        write_atomically(self.path / name, text)


@contextmanager
def _errors_as_unwritable(path: Path) -> Iterator[None]:
    """Raise UnwritableError for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(
            f"results cannot be written to {path}: {reason_of(error)}; earlier results are complete"
        ) from error


_PACKAGES = ("netns-testbed", "pyroute2")


def run_environment(packages: Collection[str] = _PACKAGES) -> Mapping[str, object]:
    """Describe the machine and the software versions, which are needed to reproduce a measurement. packages: those
    whose versions are included."""
    return {
        "kernel": f"{platform.release()} {platform.version()}",
        "cpu": _processor_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": os.getloadavg()[0],
        "python": sys.version,  # includes the build: the speed of builds of one version differs by a fifth
        "build": build(),
        "versions": versions(packages),
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
