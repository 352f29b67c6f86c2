"""Execute the README and the tutorial page by page, each with the files of the earlier pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed import Cluster
from tests.live.documentation_pages import DOCS, ROOT, follow, write_files
from tests.live.machine_state import eventually
from tests.live.machines_lab import lab

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.requires("root", "ping"),
    pytest.mark.usefixtures("machine"),
]

FOLDER = DOCS / "tutorial"
ORDER = re.findall(r"^([\w-]+)$", (FOLDER / "index.md").read_text().partition("```{toctree}")[2], re.MULTILINE)


def test_the_readme_runs_as_written(tmp_path: Path) -> None:
    assert follow(ROOT / "README.md", tmp_path) >= 8


MACHINES = "two-machines"
"""The page that runs on a controller's machine with two further machines."""
UNDERLAY = 'name = "underlay"\nnetwork = "192.168.7.0/24"\ngenerate = { shape = "star", nodes = 4 }\n'
HOST = """
Host {name}
    HostName {address}
    User root
    IdentityFile {key}
"""


@pytest.mark.parametrize("name", [name for name in ("index", *ORDER) if name != MACHINES])
def test_a_page_of_the_tutorial_runs_as_written(name: str, tmp_path: Path) -> None:
    for before in ORDER[: ORDER.index(name)] if name in ORDER else ():
        write_files(FOLDER / f"{before}.md", tmp_path)
    assert follow(FOLDER / f"{name}.md", tmp_path) >= 1


@pytest.mark.requires("ip", "ssh", "sshd")
def test_the_page_about_two_machines_runs_as_written(tmp_path: Path) -> None:
    with lab(tmp_path, Cluster.from_toml(UNDERLAY), names=("a", "b")) as machines:
        for before in ORDER[: ORDER.index(MACHINES)]:
            write_files(FOLDER / f"{before}.md", tmp_path)
        hosts = {"lab1": machines.address("a"), "lab2": machines.address("b")}
        key = machines.folder / "key"
        (machines.home / ".ssh/config").write_text(
            "".join(HOST.format(name=name, address=address, key=key) for name, address in hosts.items())
        )
        assert follow(FOLDER / f"{MACHINES}.md", tmp_path, machines.enter_desk()) >= 8
        for name in machines.names:
            eventually(lambda name=name: machines.programs(name) == [], f"no program is left on machine {name}")  # type: ignore[misc]
            assert machines.namespaces(name) == []


def test_the_table_of_contents_lists_every_page() -> None:
    assert sorted(["index", *ORDER]) == sorted(page.stem for page in FOLDER.glob("*.md"))
