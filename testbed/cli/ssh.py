"""Command ``ssh``: an sshd in every node, and the configuration that clients need."""

from __future__ import annotations

import os
import shlex
import sys

import click

from testbed.cli.consoles import echo, json_option, print_json


@click.command("ssh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@json_option
@click.argument("cluster")
@click.argument("node", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [ARGUMENT]...]")
def ssh_command(as_json: bool, cluster: str, node: str | None, command: tuple[str, ...]) -> None:
    """Start an sshd in every node of a cluster that is up; with a node, or @TAG of one, log in or run a command there.

    \b
    testbed ssh star-4                 start them, and print how to call ssh, scp, rsync, fab, ...
    testbed ssh star-4 n1              a session in n1
    testbed ssh star-4 n1 uptime -p    a command there, through its shell

    Keys, configuration and known hosts are the cluster's own and end with it: nothing in ~/.ssh is read or written. In
    a node, 'ssh n2' goes to n2 through the cluster's links. Without root you are yourself there, not the node's root.
    """
    if node is not None and node.startswith("-"):
        raise click.UsageError(f"{node} stands after the cluster: options of ssh go before it")
    from testbed.cluster.access import secure_shell
    from testbed.cluster.records.state import Store
    from testbed.spec.selection import node_of

    store = Store()
    chosen = node_of(store.choose(cluster).layout, node) if node else ""
    config = secure_shell.ensure(store, cluster)
    if as_json:
        print_json("ssh", {"cluster": cluster, "configuration": str(config)})
        return
    if not chosen:
        echo(f"ssh -F {shlex.quote(str(config))} NODE")
        return
    sys.stdout.flush()
    rest = command[1:] if command[:1] == ("--",) else command
    try:
        os.execvp("ssh", ["ssh", "-F", str(config), chosen, *rest])
    except FileNotFoundError:
        echo("testbed: there is no program ssh: install Debian's openssh-client", err=True)
        sys.exit(127)
