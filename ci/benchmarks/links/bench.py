"""``ci/bench links``: what the relay carries and how late, TCP through links, injecting, the kernel's datapaths."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial

from benchmarks import session, tables
from benchmarks.contenders import ContenderError
from benchmarks.links import injecting, kernel, lateness, relay, throughput
from benchmarks.links.clusters import Clusters
from benchmarks.links.targets import targets
from benchmarks.links.traffic import Traffic
from benchmarks.rows import REPOSITORY, Row
from benchmarks.session import Session

SUBJECTS = ("relay", "throughput", "lateness", "unimpaired", "links", "inject", "kernel")
OUTPUT = REPOSITORY / "results" / "bench-links.jsonl"


def arguments(parser: argparse.ArgumentParser) -> None:
    session.option(parser, "--repeat", "5", "runs that count")
    session.option(parser, "--subjects", ",".join(SUBJECTS), "what to measure")
    session.option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    try:
        traffic = Traffic(session.directory)
    except ContenderError as error:
        session.failures.append(str(error))
        return
    repeat, progress, directory = int(options.repeat), session.progress, session.directory
    measures: dict[str, Callable[[Clusters], Iterable[Row]]] = {
        "relay": lambda clusters: relay.capacity(clusters, traffic, repeat, progress),
        "throughput": lambda clusters: throughput.delayed(clusters, traffic, repeat, progress),
        "lateness": lambda clusters: lateness.measure(clusters, traffic, repeat, progress),
        "unimpaired": lambda clusters: throughput.against_ip(clusters, traffic, directory, repeat, progress),
        "links": lambda clusters: relay.many_links(clusters, traffic, repeat, progress),
        "inject": lambda clusters: injecting.measure(clusters, repeat, progress),
        "kernel": lambda clusters: kernel.measure(clusters, traffic, repeat, progress),
    }
    wanted = options.subjects.split(",")
    session.failures += [f"{name}: there is no such subject" for name in wanted if name not in SUBJECTS]
    for subject in SUBJECTS:
        if subject in wanted:
            with closing(Clusters()) as clusters:
                session.attempt(subject, partial(measures[subject], clusters))
    found = targets(session.rows)
    session.conclude(found)
    session.console.print(tables.row_table("Links", session.rows, "nodes"))
    session.console.print(tables.target_table(found))


def main(options: argparse.Namespace) -> int:
    return session.main("links", options.output, lambda session: run(options, session))
