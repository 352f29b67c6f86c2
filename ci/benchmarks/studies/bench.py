"""``ci/bench study``: simulated runs of a study: two workers compared with one, and the overhead of a run."""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import command_timing, session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target

OUTPUT = REPOSITORY / "results" / "bench-study.jsonl"
CONTENDERS = {1: "1 worker", 2: "2 workers"}
WIDTHS = tuple(CONTENDERS)
SPEEDUP, OVERHEAD = "time with one worker over that with two", "time beyond the runs themselves, per run"
MIN_SPEEDUP, MAX_OVERHEAD = 1.8, 0.05  # s
STUDY = """
[run]
cluster = "star-4"
workload = "random"
mode = "sim"
settings = {{ messages = 100 }}
[grid]
"link.loss" = ["0%", "1%"]
seed = {seeds}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--runs", "500", "runs of the study")
    session.add_option(parser, "--repeat", "3", "runs of each study, alternately")
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def measure(runs: int, repeat: int) -> Iterator[Row]:
    """Run the study with each number of workers in turn; the rows of all must be equal."""
    durations: dict[int, list[float]] = {width: [] for width in WIDTHS}
    overheads: dict[int, list[float]] = {width: [] for width in WIDTHS}
    with tempfile.TemporaryDirectory() as directory:
        study = Path(directory) / "study.toml"
        study.write_text(STUDY.format(seeds=list(range(runs // 2))))
        texts = set()
        for number in range(repeat):
            for width in WIDTHS:
                folder = Path(directory) / f"{number}-{width}"
                start = time.monotonic()
                done = subprocess.run(
                    [*command_timing.command(), "study", study, "--workers", str(width), "--output", folder],
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                seconds = time.monotonic() - start
                if done.returncode:
                    raise ContenderError(f"the study ended with code {done.returncode}: {done.stderr[-500:]}")
                points = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
                durations[width].append(seconds)
                overheads[width].append(seconds * width / runs - sum(point["seconds"] for point in points) / runs)
                texts.add((folder / "rows.jsonl").read_bytes())
        if len(texts) != 1:
            raise ContenderError("the rows differ between runs of the same study")
    settings = {"runs": runs}
    for width in WIDTHS:
        yield Row("study", CONTENDERS[width], "time of all", 4, "s", tuple(durations[width]), settings)
        yield Row("study", CONTENDERS[width], OVERHEAD, 4, "s", tuple(overheads[width]), settings)
    speedups = tuple([single / double for single, double in zip(durations[1], durations[2], strict=True)])
    yield Row("study", CONTENDERS[2], SPEEDUP, 4, "1", speedups, settings)


def targets(rows: Sequence[Row]) -> list[Target]:
    def median(measure: str, contender: str) -> float | None:
        return next((row.median for row in rows if (row.measure, row.contender) == (measure, contender)), None)

    return [
        Target(f"study: {SPEEDUP}", MIN_SPEEDUP, "1", median(SPEEDUP, CONTENDERS[2]), is_minimum=True),
        Target(f"study, one worker: {OVERHEAD}", MAX_OVERHEAD, "s", median(OVERHEAD, CONTENDERS[1]), strict=True),
        Target(f"study, two workers: {OVERHEAD}", MAX_OVERHEAD, "s", median(OVERHEAD, CONTENDERS[2]), strict=True),
    ]


def run(options: argparse.Namespace, session: Session) -> None:
    session.progress("study")
    session.attempt("study", lambda: measure(int(options.runs), int(options.repeat)))
    session.report("studies", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("study", options.output, lambda session: run(options, session))
