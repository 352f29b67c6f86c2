"""The folder of a run, from which its whole report can be made again:

    run.json        the request: cluster, workload, settings, protocol, mode, seed, command; its process and the machine
    cluster.json    the cluster with everything derived; cluster.toml, its description, where there is one
    scenario.toml   the faults beside it, where there were to be any
    rows.jsonl      the rows, each written when it was measured
    events.jsonl    events of the run, and in namespaces of the cluster
    logs/n1.log     output of the programs (also warm.log, of the node processes' parent)
    history/n1.jsonl  what the application on a node sent, received and was notified of, where that was asked for
    fates.jsonl     every fate that is not a pass; in namespaces of all repetitions together, as far as "fates" in
                    result.json says: the kernel reports none of those that it decides, and a log has 128 MiB at most
    capture.pcapng  with trace.jsonl, in the simulation: every frame, where that was asked for
    result.json     how it ended: status, verdict, results, counters; missing if the run was killed

Files of one of several repetitions are in ``repeat-1``, ``repeat-2``, ...; rows name their repetition. Both JSON files
carry the format's version. Within one version keys may be added; present ones keep their names and meanings.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocols.core.compiled_build import build
from testbed.errors import ConflictError, reason_of
from testbed.observe.recorded import EVENTS, FORMAT, RESULT, ROWS, RUN
from testbed.registry import versions
from testbed.runtime.journal import Journal, UnbufferedLines, UnwritableError, read, write_atomically


@dataclass(frozen=True, slots=True)
class Part:
    """Files of one repetition. number: counted from 1; 0 where there is only one. rows: shared by all repetitions."""

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
    """A run's folder while it is written."""

    def __init__(self, path: Path, asked: Mapping[str, object], description: str, layout: Mapping[str, object]) -> None:
        """description: in TOML, or empty. Raises ConflictError where the folder is not empty, UnwritableError."""
        self.path: Final = path.absolute()
        with _writing(self.path):
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ConflictError(f"{path} is there already, and not empty: a run has a folder of its own")
            self.path.mkdir(parents=True, exist_ok=True)
        self._put(RUN, {"format": FORMAT, **asked})
        self._put("cluster.json", layout)
        with _writing(self.path):
            if description:
                (self.path / "cluster.toml").write_text(description, encoding="utf-8")
            (self.path / ROWS).touch()
        self.rows: Final = Journal(self.path / ROWS)
        self._events = Journal(self.path / EVENTS)

    def scenario(self, text: str) -> None:
        """Write the scenario, in TOML."""
        with _writing(self.path):
            (self.path / "scenario.toml").write_text(text, encoding="utf-8")

    def part(self, number: int, of: int) -> Part:
        """Create the folder of one repetition, counted from 1."""
        folder = self.path if of == 1 else self.path / f"repeat-{number}"
        part = Part(folder, number if of > 1 else 0, self.rows)
        with _writing(folder):
            part.logs.mkdir(parents=True, exist_ok=True)
        return part

    def event(self, event: str, **facts: object) -> None:
        self.events([{"time": time.time_ns(), "clock": time.monotonic_ns(), "event": event, **facts}])

    def events(self, told: list[Mapping[str, object]]) -> None:
        """Append events recorded elsewhere."""
        for document in told:
            self._events.write(document)

    def close(self, result: Mapping[str, object]) -> None:
        """Close the journals and write the result."""
        self.rows.close()
        self._events.close()
        self._put(RESULT, {"format": FORMAT, **result})

    def _put(self, name: str, document: Mapping[str, object]) -> None:
        """Write a whole file atomically."""
        text = json.dumps(document, default=repr, ensure_ascii=False, indent=1) + "\n"
        write_atomically(self.path / name, text)


class _writing:  # noqa: N801  a context manager, read as a verb
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise UnwritableError(
                f"results cannot be written to {self._path}: {reason_of(error)}; earlier results are complete"
            ) from error


_UNDELIVERED: Final = "undelivered.jsonl"
"""File in a repetition's folder of messages that were reported as sent to their senders and did not arrive, where no call
could return an error: the programs had ended, or made no further call that concerns the receiver."""


def record_undelivered(folder: Path, node: str, sentence: str) -> None:
    """Append one undelivered message. Raises UnwritableError."""
    with closing(UnbufferedLines(folder / _UNDELIVERED)) as trail:
        trail.write({"node": node, "what": sentence})


def undelivered_messages(folder: Path) -> list[str]:
    """Format the undelivered messages of all repetitions in a run's folder."""
    files = [folder / _UNDELIVERED, *sorted(folder.glob(f"repeat-*/{_UNDELIVERED}"))]
    return [f"{line['node']}: {line['what']}; the program could not be told" for file in files for line in read(file)]


_PACKAGES = ("netns-testbed", "pyroute2")


def run_environment(packages: Collection[str] = _PACKAGES) -> Mapping[str, object]:
    """Describe the machine and the versions, needed beside the settings to measure a figure again. packages: those whose
    versions are included."""
    return {
        "kernel": f"{platform.release()} {platform.version()}",
        "cpu": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": os.getloadavg()[0],
        "python": sys.version,  # with its build: the same version may be a fifth faster or slower
        "build": build(),
        "versions": versions(packages),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
