"""Write the generated parts of the documentation: ``python -m reference FOLDER``, in ci/.

Sphinx's configuration runs it before each build, in a separate process, since it imports Scapy (GPL-2.0-only), and Sphinx
imports requests (Apache-2.0).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from reference import frame_figures, paper_tables, program_tables, schema_tables, state_diagrams

SYSTEMS: Final = ("emp", "am2", "ssam", "via", "openmx")

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "description": schema_tables.description,
    "impairments": schema_tables.impairments,
    "scenario": schema_tables.scenario,
    "machines": schema_tables.machines,
    "documents": schema_tables.documents,
    "topologies": program_tables.topologies,
    "workloads": program_tables.workloads,
    "thresholds": program_tables.thresholds,
    "exit-codes": program_tables.exit_codes,
    "licences": program_tables.licences,
    "rule-fields": program_tables.rule_fields,
    "pytest": program_tables.pytest_plugin,
    "python": program_tables.python_names,
    "states-peers": state_diagrams.peers,
    "papers": paper_tables.summary,
}


def main(folder: Path) -> None:
    """Write each part that has changed, and remove files of former parts."""
    pages = {name: page() for name, page in PAGES.items()}
    for system in SYSTEMS:
        pages[f"frames-{system}"] = frame_figures.of_protocol(system)
        pages[f"states-{system}"] = state_diagrams.of_protocol(system)
        pages[f"paper-{system}"] = paper_tables.of_protocol(system)
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        file = folder / f"{name}.md"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for file in folder.glob("*.md"):
        if file.stem not in pages:
            file.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
