"""The folder of a run, from which everything that is told of it can be told again:

    run.json        what was asked for: cluster, workload, settings, protocol, mode, seed, command; and where
    cluster.json    the cluster with everything derived; cluster.toml, its description, where there is one
    scenario.toml   the faults beside it, where there were to be any
    rows.jsonl      the rows, each written when it was measured
    events.jsonl    what happened, and in namespaces what happened to the cluster
    logs/n1.log     what the programs printed (also warm.log, of the node processes' parent)
    history/n1.jsonl  what the application on a node sent, received and was told, where that was asked for
    fates.jsonl     every fate that is not a pass; in namespaces of all repetitions together, as far as "fates" in
                    result.json says: the kernel tells none of those that it decides, and a log has 128 MiB at most
    capture.pcapng  with trace.jsonl, in the simulation: every frame, where that was asked for
    result.json     how it ended: status, verdict, results, counters; not there if the run was killed

What belongs to one of several repetitions is in ``repeat-1``, ``repeat-2``, ...; rows say theirs. Both JSON files carry the
format's version. Within one, keys may be added; what is there keeps its name and meaning.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import ConflictError, reason_of
from testbed.observe.recorded import EVENTS, FORMAT, RESULT, ROWS, RUN
from testbed.runtime.journal import Journal, UnwritableError


@dataclass(frozen=True, slots=True)
class Part:
    """Where one repetition's files are. number: counted from 1; 0 where there is only one. rows: shared by all."""

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
    """A run's folder, while it is written."""

    def __init__(self, path: Path, asked: Mapping[str, object], description: str, layout: Mapping[str, object]) -> None:
        """description: in TOML, or empty. Raises ConflictError where something is there already, UnwritableError."""
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
        """What is to go wrong, in TOML."""
        with _writing(self.path):
            (self.path / "scenario.toml").write_text(text, encoding="utf-8")

    def part(self, number: int, of: int) -> Part:
        """The place of one repetition, counted from 1."""
        folder = self.path if of == 1 else self.path / f"repeat-{number}"
        part = Part(folder, number if of > 1 else 0, self.rows)
        with _writing(folder):
            part.logs.mkdir(parents=True, exist_ok=True)
        return part

    def event(self, event: str, **facts: object) -> None:
        self.events([{"time": time.time_ns(), "clock": time.monotonic_ns(), "event": event, **facts}])

    def events(self, told: list[Mapping[str, object]]) -> None:
        """Those that somebody else has noted."""
        for document in told:
            self._events.write(document)

    def close(self, result: Mapping[str, object]) -> None:
        """The run is over."""
        self.rows.close()
        self._events.close()
        self._put(RESULT, {"format": FORMAT, **result})

    def _put(self, name: str, document: Mapping[str, object]) -> None:
        """The whole file, or none of it."""
        text = json.dumps(document, default=repr, ensure_ascii=False, indent=1) + "\n"
        draft = self.path / f".{name}.new"
        with _writing(self.path):
            try:
                draft.write_text(text, encoding="utf-8", errors="replace")
                os.replace(draft, self.path / name)
            except OSError:
                draft.unlink(missing_ok=True)
                raise


class _writing:  # noqa: N801  a context manager, named as what happens in it
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise UnwritableError(
                f"results cannot be written to {self._path}: {reason_of(error)}; what was written before is whole"
            ) from error
