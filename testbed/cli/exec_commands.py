"""Commands ``exec``, ``shell`` and ``ssh``. This process replaces itself (execve) by the program in a node, or by the ssh
client, so that terminal, signals and exit code are the program's."""

from __future__ import annotations

import os
import sys

import click

from testbed.cli.collector import collector_off
from testbed.cli.consoles import echo, json_option, name_option, print_json


@click.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, no_args_is_help=True
)
@name_option
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND [ARGUMENT]...")
@collector_off()
def exec_command(name: str | None, node: str, command: tuple[str, ...]) -> None:
    """Run a program in a node, named or by its tag (@TAG).

    Standard input and output, the terminal, signals and the exit code are the program's own. Names of nodes resolve.
    """
    if command[0] == "--":
        command = command[1:]
    elif command[0].startswith("-"):
        raise click.UsageError(f"{command[0]} follows the node: options of exec go before it, a program after --")
    _exec_in_node(name, node, command)


@click.command("shell")
@name_option
@click.argument("node")
@collector_off()
def shell_command(name: str | None, node: str) -> None:
    """Open a shell ($SHELL, else /bin/sh) in a node."""
    os.environ.setdefault("debian_chroot", node)  # shown by Debian's shell prompts
    _exec_in_node(name, node, [os.environ.get("SHELL") or "/bin/sh"])


def _exec_in_node(name: str | None, node: str, command: list[str] | tuple[str, ...]) -> None:
    from testbed.cluster.access.node_programs import become, node_context
    from testbed.cluster.records.state import Store
    from testbed.spec.selection import SELECTOR, node_of

    if not command or not command[0]:
        raise click.UsageError("which program? Write: testbed exec NODE -- COMMAND [ARGUMENT]...")
    store = Store()
    state = store.choose(name)
    context = node_context(store, state, node_of(state.layout, node) if node.startswith(SELECTOR) else node)
    sys.stdout.flush()
    try:
        become(context, command)
    except FileNotFoundError:
        echo(f"testbed: {node}: there is no program {command[0]}", err=True)
        sys.exit(127)
    except OSError as error:
        echo(f"testbed: {node}: cannot run {command[0]}: {error.strerror}", err=True)
        sys.exit(126)


@click.command("ssh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@json_option
@click.argument("cluster")
@click.argument("node", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [ARGUMENT]...]")
def ssh_command(as_json: bool, cluster: str, node: str | None, command: tuple[str, ...]) -> None:
    """Start an sshd in every node of a cluster that is up; with a node, or @TAG of one, log in or run a command there.

    \b
    testbed ssh star-4                 start them, and print the options for ssh, scp, rsync, fab, ...
    testbed ssh star-4 n1              log in to n1
    testbed ssh star-4 n1 uptime -p    run a command there, through its shell

    Keys, configuration and known hosts belong to the cluster and are removed with it: nothing in ~/.ssh is read or
    written. In a node, 'ssh n2' goes to n2 through the cluster's links. Without root you log in as yourself, not as root.
    """
    if node is not None and node.startswith("-"):
        raise click.UsageError(f"{node} follows the cluster: options of ssh go before it")
    import shlex

    from testbed.cluster.access import secure_shell
    from testbed.cluster.records.state import Store
    from testbed.spec.selection import node_of

    store = Store()
    node_name = node_of(store.choose(cluster).layout, node) if node else ""
    config = secure_shell.ensure(store, cluster)
    if as_json:
        print_json("ssh", {"cluster": cluster, "configuration": str(config)})
        return
    if not node_name:
        echo(f"ssh -F {shlex.quote(str(config))} NODE")
        return
    sys.stdout.flush()
    remote_command = command[1:] if command[:1] == ("--",) else command
    try:
        os.execvp("ssh", ["ssh", "-F", str(config), node_name, *remote_command])
    except FileNotFoundError:
        echo("testbed: there is no program ssh: install Debian's openssh-client", err=True)
        sys.exit(127)
