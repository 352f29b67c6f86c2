"""``dissector``: what Wireshark needs to know the protocols."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.errors import TestbedError, reason_of


@click.command("dissector", short_help="Write a dissector of the protocols for Wireshark.")
@click.option("-o", "--output", "path", metavar="FILE", help="Write it to this file instead of standard output.")
def dissector_command(path: str | None) -> None:
    """Write a dissector in Lua for Wireshark and tshark: all registered protocols, as their Scapy layers have them.

    \b
    testbed dissector -o testbed.lua
    wireshark -X lua_script:testbed.lua n1.pcapng
    tshark -X lua_script:testbed.lua -r n1.pcapng -Y 'emp.type == 3'

    Fields are called as in fault rules and filters of 'testbed decode'.
    """
    from testbed.observe.dissector.making import made

    text, lacking = made()
    for sentence in lacking:
        click.echo(f"warning: {sentence}", err=True)
    if path is None:
        click.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise TestbedError(f"the dissector cannot be written: {reason_of(error)}") from error
