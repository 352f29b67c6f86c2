"""``ci/bench links``: the relay's throughput and lateness, TCP through links, injection, the kernel's datapaths."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial

from benchmarks.harness import session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.traffic import Traffic
from benchmarks.links import injection, kernel, lateness, myrinet, relay, throughput, trust
from benchmarks.links.clusters import Clusters
from benchmarks.links.targets import targets

SUBJECTS = ("relay", "throughput", "lateness", "unimpaired", "links", "inject", "kernel", "myrinet", "trust")
OUTPUT = REPOSITORY / "results" / "bench-links.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "5", "measured runs")
    session.add_option(parser, "--seconds", "2", "length of every run of traffic")
    session.add_option(parser, "--sizes", "2,16,100", "nodes of the stars of inject")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    try:
        traffic = Traffic(session.directory)
    except ContenderError as error:
        session.failures.append(str(error))
        return
    repeat, seconds, progress = int(options.repeat), float(options.seconds), session.progress
    sizes = [int(size) for size in options.sizes.split(",")]
    measures: dict[str, Callable[[Clusters], Iterable[Row]]] = {
        "relay": lambda clusters: relay.capacity(clusters, traffic, repeat, seconds, progress),
        "throughput": lambda clusters: throughput.delayed(clusters, traffic, repeat, seconds, progress),
        "lateness": lambda clusters: lateness.measure(clusters, traffic, repeat, seconds, progress),
        "unimpaired": lambda clusters: throughput.against_ip(
            clusters, traffic, session.directory, repeat, seconds / 4, progress
        ),
        "links": lambda clusters: relay.many_links(clusters, traffic, repeat, seconds, progress),
        "inject": lambda clusters: injection.measure(clusters, sizes, repeat, progress),
        "kernel": lambda clusters: kernel.measure(clusters, traffic, repeat, seconds, progress),
        "myrinet": lambda _: myrinet.measure(repeat, progress),
        "trust": lambda _: trust.measure(2 * repeat, progress),
    }
    for subject in SUBJECTS:
        if subject in options.subjects:
            with closing(Clusters()) as clusters:
                session.attempt(subject, partial(measures[subject], clusters))
    session.report("Links", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("links", options.output, lambda session: run(options, session))
