"""``ci/bench cluster``: stars against the floor, the commands, running in a node, what an idle node costs."""

import argparse
import contextlib
import dataclasses
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import commands, footprint, stars, tables
from benchmarks.contenders import Contender, ContenderError
from benchmarks.floor import Floor
from benchmarks.ip_batch import IpBatch
from benchmarks.product import Product
from benchmarks.rows import REPOSITORY, Row, Store
from benchmarks.settled import NotSettledError, Observer
from benchmarks.targets import ratios, targets

RUNS_IN_A_NODE = 50
WIDTH = 120  # of the tables where there is no terminal
SUBJECTS = ("stars", "commands", "run", "footprint")
OUTPUT = REPOSITORY / "results" / "bench-cluster.jsonl"


def arguments(parser: argparse.ArgumentParser) -> None:
    def add(option: str, default: str, meaning: str) -> None:
        parser.add_argument(option, default=default, help=f"{meaning} (default: %(default)s)")

    add("--sizes", "2,10,50,100,200,500", "hosts of the stars")
    add("--repeat", "5", "rounds that count")
    add("--subjects", ",".join(SUBJECTS), "what to measure")
    add("--output", str(OUTPUT), "rows are added to this file")


class Bench:
    """One run: the contenders that this machine has, the rows so far, what went wrong."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.console = console
        self.repeat = int(options.repeat)
        self.sizes = [int(size) for size in options.sizes.split(",")]
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self.subjects = set(options.subjects.split(","))
        self.store = Store(Path(options.output))

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.store.close)
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-bench-")))
            observer = stack.enter_context(contextlib.closing(Observer()))
            status = stack.enter_context(self.console.status(""))

            def made(make: Callable[[], Contender]) -> Contender | None:
                """A contender, closed at the end; None, and the reason noted, where it cannot be."""
                try:
                    contender = make()
                except ContenderError as error:
                    self.failures.append(str(error))
                    return None
                stack.callback(contender.close)
                return contender

            floor = made(lambda: Floor(directory))
            if "stars" in self.subjects:
                others = [made(Product), made(lambda: Product(keep=False)), made(lambda: IpBatch(directory))]
                contenders = [one for one in [floor, *others] if one is not None]
                self._stars(contenders, observer, status.update)
            if "run" in self.subjects:
                self._attempt("run", lambda: self._run_in_a_node(observer))
            if "commands" in self.subjects:
                self._attempt("commands", lambda: commands.measure(self.repeat, observer, status.update))
            if "footprint" in self.subjects:
                self._attempt("footprint", lambda: footprint.measure(floor, self.repeat, observer, status.update))
            self._conclude()

    def _stars(self, contenders: list[Contender], observer: Observer, progress: Callable[[str], None]) -> None:
        """Whoever fails once is left out from then on; the others go on."""
        for hosts in self.sizes:
            while contenders:
                try:
                    rows = stars.measure(contenders, hosts, self.repeat, observer, progress)
                except stars.FailedError as failed:
                    self.failures.append(f"star of {hosts}: {failed}")
                    contenders.remove(failed.contender)
                    continue
                self._add(rows)
                break

    def _run_in_a_node(self, observer: Observer) -> list[Row]:
        with contextlib.closing(Product()) as product:
            product.up(f"bench-run-{os.getpid()}", 2)
            ours, theirs = product.compare_run(RUNS_IN_A_NODE)
            observer.watch(product.namespaces())
            product.down()
            observer.wait()
        settings = {"interleaved": ["node.run", "ip netns exec"], "process": "warm"}
        return [
            Row("run in a node", name, "true", 2, "s", tuple(samples), settings)
            for name, samples in (("node.run", ours), ("ip netns exec", theirs))
        ]

    def _attempt(self, what: str, measure: Callable[[], Sequence[Row]]) -> None:
        try:
            self._add(measure())
        except (ContenderError, NotSettledError) as error:
            self.failures.append(f"{what}: {error}")

    def _add(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        self.store.add(rows)

    def _conclude(self) -> None:
        found = targets(self.rows)
        for ratio in ratios(self.rows):
            self.store.add_result({"subject": "ratio", **dataclasses.asdict(ratio)})
        for target in found:
            reached = {"reached": target.reached}
            self.store.add_result({"subject": "target", **dataclasses.asdict(target), **reached})
        tables.show(self.console, self.rows, found)


def main(options: argparse.Namespace) -> int:
    """Exit code 0 when all could be measured, whatever the figures; 1 when something could not."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if os.geteuid() != 0:
        console.print("ci/bench cluster makes network namespaces: run it as root")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    bench = Bench(options, console)
    bench.run()
    for failure in bench.failures:
        console.print(f"not measured: {failure}", markup=False)
    console.print(f"rows added to {options.output}", markup=False)
    return 1 if bench.failures else 0
