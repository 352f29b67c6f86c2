"""A swarm as a study: the cases of `testbed protocol check`, and a command that repeats each failed one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.main import testbed as command
from testbed.controller.conformance.suite import State, check
from testbed.controller.engines import ProcessEngine, SerialEngine
from testbed.errors import DescriptionError
from testbed.studies.study_file import parse
from testbed.studies.study_folder import new_folder
from testbed.studies.study_runs import run_study
from tests.sim.package_mutants import MUTANTS
from tests.sim.written_packages import copy_template, on_path, write_template

SWARM = """
[swarm]
protocols = [{protocols}]
cases = {cases}
seed = 100
cases_per_point = {per_point}
"""


def test_each_case_is_in_one_point_and_passes_on_every_engine(tmp_path: Path) -> None:
    study = parse(SWARM.format(protocols="'emp', 'ssam'", cases=5, per_point=2), "swarm")
    assert [tuple(point.values()) for point in study.points] == [
        ("emp", 100, 2), ("ssam", 100, 2), ("emp", 102, 2), ("ssam", 102, 2), ("emp", 104, 1), ("ssam", 104, 1),
    ]  # fmt: skip
    rows = []
    for engine in (SerialEngine(), ProcessEngine(2)):
        outcomes = run_study(study, new_folder(tmp_path / str(engine.width), study), engine)
        assert {outcome.verdict for outcome in outcomes.values()} == {"trusted"}
        rows.append((tmp_path / str(engine.width) / "rows.jsonl").read_text())
    assert rows[0] == rows[1]
    assert json.loads(rows[0].splitlines()[4]) == {
        "point": 4, "swarm": "emp", "first_seed": 104, "cases": 1, "failed": 0,
    }  # fmt: skip


def test_a_failed_case_is_reduced_and_the_printed_command_repeats_it(tmp_path: Path) -> None:
    (mutant,) = [candidate for candidate in MUTANTS if candidate.check == "fates"]
    folder = copy_template(write_template("parcel", tmp_path / "written"), "mutans", tmp_path)
    mutant.apply(folder / "mutans")
    (tmp_path / "swarm.toml").write_text(SWARM.format(protocols="'mutans'", cases=8, per_point=4))
    with on_path(folder):
        result = CliRunner().invoke(
            command, ["study", str(tmp_path / "swarm.toml"), "--workers", "1", "--output", str(tmp_path / "out")]
        )
        assert result.exit_code == 10, result.output
        rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
        cases = [row for row in rows if "command" in row]
        assert sum(row.get("failed", 0) for row in rows) == len(cases) > 0
        assert sum(row.get("cases", 0) for row in rows) == 8
        for case in cases[:3]:
            assert case["reduced"].startswith("Case(")
            assert case["command"] == f"testbed protocol check mutans --only swarm --case {case['seed']}"
            assert case["command"] in result.output
            assert check("mutans", "swarm", case=str(case["seed"])).state is State.FAILED


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("[swarm]\ncases = 5\n", ["swarm.protocols", "a list of one protocol or more"]),
        ("[swarm]\nprotocols = ['epm', 'tcp']\ncases = 0\n", ["did you mean 'emp'?", "'tcp'", "swarm.cases"]),
        ("[swarm]\nprotocols = ['emp']\ncasses = 5\n", ["did you mean 'cases'?"]),
        ("[swarm]\nprotocols = ['emp']\ncases = 5\n[run]\ncluster = 'star-2'\n", ["together with [swarm]"]),
        ("[swarm]\nprotocols = ['emp']\ncases = 9_000_000\ncases_per_point = 1\n", ["at most 1,000,000"]),
        ("swarm = 5\n", ["a table"]),
    ],
)
def test_an_invalid_swarm_file_is_rejected_with_its_errors(text: str, sentences: list[str]) -> None:
    with pytest.raises(DescriptionError) as raised:
        parse(text, "swarm.toml")
    assert all(sentence in str(raised.value) for sentence in sentences), raised.value
