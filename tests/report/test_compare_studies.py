"""Comparison of studies, point by point: the runs with other seeds are the samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.main import testbed as command
from testbed.errors import TestbedError
from testbed.studies.study_samples import compare_studies, study_samples

STUDY = """
[run]
cluster = "star-2"
workload = "pingpong"
mode = "sim"
settings = {{ count = 20, sizes = "64,1024" }}
[grid]
"link.delay" = {delays}
seed = [1, 2, 3]
"""


def run_study(place: Path, name: str, delays: list[str]) -> Path:
    (place / f"{name}.toml").write_text(STUDY.format(delays=delays))
    done = CliRunner().invoke(
        command, ["study", str(place / f"{name}.toml"), "--output", str(place / name), "--workers", "1"]
    )
    assert done.exit_code == 0, done.output
    return place / name


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_study(tmp_path_factory.mktemp("studies"), "before", ["10us", "1ms"])


def test_the_points_are_what_varies_and_the_seeds_are_samples(before: Path) -> None:
    samples = study_samples(before)
    p50 = {point: values for (point, measure), values in samples.values.items() if measure == "p50_ns"}
    assert len(p50) == 4, "two delays, two sizes"
    assert all(len(values) == 3 for values in p50.values())
    assert {dict(point)["link.delay"] for point in p50} == {"10us", "1ms"}
    assert samples.exact


def test_equal_studies_do_not_differ_and_a_slower_one_is_worse(before: Path, tmp_path: Path) -> None:
    same = CliRunner().invoke(command, ["compare", str(before), str(before), "--json"])
    assert same.exit_code == 0, same.output
    assert {measure["judgement"] for measure in json.loads(same.stdout)["measures"]} == {"no difference"}
    lines = (before / "points.jsonl").read_text().splitlines()
    (tmp_path / "study.json").write_text((before / "study.json").read_text())
    slower = [json.loads(line) for line in lines]
    for one in slower:
        one["rows"] = [{**row, "p50_ns": 2 * row["p50_ns"]} for row in one["rows"]]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(one) + "\n" for one in slower))
    worse = CliRunner().invoke(command, ["compare", str(before), str(tmp_path), "--measure", "p50"])
    assert worse.exit_code == 1, worse.output
    assert "4 worse" in worse.output


def test_points_without_figures_are_said(before: Path, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text((before / "study.json").read_text())
    with pytest.raises(TestbedError, match="no rows with a figure"):
        study_samples(tmp_path)
    (tmp_path / "points.jsonl").write_text((before / "points.jsonl").read_text().splitlines()[0] + "\n")
    comparison = compare_studies(before, tmp_path)
    assert f"5 points of {tmp_path} have no valid figures, and are left out" in comparison.notes


def test_a_study_and_a_run_are_not_compared(before: Path, tmp_path: Path) -> None:
    compared = CliRunner().invoke(command, ["compare", str(before), str(tmp_path)])
    assert compared.exit_code == 2
