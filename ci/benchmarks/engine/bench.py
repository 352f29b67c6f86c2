"""``ci/bench engine``: events per second of CPU time, in turn with SimPy in the same process."""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from functools import partial

from rich.table import Table

from benchmarks.engine import firmware, models
from benchmarks.engine.targets import CALLBACKS, CHAIN, ENGINE, PING_PONG, SIMPY, TIME_OUTS, ratios, targets
from benchmarks.harness import session, tables
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session

Model = Callable[[int], int]

PAIRS: dict[str, tuple[Model, Model]] = {
    TIME_OUTS: (models.tasks_that_sleep, models.processes_that_sleep),
    CALLBACKS: (models.callbacks, models.processes_that_sleep),
    PING_PONG: (models.queues, models.stores),
    CHAIN: (models.servers, models.resources),
}
SUBJECTS = {"time-outs": TIME_OUTS, "callbacks": CALLBACKS, "ping-pong": PING_PONG, "chain": CHAIN}
OUTPUT = REPOSITORY / "results" / "bench-engine.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "9", "measured repetitions")
    session.add_option(parser, "--events", "100000", "time-outs, callbacks, round trips or jobs per repetition")
    session.add_subjects(parser, (*SUBJECTS, "firmware"))
    parser.add_argument("--large", action="store_true", help="firmware: also 1,024 nodes, once")
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def measure(subject: str, events: int, repeat: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure repetitions of the engine and of SimPy alternately, after a warm-up of each."""
    measured = SUBJECTS[subject]
    engine_model, simpy_model = PAIRS[measured]
    rates: dict[str, list[float]] = {ENGINE: [], SIMPY: []}
    for turn in range(repeat + 1):
        progress(f"{measured}: {turn + 1} of {repeat + 1}")
        ends = set[int]()
        for contender, model in ((ENGINE, engine_model), (SIMPY, simpy_model)):
            rate, end = _rate(model, events)
            ends.add(end)
            if turn:
                rates[contender].append(rate)
        if len(ends) > 1:
            raise ContenderError(f"the two models end at different times: {sorted(ends)} ns")
    settings = {
        "events": events,
        "runs": repeat,
        "of": "CPU time",
        "at_once": models.CONCURRENCY,
        "servers": models.SERVERS,
    }
    for contender, samples in rates.items():
        yield Row(subject, contender, measured, 0, "1/s", tuple(samples), settings)


def _rate(model: Model, events: int) -> tuple[float, int]:
    gc.collect()  # so that garbage of the previous repetition is not collected while this one is timed
    start = time.process_time_ns()
    end = model(events)
    return events * 1e9 / (time.process_time_ns() - start), end


def _simpy(events: int) -> float:
    return _rate(models.processes_that_sleep, events)[0]


def ratio_table(session: Session) -> Table:
    table = Table(title="Rate relative to SimPy's, by repetition: median (minimum - maximum)")
    table.add_column("measure")
    table.add_column("ratio", justify="right")
    for measured in PAIRS:
        if result := ratios(session.rows, measured):
            row = Row("ratio", ENGINE, measured, 0, "×", tuple(result), {})
            table.add_row(measured, tables.format_samples(row))
    return table


def run(options: argparse.Namespace, session: Session) -> None:
    events, repeat = int(options.events), int(options.repeat)
    for subject in SUBJECTS:
        if subject in options.subjects:
            session.attempt(subject, lambda subject=subject: measure(subject, events, repeat, session.progress))
    if "firmware" in options.subjects:
        turns = min(repeat, 3)
        simpy = partial(_simpy, events)
        session.attempt("firmware", lambda: firmware.measure(turns, options.large, session.progress, simpy))
    target_list = targets(session.rows)
    session.conclude(target_list)
    session.console.print(tables.row_table("Engine", session.rows, "nodes"))
    session.console.print(ratio_table(session))
    session.console.print(tables.target_table(target_list))


def main(options: argparse.Namespace) -> int:
    return session.main("engine", options.output, lambda session: run(options, session), root=False)
