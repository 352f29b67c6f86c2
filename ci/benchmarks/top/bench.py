"""``ci/bench top``: processor time of `testbed top`, in the terminal and in a browser, for a hundred nodes, at one sample a
second, after its start."""

import argparse
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import command_timing, session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target
from browser import PROGRAM, Browser
from testbed import Cluster, RunningCluster

OUTPUT = REPOSITORY / "results" / "bench-top.jsonl"
NODES = 100
LIMIT = 0.03  # of a processor
WEB_LIMIT = 0.05  # with one page open
WEB, PAGE = "testbed top --web", "its page in Chromium"
TOP, CPU = "testbed top", "CPU, one sample per second"
PANELS = {"nodes": "1", "links": "2"}  # by key
SIZES = ((80, 24), (200, 50))
_SETTLE = 3.0  # s from the start of `testbed top` until it has imported its modules and shows the cluster
KINDS = ("unimpaired", "by relay, busy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--seconds", "20", "seconds for which each screen is measured")
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def terminal_rows(kind: str, cluster: RunningCluster, seconds: float) -> Iterator[Row]:
    """Measure `testbed top` with each panel and terminal size in turn."""
    for panel, key in PANELS.items():
        for width, height in SIZES:
            terminal, screen = pty.openpty()
            fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            command = [*command_timing.command(), "top", cluster.name]
            environment = {**os.environ, "TERM": "xterm-256color"}
            top = subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, env=environment)
            threading.Thread(target=_drain, args=(terminal,), daemon=True).start()
            try:
                os.write(terminal, key.encode())
                time.sleep(_SETTLE)  # the start is not measured
                before, start = _used(top.pid), time.monotonic()
                time.sleep(seconds)  # the span that is measured
                share = (_used(top.pid) - before) / (time.monotonic() - start)
                os.write(terminal, b"q")
                if top.wait(30):
                    raise ContenderError(f"testbed top ended with code {top.returncode}")
            finally:
                top.kill()
                top.wait()
                os.close(screen)
            settings = {"kind": kind, "panel": panel, "screen": f"{width}x{height}", "seconds": seconds}
            yield Row(kind, TOP, f"{CPU}, {panel}, {width}x{height}", NODES, "1", (share,), settings)


def web_rows(kind: str, cluster: RunningCluster, seconds: float) -> Iterator[Row]:
    """Measure `testbed top --web` with one page open, and, separately, Chromium, which renders without a GPU."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        command = [*command_timing.command(), "top", cluster.name, "--web"]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        browser = stack.enter_context(Browser(Path(folder) / "profile"))
        browser.open(address, 1440, 900)
        browser.until(f"document.querySelectorAll('.node').length === {NODES}")
        time.sleep(_SETTLE)  # the start is not measured
        before, browser_before, start = _used(server.pid), browser.processor_time(), time.monotonic()
        time.sleep(seconds)  # the span that is measured
        span = time.monotonic() - start
        settings = {"kind": kind, "panel": "nodes", "screen": "1440x900", "seconds": seconds}
        for contender, used in ((WEB, _used(server.pid) - before), (PAGE, browser.processor_time() - browser_before)):
            yield Row(kind, contender, f"{CPU}, nodes, 1440x900", NODES, "1", (used / span,), settings)


def _drain(terminal: int) -> None:
    """Read the terminal until it closes, so that its writer does not block."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # the terminal is closed
        os.close(terminal)


def _used(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def measure(kind: str, seconds: float) -> Iterator[Row]:
    """Measure a cluster of one of KINDS. The busy one has impaired links, a program in every node, and ten senders."""
    busy = kind != KINDS[0]
    with ExitStack() as stack:
        description = Cluster.star(NODES, delay="1ms", loss="1%") if busy else Cluster.star(NODES)
        cluster = stack.enter_context(description.up(f"bench-top-{os.getpid()}"))
        for number in range(1, NODES + 1 if busy else 1):
            program = ["ping", "-q", "-i0.02", f"n{number + 1}"] if number % 10 == 1 else ["sleep", "3600"]
            cluster[f"n{number}"].popen(program, stdout=subprocess.DEVNULL)
        yield from terminal_rows(kind, cluster, seconds)
        if shutil.which(PROGRAM):
            yield from web_rows(kind, cluster, seconds)


def targets(rows: Sequence[Row]) -> list[Target]:
    return [
        Target(f"{contender} of {NODES} nodes, {kind}: share of a processor, the worst of its screens", limit, "1",
               max((row.median for row in rows if (row.subject, row.contender) == (kind, contender)), default=None))
        for kind in KINDS for contender, limit in ((TOP, LIMIT), (WEB, WEB_LIMIT))
    ]  # fmt: skip


def run(options: argparse.Namespace, session: Session) -> None:
    for kind in KINDS:
        session.progress(kind)
        session.attempt(kind, lambda kind=kind: measure(kind, float(options.seconds)))
    session.report("testbed top", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("top", options.output, lambda session: run(options, session))
