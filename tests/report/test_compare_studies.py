"""Comparison of studies point by point, whose samples are the runs with different seeds."""

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


def run_study(folder: Path, name: str, delays: list[str]) -> Path:
    (folder / f"{name}.toml").write_text(STUDY.format(delays=delays))
    result = CliRunner().invoke(
        command, ["study", str(folder / f"{name}.toml"), "--output", str(folder / name), "--workers", "1"]
    )
    assert result.exit_code == 0, result.output
    return folder / name


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_study(tmp_path_factory.mktemp("studies"), "before", ["10us", "1ms"])


def test_the_points_are_the_varied_parameters_and_the_seeds_are_samples(before: Path) -> None:
    samples = study_samples(before)
    p50 = {point: values for (point, measure), values in samples.values.items() if measure == "p50_ns"}
    assert len(p50) == 4, "not two delays by two sizes"
    assert all(len(values) == 3 for values in p50.values())
    assert {dict(point)["link.delay"] for point in p50} == {"10us", "1ms"}
    assert samples.exact


def test_equal_studies_do_not_differ_and_a_slower_one_is_worse(before: Path, tmp_path: Path) -> None:
    comparison = CliRunner().invoke(command, ["compare", str(before), str(before), "--json"])
    assert comparison.exit_code == 0, comparison.output
    assert {measure["judgement"] for measure in json.loads(comparison.stdout)["measures"]} == {"no difference"}
    lines = (before / "points.jsonl").read_text().splitlines()
    (tmp_path / "study.json").write_text((before / "study.json").read_text())
    slower_points = [json.loads(line) for line in lines]
    for point in slower_points:
        point["rows"] = [{**row, "p50_ns": 2 * row["p50_ns"]} for row in point["rows"]]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(point) + "\n" for point in slower_points))
    slower_comparison = CliRunner().invoke(command, ["compare", str(before), str(tmp_path), "--measure", "p50"])
    assert slower_comparison.exit_code == 1, slower_comparison.output
    assert "4 worse" in slower_comparison.output


def test_points_without_figures_are_a_note(before: Path, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text((before / "study.json").read_text())
    with pytest.raises(TestbedError, match="no rows with a measure"):
        study_samples(tmp_path)
    (tmp_path / "points.jsonl").write_text((before / "points.jsonl").read_text().splitlines()[0] + "\n")
    comparison = compare_studies(before, tmp_path)
    assert f"5 points of {tmp_path} have no valid figures, and are left out" in comparison.notes


def test_a_study_cannot_be_compared_with_another_folder(before: Path, tmp_path: Path) -> None:
    for arguments in ([str(before), str(tmp_path)], [str(tmp_path), str(before)], [str(before), "--against", "paper"]):
        comparison = CliRunner().invoke(command, ["compare", *arguments])
        assert comparison.exit_code == 2
        assert f"{before} is the folder of a study, which can be compared only with another study" in comparison.output


def test_the_modes_of_a_studys_points_are_a_parameter_of_its_samples(before: Path, tmp_path: Path) -> None:
    document = json.loads((before / "study.json").read_text())
    for number, point in enumerate(document["study"]["points"]):
        point["mode"] = "live" if number % 2 else "dilated"
    (tmp_path / "study.json").write_text(json.dumps(document))
    (tmp_path / "points.jsonl").write_text((before / "points.jsonl").read_text())
    samples = study_samples(tmp_path)
    assert samples.parameter("mode") == "dilated, live"
    assert not samples.exact
