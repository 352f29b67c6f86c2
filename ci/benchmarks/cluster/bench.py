"""``ci/bench cluster``: stars against the floor, the commands, programs in a node, idle nodes, thousands of nodes."""

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Callable

from benchmarks.cluster import commands, footprint, large_clusters, stars
from benchmarks.cluster.floor import Floor
from benchmarks.cluster.tables import star_table
from benchmarks.cluster.targets import ratios, targets
from benchmarks.harness import session, tables
from benchmarks.harness.contenders import Contender, ContenderError
from benchmarks.harness.ip_batch import IpBatch
from benchmarks.harness.namespace_teardown import Observer
from benchmarks.harness.product import Product
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session

RUNS_IN_A_NODE = 50
SUBJECTS = ("stars", "commands", "run", "footprint", "large")
OUTPUT = REPOSITORY / "results" / "bench-cluster.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--sizes", "2,10,50,100,200,500", "hosts of the stars")
    session.add_option(parser, "--repeat", "5", "measured rounds")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


class Bench:
    """Run of the cluster benchmark: it measures the contenders that this machine has, in turn."""

    def __init__(self, options: argparse.Namespace, session: Session) -> None:
        self.session = session
        self.repeat = int(options.repeat)
        self.sizes = [int(size) for size in options.sizes.split(",")]
        self.subjects = set(options.subjects)

    def run(self) -> None:
        session = self.session
        observer = session.stack.enter_context(contextlib.closing(Observer()))

        def start(make: Callable[[], Contender]) -> Contender | None:
            """Start a contender, to be closed at the end; None if it cannot run here, which is reported."""
            try:
                contender = make()
            except ContenderError as error:
                session.failures.append(str(error))
                return None
            session.stack.callback(contender.close)
            return contender

        floor = start(lambda: Floor(session.directory))
        if "stars" in self.subjects:
            more_contenders = [
                start(Product),
                start(lambda: Product(keep=False)),
                start(lambda: IpBatch(session.directory)),
            ]
            contenders = [contender for contender in [floor, *more_contenders] if contender is not None]
            self._stars(contenders, observer)
        if "run" in self.subjects:
            session.attempt("run", lambda: self._run_in_a_node(observer))
        if "commands" in self.subjects:
            session.attempt("commands", lambda: commands.measure(self.repeat, observer, session.progress))
        if "footprint" in self.subjects:
            session.attempt("footprint", lambda: footprint.measure(floor, self.repeat, observer, session.progress))
        if "large" in self.subjects:
            session.attempt("large", lambda: large_clusters.measure(floor, self.repeat, observer, session.progress))
        self._conclude()

    def _stars(self, contenders: list[Contender], observer: Observer) -> None:
        """Measure stars of each size; a contender that fails once is omitted from then on."""
        for hosts in self.sizes:
            while contenders:
                try:
                    rows = stars.measure(contenders, hosts, self.repeat, observer, self.session.progress)
                except stars.FailedError as failed:
                    self.session.failures.append(f"star of {hosts}: {failed}")
                    contenders.remove(failed.contender)
                    continue
                self.session.add(rows)
                break

    def _run_in_a_node(self, observer: Observer) -> list[Row]:
        with contextlib.closing(Product()) as product:
            product.up(f"bench-run-{os.getpid()}", 2)
            testbed_samples, ip_samples = product.compare_run(RUNS_IN_A_NODE)
            observer.watch(product.namespaces())
            product.down()
            observer.wait()
        settings = {"interleaved": ["node.run", "ip netns exec"], "process": "warm"}
        return [
            Row("run in a node", name, "true", 2, "s", tuple(samples), settings)
            for name, samples in (("node.run", testbed_samples), ("ip netns exec", ip_samples))
        ]

    def _conclude(self) -> None:
        rows, console = self.session.rows, self.session.console
        target_list = targets(rows)
        for ratio in ratios(rows):
            self.session.add_result({"subject": "ratio", **dataclasses.asdict(ratio)})
        self.session.conclude(target_list)
        console.print(star_table(rows))
        if other_rows := [row for row in rows if row.subject != "star"]:
            console.print(tables.row_table("Commands, running in a node, footprint, thousands of nodes", other_rows))
        console.print(tables.target_table(target_list))


def main(options: argparse.Namespace) -> int:
    return session.main("cluster", options.output, lambda session: Bench(options, session).run())
