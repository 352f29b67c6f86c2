"""Execute every page of the documentation except the tutorial; run or parse every block."""

from __future__ import annotations

import configparser
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.live.documentation_pages import DOCS, ROOT, Block, blocks, follow, has_commands, pages

PAGES = [
    page for page in pages() if has_commands(page) and page.is_relative_to(DOCS) and page.parent.name != "tutorial"
]
UNEXECUTED = {"text", "ini", "sh", "yaml"}
"""Languages of blocks that are only parsed: output, parts of files, and commands that cannot run in a test."""


@pytest.mark.requires(
    "root", "tshark", "redis-server", "redis-benchmark", "postgresql", "ssh", "sshd", "openssl", "mpirun", "mpi4py"
)
@pytest.mark.usefixtures("machine")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).with_suffix("").as_posix())
def test_a_page_runs_as_written(page: Path, tmp_path: Path) -> None:
    assert follow(page, tmp_path) >= 1


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_a_page_can_be_parsed(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"console", "python", "toml", *UNEXECUTED}, block
        parse(block)


def parse(block: Block) -> None:
    """Parse a block's text; raise its parser's error."""
    match block.language:
        case "toml":
            tomllib.loads(block.text)
        case "ini":
            configparser.ConfigParser().read_string(block.text)
        case "yaml":
            assert yaml.safe_load(block.text)
        case "python":
            compile(block.text, "block", "exec")
        case "sh":
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
            for word in block.text.split():
                assert not word.startswith("ci/") or (ROOT / word).exists(), word
