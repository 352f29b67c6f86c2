"""Conversion of a layout to a Graphviz graph, which ``dot -Tsvg`` draws."""

from __future__ import annotations

import json

from testbed.spec.kinds import ETHERNET
from testbed.spec.layout import Impairment, Layout
from testbed.spec.losses import format_gemodel
from testbed.spec.units import format_duration, format_probability, format_rate, format_size


def to_dot(layout: Layout) -> str:
    """Return the graph in DOT: nodes as boxes with their address, switches as ellipses, links with the names of their NICs
    or numbers of their ports at both ends, and with their impairments."""
    lines = [
        f"graph {_quote(layout.name)} {{",
        "  node [fontname=sans];",
        "  edge [fontname=sans, fontsize=9];",
    ]
    for node in layout.nodes:
        label = f"{node.name}\n{node.address}" if node.address else node.name
        lines.append(f"  {_quote(node.name)} [shape=box, label={_quote(label)}];")
    for switch in layout.switches:
        label = switch.name if switch.kind == ETHERNET.name else f"{switch.name}\n{switch.kind}"
        lines.append(f"  {_quote(switch.name)} [shape=ellipse, label={_quote(label)}];")
    for link in layout.links:
        attributes = [f"taillabel={_quote(link.a.port)}", f"headlabel={_quote(link.b.port)}"]
        label = _label(link.forward, link.backward)
        if label:
            attributes.append(f"label={_quote(label)}")
        if link.datapath == "direct":
            attributes.append("style=bold")
        lines.append(f"  {_quote(link.a.owner)} -- {_quote(link.b.owner)} [{', '.join(attributes)}];")
    return "\n".join([*lines, "}", ""])


def _quote(text: str) -> str:
    # For names, addresses and quantities, DOT's strings have the same escapes as JSON's.
    return json.dumps(text, ensure_ascii=False)


def _label(forward: Impairment, backward: Impairment) -> str:
    if forward == backward:
        return describe_impairment(forward)
    lines = [("→", describe_impairment(forward)), ("←", describe_impairment(backward))]
    return "\n".join(f"{arrow} {text}" for arrow, text in lines if text)


def describe_impairment(impairment: Impairment) -> str:
    """Describe the impairments of one direction briefly: ``delay 10us, loss 1%``; empty if there are none."""
    parts = []
    if impairment.delay:
        parts.append(f"delay {format_duration(impairment.delay)}")
    if impairment.jitter:
        parts.append(f"jitter {format_duration(impairment.jitter)} {impairment.distribution}".rstrip())
    if impairment.rate:
        parts.append(f"rate {format_rate(impairment.rate)}")
    if impairment.rate_trace:
        parts.append(f"rate from {impairment.rate_trace}")
    if impairment.queue:
        parts.append(f"queue {format_size(impairment.queue)}")
    for key in ("loss", "corrupt", "duplicate", "reorder"):
        if getattr(impairment, key):
            parts.append(f"{key} {format_probability(getattr(impairment, key))}")
    if impairment.gemodel:
        parts.append(f"gemodel {format_gemodel(impairment.gemodel)}")
    if impairment.loss_pattern:
        parts.append(f"loses {impairment.loss_pattern}")
    if impairment.rules:
        parts.append("1 rule" if len(impairment.rules) == 1 else f"{len(impairment.rules)} rules")
    return ", ".join(parts)
