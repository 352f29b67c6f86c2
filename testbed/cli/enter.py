"""Commands ``exec`` and ``shell``: this process becomes the program, so terminal, signals and exit code are the
program's."""

from __future__ import annotations

import os
import sys

import click

from testbed.cli.collector import collector_off
from testbed.cli.consoles import echo, name_option


@click.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, no_args_is_help=True
)
@name_option
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND [ARGUMENT]...")
@collector_off()
def exec_command(name: str | None, node: str, command: tuple[str, ...]) -> None:
    """Run a program in a node, or in the one that has a tag (@TAG).

    Standard input and output, the terminal, signals and the exit code are the program's own. Names of nodes resolve.
    """
    if command[0] == "--":
        command = command[1:]
    elif command[0].startswith("-"):
        raise click.UsageError(f"{command[0]} stands after the node: options of exec go before it, a program after --")
    _become(name, node, command)


@click.command("shell")
@name_option
@click.argument("node")
@collector_off()
def shell_command(name: str | None, node: str) -> None:
    """Open a shell ($SHELL, else /bin/sh) in a node."""
    os.environ.setdefault("debian_chroot", node)  # shown by Debian's shell prompts
    _become(name, node, [os.environ.get("SHELL") or "/bin/sh"])


def _become(name: str | None, node: str, command: list[str] | tuple[str, ...]) -> None:
    from testbed.cluster.access.node_programs import become, surroundings
    from testbed.cluster.records.state import Store
    from testbed.spec.selection import SELECTOR, node_of

    if not command:
        raise click.UsageError("which program? Write: testbed exec NODE -- COMMAND [ARGUMENT]...")
    store = Store()
    state = store.choose(name)
    place = surroundings(store, state, node_of(state.layout, node) if node.startswith(SELECTOR) else node)
    sys.stdout.flush()
    try:
        become(place, command)
    except FileNotFoundError:
        echo(f"testbed: {node}: there is no program {command[0]}", err=True)
        sys.exit(127)
    except OSError as error:
        echo(f"testbed: {node}: cannot run {command[0]}: {error.strerror}", err=True)
        sys.exit(126)
