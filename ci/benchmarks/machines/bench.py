"""``ci/bench machines``: clusters over three machines on this kernel: bring-up compared with one machine, control
messages, links between machines compared with a bare VXLAN."""

import argparse
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import local_machines
from benchmarks.harness import session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.namespace_teardown import Observer
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.traffic import Traffic
from benchmarks.machines import bring_up, tunnels
from benchmarks.machines.targets import targets
from testbed import Cluster
from testbed.errors import TestbedError

SUBJECTS = ("bring-up", "messages", "links")
OUTPUT = REPOSITORY / "results" / "bench-machines.jsonl"
_UNDERLAY = 'name = "bench-{pid}"\ndefaults = {{ mtu = {mtu} }}\ngenerate = {{ shape = "star", nodes = 4 }}\n'
_PROGRAMS = ("ip", "ssh-keygen", local_machines.SSHD)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--nodes", "300", "nodes of the cluster")
    session.add_option(parser, "--repeat", "5", "measured rounds of bring-up")
    session.add_option(parser, "--turns", "50", "measured repetitions of links")
    session.add_option(parser, "--count", "5000", "round trips per repetition")
    session.add_option(parser, "--seconds", "0.5", "seconds of TCP per repetition")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    nodes, repeat, turns, count = (int(getattr(options, name)) for name in ("nodes", "repeat", "turns", "count"))
    progress, traffic = session.progress, partial(Traffic, session.directory)
    session.attempt("machines", _check_programs)
    if session.failures:
        return
    observer = session.stack.enter_context(closing(Observer()))
    underlay = Cluster.from_toml(_UNDERLAY.format(pid=os.getpid(), mtu=tunnels.UNDERLAY_MTU))
    machines = session.stack.enter_context(local_machines.lab(session.directory, underlay))
    Path(machines.folder, bring_up.FILES[bring_up.ONE]).write_text(machines.file("a"))
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        "bring-up": lambda: bring_up.measure(machines, nodes, repeat, observer, progress),
        "messages": lambda: bring_up.messages(machines, nodes, observer, progress),
        "links": lambda: tunnels.measure(machines, traffic(), turns, count, float(options.seconds), progress),
    }
    session.measure_subjects(
        options.subjects, {subject: partial(_with_contender_errors, measure) for subject, measure in measures.items()}
    )
    session.report("clusters over machines", targets)


def _with_contender_errors(measure: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield rows; convert a TestbedError to a ContenderError."""
    try:
        yield from measure()
    except TestbedError as error:
        raise ContenderError(str(error)) from error


def _check_programs() -> list[Row]:
    missing = [program for program in _PROGRAMS if shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin") is None]
    if missing:
        raise ContenderError(
            f"{', '.join(missing)} not installed: apt-get install iproute2 openssh-client openssh-server"
        )
    return []


def main(options: argparse.Namespace) -> int:
    return session.main("machines", options.output, lambda session: run(options, session))
