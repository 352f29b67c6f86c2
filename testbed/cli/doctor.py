"""Command ``doctor``: the machine's capabilities, their uses, and how to get missing ones; the list of protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import echo, json_option, print_json
from testbed.cli.table_layout import print_table
from testbed.packages import OfferedProtocol, offered_protocols

if TYPE_CHECKING:
    from testbed.kernel.capability_probe import Capability


@click.command("doctor")
@click.option("--datapaths", is_flag=True, help="Show what each datapath does exactly, approximately or not at all.")
@json_option
def doctor_command(datapaths: bool, as_json: bool) -> None:
    """Probe this machine's features in a scratch namespace, and print how to get the missing ones."""
    if datapaths:
        _show_datapaths(as_json)
        return
    from testbed.machines.machine_report import capabilities

    probed = capabilities()
    if as_json:
        document = {"capabilities": [asdict(capability) for capability in probed], "protocols": protocol_documents()}
        print_json("doctor", document)
        return
    print_capabilities(probed)
    echo()
    print_protocols()


def print_capabilities(capabilities: Sequence[Capability], indent: str = "") -> None:
    """Print a line for each capability, and one with the remedy for each that is missing."""
    width = max(len(capability.name) for capability in capabilities)
    for capability in capabilities:
        status = click.style("yes", fg="green") if capability.available else click.style("no ", fg="red")
        echo(f"{indent}{status}  {capability.name.ljust(width)}  {capability.detail}: {capability.meaning}")
        if capability.remedy and not capability.available:
            echo(f"{indent}     {''.ljust(width)}  to get it: {capability.remedy}")


def _show_datapaths(as_json: bool) -> None:
    """Print the table for the selection of datapaths."""
    from testbed.kernel.datapaths import FEATURES, LADDER, TABLE, Fit

    datapaths_of_links = [datapath for datapath in LADDER if datapath != "direct"]
    if as_json:
        features = [
            {
                "name": feature.name,
                "meaning": feature.meaning,
                "datapaths": {
                    datapath: {"fit": entry.fit.value, "reason": entry.reason, "bound": entry.bound}
                    for datapath in datapaths_of_links
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
    echo("  ".join([" " * width, *(datapath.ljust(column) for datapath in datapaths_of_links), "for"]).rstrip())
    for feature in FEATURES:
        fits = [TABLE[feature.name][datapath].fit for datapath in datapaths_of_links]
        cells = [click.style(fit.value.ljust(column), fg=colours[fit]) for fit in fits]
        echo("  ".join([feature.name.ljust(width), *cells, feature.meaning]))


def protocol_documents() -> list[dict[str, object]]:
    """Return the offered protocols as JSON objects."""
    return [asdict(protocol) for protocol in offered_protocols()]


def print_protocols() -> None:
    """Print the table of offered protocols."""
    rows = [
        [
            protocol.name,
            f"{protocol.package} {protocol.version}".rstrip(),
            _ethertype(protocol),
            *map(", ".join, (protocol.modes, protocol.nics, protocol.fabrics)),
        ]
        for protocol in offered_protocols()
    ]
    print_table(["protocol", "package", "EtherType", "modes", "NICs", "switches"], rows)


def _ethertype(protocol: OfferedProtocol) -> str:
    return f"0x{protocol.ethertype:04X}" if protocol.ethertype else "" if protocol.problem else "the kernel's own"
