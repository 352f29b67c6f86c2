"""Names of clusters as arguments, and descriptions that are renamed while their cluster is up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster.records.state import Store
from testbed.cluster.startup import former_names
from testbed.spec.loader import load
from testbed.spec.resolver import resolve

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

STAR = '[generate]\nshape = "star"\nnodes = 2\n'


def command(*arguments: str) -> tuple[int, str, str]:
    """Run ``testbed`` with these arguments; return its exit code, standard output and standard error."""
    program = [sys.executable, "-c", "from testbed.cli.main import main; main()", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    return done.returncode, done.stdout, done.stderr


def test_down_status_and_heal_accept_the_cluster_as_a_positional_argument() -> None:
    with Cluster.star(2, name="one").up(keep=True), Cluster.star(2, name="two").up(keep=True) as two:
        two.inject("n1", loss="5%")
        assert command("heal")[0] == 4, "two clusters are up and none is named"
        assert command("heal", "one")[:2] == (0, "nothing was injected\n")
        assert command("heal", "two", "1")[:2] == (0, "healed 1: loss 5% on n1\n")
        code, report, _ = command("status", "two")
        assert (code, report.split()[0]) == (0, "two")
        assert "one (" not in report
        assert command("status", "two", "--name", "one")[0] == 2
        assert command("heal", "two", "first")[0] == 2
        assert command("down", "two")[:2] == (0, "two is down\n")
        assert Store().names() == ["one"]


def test_up_after_a_rename_reports_the_cluster_of_the_former_name(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f'name = "before"\n{STAR}')
    try:
        assert command("up", str(path))[0] == 0
        assert command("up", str(path), "--name", "copy")[0] == 0
        path.write_text(f'name = "after"\n{STAR}')
        code, _, reported = command("up", str(path))
        assert code == 0
        assert "warning: before is still up" in reported
        assert "'testbed down before'" in reported
        assert "copy" not in reported, "a name given with --name is no former name of the file"
        code, _, reported = command("up", str(path), "--replace")
        assert code == 0
        assert "before, the cluster's former name, is down\n" in reported
        assert Store().names() == ["after", "copy"]
        layout = resolve(load(str(path)).description)
        assert former_names(Store(), layout, str(path)) == []
    finally:
        command("down", "--all")


def test_a_capture_of_one_link_contains_no_fates_of_others(tmp_path: Path) -> None:
    with Cluster.star(3, name="captured").up() as cluster, cluster.inject("n3", corrupt="100%", delay="1ms"):
        with cluster.inject("n1", delay="1ms"), cluster.capture("n1", tmp_path / "n1.pcapng") as capture:
            cluster["n1"].run(["ping", "-c1", "-W1", "n2"])
            cluster["n3"].run(["ping", "-c3", "-i0.1", "-W1", "n2"], check=False)
        assert sum(capture.result.frames.values()) > 0
        assert capture.result.unknown_fates == 0
        assert capture.result.complete
