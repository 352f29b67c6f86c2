"""Prompt of --cli-on-error. It runs programs in nodes, and commands of ``testbed``, while a failed test's cluster is up."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Final

_TESTBED: Final = (sys.executable, "-c", "from testbed.cli.main import main; main()")


def commands_for(cluster: str, nodes: Collection[str]) -> list[str]:
    """Return commands to inspect a cluster from another terminal."""
    node = next(iter(nodes), "n1")
    return [
        f"testbed status --name {cluster}",
        f"testbed shell --name {cluster} {node}",
        f"testbed exec --name {cluster} {node} -- ip address",
    ]


def run_prompt(cluster: str, nodes: Collection[str], print_line: Callable[[str], object]) -> None:
    """Read and run commands until the end of input. Without a terminal, only print how to inspect the cluster."""
    print_line(f"cluster {cluster} is up:")
    for line in commands_for(cluster, nodes):
        print_line(f"  {line}")
    if not sys.stdin.isatty():
        print_line("standard input is not a terminal, so no prompt is opened (--keep-cluster leaves the cluster up)")
        return
    print_line(
        "NODE: shell in the node; NODE COMMAND: run it there; status, inject, heal, ...: on this cluster; ctrl-D: continue"
    )
    while True:
        try:
            words = shlex.split(input(f"{cluster}> "))
        except EOFError:
            print_line("")
            return
        except (KeyboardInterrupt, ValueError) as error:  # Ctrl-C, or an unclosed quote
            print_line(str(error))
            continue
        if words:
            _run(command_for(cluster, nodes, words))


def _run(arguments: list[str]) -> None:
    """Run a command to its end. Ctrl-C ends the command, not pytest."""
    with subprocess.Popen(arguments) as process:
        while process.returncode is None:
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()


def command_for(cluster: str, nodes: Collection[str], words: list[str]) -> list[str]:
    """Return the command line for the words of an input line."""
    first, *rest = words
    if first not in nodes:
        return [*_TESTBED, first, "--name", cluster, *rest]
    if rest:
        return [*_TESTBED, "exec", "--name", cluster, first, "--", *rest]
    return [*_TESTBED, "shell", "--name", cluster, first]
