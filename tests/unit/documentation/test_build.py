"""Build of the documentation without warnings: pages, links and generated parts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from testbed.cli.main import testbed as command_line

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.timeout(400)  # it is built beside other tests, at their idle time


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", source, target]
    return subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target: Path = tmp_path_factory.mktemp("site")
    completed = build(DOCS, target)
    assert completed.returncode == 0, completed.stderr
    return target


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")}
    pages = {page for page in pages if page.parts[0] not in ("generated", "_build")}
    assert {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")} >= pages
    assert len(pages) > 45


def test_every_link_of_a_page_to_the_site_resolves(site: Path) -> None:
    broken = []
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', page.read_text()):
            target = page.parent / link.partition("?")[0]
            if not target.exists():
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_generated_files_exist(site: Path) -> None:
    emp = (site / "protocols" / "emp.html").read_text()
    assert '<td colspan="16">destination</td>' in emp
    assert emp.count('<figure class="states"') == 2
    assert "queue_frames" in (site / "reference" / "impairments.html").read_text()
    assert "NIC lost" in (site / "reference" / "verdicts.html").read_text()
    assert "testbed.RunningCluster" in (site / "reference" / "python.html").read_text()


def options(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Yield (command, option) for a command and all its subcommands, and (command, "") for each command."""
    yield path, ""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from ((path, name) for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from options(subcommand, f"{path}-{name}")


def test_the_reference_has_every_command_with_every_option(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text()
    identifiers = set(re.findall(r' id="([^"]+)"', commands))
    expected = list(options(command_line, "testbed"))
    assert len(expected) > 200
    missing = [
        f"{path} {option}"
        for path, option in expected
        if (f"cmdoption-{path}-{option[2:]}" if option else path) not in identifiers
    ]
    assert missing == []


def test_a_link_to_a_missing_page_or_heading_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("conf.py", "_static"):
        (shutil.copytree if name == "_static" else shutil.copy)(DOCS / name, tmp_path / "docs" / name)
    (tmp_path / "ci").symlink_to(ROOT / "ci")
    (tmp_path / "docs" / "index.md").write_text(
        "# A page\n\n[gone](nowhere.md)\n\n[gone](#no-such-heading)\n\n[gone](other.md#not-there)\n"
    )
    (tmp_path / "docs" / "other.md").write_text("---\norphan: true\n---\n\n# Another\n")
    completed = build(tmp_path / "docs", tmp_path / "site")
    assert completed.returncode != 0
    assert "nowhere.md" in completed.stderr
    assert "no-such-heading" in completed.stderr
    assert "not-there" in completed.stderr
    assert completed.stderr.count("WARNING") == 3


def test_readme_links_to_existing_files() -> None:
    links = re.findall(r"\]\(((?!http)[^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
