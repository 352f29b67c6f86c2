"""State diagrams and tables, from the protocols' state tables."""

from __future__ import annotations

import subprocess
from importlib import import_module
from typing import Final

from protocols.core.peers import PEER
from protocols.core.states import StateTable

GRAPHVIZ: Final = "graphviz-pure"
"""Command of a port of Graphviz in the package index, which has the same output on every machine."""


def of_protocol(system: str) -> str:
    """Return a protocol's state machines, except that of peers, which several protocols share: see `peers`."""
    tables: tuple[StateTable, ...] = import_module(f"protocols.{system}.states").TABLES
    return "\n".join(_machine(table) for table in tables if table is not PEER)


def peers() -> str:
    """Return the state machine of peers that restart."""
    return _machine(PEER)


def _machine(machine: StateTable) -> str:
    return f"### {machine.name}\n\n{figure(machine)}\n{machine.format_markdown()}"


def figure(machine: StateTable) -> str:
    """Draw a machine as SVG within the page, in the colours of its text."""
    done = subprocess.run([GRAPHVIZ, "-Tsvg"], input=dot(machine), capture_output=True, text=True, check=True)
    picture = done.stdout[done.stdout.index("<svg") :].strip().replace('"black"', '"currentColor"')
    picture = picture.replace('"Arimo"', '"Arimo, Helvetica, Arial, sans-serif"')
    for layout_size, drawn_size in ((15, 13), (13, 11)):  # a reader's font may be wider than that of the layout
        picture = picture.replace(f'font-size="{layout_size}.00"', f'font-size="{drawn_size}"')
    return (
        f'```{{raw}} html\n<figure class="states" role="img" aria-label="State diagram of {machine.name}; the table below '
        f'it has its rows">\n{picture}\n</figure>\n```\n'
    )


def dot(machine: StateTable) -> str:
    """Format a machine as a Graphviz graph. Transitions from one state to another share an arrow with all their events."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in machine.rows:
        events = arrows.setdefault((row.state, row.next_state), [])
        if row.event not in events:
            events.append(row.event)
    lines = [
        "digraph { bgcolor=transparent; ranksep=0.7; node [shape=box, style=rounded, fontname=Arimo, fontsize=15];",
        "  edge [fontname=Arimo, fontsize=13, arrowsize=0.7];",
        "  begin [shape=point];",
        f'  begin -> "{machine.initial}";',
    ]
    for (state, next_state), labels in arrows.items():
        text = "".join(f"{label}\\l" for label in labels)
        lines.append(f'  "{state}" -> "{next_state}" [label="{text}"];')
    return "\n".join([*lines, "}\n"])
