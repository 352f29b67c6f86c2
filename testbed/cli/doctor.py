"""``doctor``: what this machine can do, what that means, and how to get what is missing."""

from __future__ import annotations

from dataclasses import asdict

import click

from testbed.cli.options import json_option, print_json


@click.command("doctor")
@json_option
def doctor_command(as_json: bool) -> None:
    """Find out, by trying in a scratch namespace, what this machine can do and how to get what it cannot."""
    from testbed.kernel.probing import probe

    found = probe()
    if as_json:
        print_json("doctor", {"abilities": [asdict(ability) for ability in found]})
        return
    width = max(len(ability.name) for ability in found)
    for ability in found:
        sign = click.style("yes", fg="green") if ability.there else click.style("no ", fg="red")
        click.echo(f"{sign}  {ability.name.ljust(width)}  {ability.detail}: {ability.meaning}")
        if ability.remedy and not ability.there:
            click.echo(f"     {''.ljust(width)}  to get it: {ability.remedy}")
