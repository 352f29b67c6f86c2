"""``nics``: the NICs of a cluster, shared by host processes that attach to them."""

from __future__ import annotations

import os
import signal

import click

from testbed.cli.options import name_option


@click.command("nics", short_help="Share the NICs of a cluster, for scripts that attach.")
@click.option("--protocol", default="emp", show_default=True, metavar="NAME", help="What the NICs speak.")
@click.option(
    "--functions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="So many processes of a node may attach.",
)
@name_option
def nics_command(protocol: str, functions: int, name: str | None) -> None:
    """Share every node's first NIC until Ctrl-C: an agent of its own has its firmware, and scripts attach to it.

    \b
    testbed nics --functions 2 &
    testbed exec n1 -- python my.py     in it: from testbed import attach

    'testbed status' shows the agents and who has attached. One that dies is started again; 'testbed events' tells of it.
    """
    from testbed.cluster.running import RunningCluster
    from testbed.cluster.state import Store
    from testbed.controller.nics import share_nics

    store = Store()
    cluster = RunningCluster(store, store.choose(name))
    stop, stopped = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os.write(stopped, b"\n"))
    with share_nics(cluster, protocol, functions=functions) as standing:
        click.echo(f"the NICs of {cluster.name} are shared: Ctrl-C ends it", err=True)
        standing.tend(stop)
