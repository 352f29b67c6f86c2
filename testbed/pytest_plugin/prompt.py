"""Prompt of --cli-on-error, between a failing test and the end of its cluster: it accepts the sub-commands of
``testbed``."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Final

_TESTBED: Final = (sys.executable, "-c", "from testbed.cli.main import main; main()")


def commands_for(cluster: str, nodes: Collection[str]) -> list[str]:
    """Commands to look at a cluster from another terminal."""
    node = next(iter(nodes), "n1")
    return [
        f"testbed status --name {cluster}",
        f"testbed shell --name {cluster} {node}",
        f"testbed exec --name {cluster} {node} -- ip address",
    ]


def ask(cluster: str, nodes: Collection[str], say: Callable[[str], object]) -> None:
    """Read commands from the terminal until its end; without a terminal, print how to keep the cluster up."""
    say(f"cluster {cluster} is up:")
    for line in commands_for(cluster, nodes):
        say(f"  {line}")
    if not sys.stdin.isatty():
        say("this is no terminal: no prompt is opened (--keep-cluster leaves the cluster up)")
        return
    say("NODE: a shell there; NODE COMMAND: run it there; status, inject, heal, ...: on this cluster; ctrl-D: continue")
    while True:
        try:
            words = shlex.split(input(f"{cluster}> "))
        except EOFError:
            say("")
            return
        except (KeyboardInterrupt, ValueError) as error:  # Ctrl-C, or an unclosed quote
            say(str(error))
            continue
        if words:
            _run(command(cluster, nodes, words))


def _run(arguments: list[str]) -> None:
    """Run a command to its end. Ctrl-C is the command's, and does not end pytest."""
    with subprocess.Popen(arguments) as process:
        while process.returncode is None:
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()


def command(cluster: str, nodes: Collection[str], words: list[str]) -> list[str]:
    """Translate a line of the prompt to a program and its arguments."""
    first, *rest = words
    if first not in nodes:
        return [*_TESTBED, first, "--name", cluster, *rest]
    if rest:
        return [*_TESTBED, "exec", "--name", cluster, first, "--", *rest]
    return [*_TESTBED, "shell", "--name", cluster, first]
