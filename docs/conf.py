"""Configuration of the documentation's build: `ci/docs`, or ``sphinx-build docs docs/_build/html``."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version as version_of
from pathlib import Path

import click
from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "testbed"
author = "the testbed developers"
release = version = version_of("netns-testbed")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build", "generated"]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # they would make dashes of options
default_role = "code"  # of docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_show_copyright = False
html_theme = "furo"
html_title = "testbed"
html_static_path = ["_static"]
html_css_files = ["frames.css"]
html_theme_options = {"source_directory": "docs/"}


def setup(app: Sphinx) -> None:
    """Generate what is generated, in a process of its own, and see to it that Scapy stays out of this one."""
    subprocess.run([sys.executable, "-m", "reference", HERE / "generated"], cwd=HERE.parent / "ci", check=True)
    app.connect("sphinx-click-process-description", keep_columns)
    app.connect("sphinx-click-process-epilog", keep_columns)
    app.connect("build-finished", refuse_scapy)


def keep_columns(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Make literal blocks of a help text's preformatted parts, which sphinx-click makes line blocks."""
    kept: list[str] = []
    for line in lines:
        preformatted = line.startswith("| ")
        if preformatted and not (kept and kept[-1].startswith("    ")):
            kept += ["::", ""]
        kept.append(f"    {line[2:]}" if preformatted else line)
    lines[:] = kept


def refuse_scapy(_app: Sphinx, _error: Exception | None) -> None:
    """Raise RuntimeError if Scapy (GPL-2.0-only) was imported beside requests (Apache-2.0), which Sphinx imports."""
    if "scapy" in sys.modules:
        raise RuntimeError("Scapy was imported by the documentation's build: generate that part in ci/reference")
