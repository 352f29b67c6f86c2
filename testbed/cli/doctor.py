"""``doctor``: what this machine can do, what that means, and how to get what is missing."""

from __future__ import annotations

from dataclasses import asdict

import click

from testbed.cli.options import json_option, print_json


@click.command("doctor")
@click.option("--datapaths", is_flag=True, help="Show what each datapath does exactly, approximately or not at all.")
@json_option
def doctor_command(datapaths: bool, as_json: bool) -> None:
    """Find out, by trying in a scratch namespace, what this machine can do and how to get what it cannot."""
    if datapaths:
        _show_datapaths(as_json)
        return
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


def _show_datapaths(as_json: bool) -> None:
    """The table by which the ladder chooses."""
    from testbed.kernel.datapaths import FEATURES, LADDER, TABLE, Fit

    carriers = [datapath for datapath in LADDER if datapath != "direct"]
    if as_json:
        features = [
            {
                "name": feature.name,
                "meaning": feature.meaning,
                "datapaths": {
                    datapath: {"fit": entry.fit.value, "reason": entry.reason, "bound": entry.bound}
                    for datapath in carriers
                    for entry in [TABLE[feature.name][datapath]]
                },
            }
            for feature in FEATURES
        ]
        print_json("datapaths", {"features": features})
        return
    colours = {Fit.EXACT: "green", Fit.APPROXIMATE: "yellow", Fit.ABSENT: "red"}
    width = max(len(feature.name) for feature in FEATURES)
    column = max(len(fit.value) for fit in Fit)
    click.echo("  ".join([" " * width, *(datapath.ljust(column) for datapath in carriers), "for"]).rstrip())
    for feature in FEATURES:
        fits = [TABLE[feature.name][datapath].fit for datapath in carriers]
        cells = [click.style(fit.value.ljust(column), fg=colours[fit]) for fit in fits]
        click.echo("  ".join([feature.name.ljust(width), *cells, feature.meaning]))
