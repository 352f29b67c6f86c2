"""The README and the tutorial are executed page by page, each with the files of the earlier pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.live.documentation_pages import DOCS, ROOT, follow, write_files

pytestmark = [
    pytest.mark.requires("root", "ping"),
    pytest.mark.usefixtures("machine"),
]

FOLDER = DOCS / "tutorial"
ORDER = re.findall(r"^([\w-]+)$", (FOLDER / "index.md").read_text().partition("```{toctree}")[2], re.MULTILINE)


def test_the_readme_is_so(tmp_path: Path) -> None:
    assert follow(ROOT / "README.md", tmp_path) >= 8


@pytest.mark.parametrize("name", ["index", *ORDER])
def test_a_page_of_the_tutorial_runs_as_written(name: str, tmp_path: Path) -> None:
    for before in ORDER[: ORDER.index(name)] if name in ORDER else ():
        write_files(FOLDER / f"{before}.md", tmp_path)
    assert follow(FOLDER / f"{name}.md", tmp_path) >= 1


def test_every_page_has_its_place_in_the_order() -> None:
    assert sorted(["index", *ORDER]) == sorted(page.stem for page in FOLDER.glob("*.md"))
