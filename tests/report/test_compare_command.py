"""testbed compare in CI: exit codes for regressions, and errors for unusable input."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from testbed.cli.documents import schema_of
from testbed.cli.main import testbed as command
from tests.report.synthetic_runs import ping_pong_rows, verdict, write_run


def run_compare(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, ["compare", *map(str, arguments)])


def noisy(factor: float, seed: int, repeats: int = 10) -> list[dict[str, object]]:
    rng = random.Random(seed)
    return [
        {"repeat": repeat, "node": "n1", "size_bytes": size, "p50_ns": round(factor * rng.gauss(20_000, 300)),
         "bandwidth_bit_s": rng.gauss(9e8, 9e6) / factor}
        for repeat in range(1, repeats + 1) for size in (4, 1024)
    ]  # fmt: skip


def test_equal_and_equivalent_runs_do_not_differ(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", noisy(1, 1), repeat=10), write_run(tmp_path / "b", noisy(1, 2), repeat=10)
    for run in (first, second):
        comparison = run_compare(first, run)
        assert comparison.exit_code == 0, comparison.output
        assert "4 no difference" in comparison.output


def test_a_regression_is_exit_code_1_and_an_improvement_is_0(tmp_path: Path) -> None:
    good_run, bad_run = (
        write_run(tmp_path / "a", noisy(1, 1), repeat=10),
        write_run(tmp_path / "b", noisy(1.2, 2), repeat=10),
    )
    comparison = run_compare(good_run, bad_run)
    assert comparison.exit_code == 1
    assert "4 worse" in comparison.output  # latency is higher, bandwidth is lower
    comparison = run_compare(bad_run, good_run)
    assert comparison.exit_code == 0
    assert "4 better" in comparison.output


def test_options_set_the_threshold_and_the_measures(tmp_path: Path) -> None:
    good_run, bad_run = (
        write_run(tmp_path / "a", noisy(1, 1), repeat=10),
        write_run(tmp_path / "b", noisy(1.2, 2), repeat=10),
    )
    assert run_compare(good_run, bad_run, "--threshold", "30%").exit_code == 0
    comparison = run_compare(good_run, bad_run, "--measure", "p50")
    assert comparison.exit_code == 1
    assert "2 worse;" in comparison.output


def test_too_few_repetitions_are_undecided_and_the_required_number_is_reported(tmp_path: Path) -> None:
    good_run = write_run(tmp_path / "a", noisy(1, 1, 2), repeat=2)
    bad_run = write_run(tmp_path / "b", noisy(1.5, 2, 2), repeat=2)
    comparison = run_compare(good_run, bad_run)
    assert comparison.exit_code == 0
    assert "4 undecided" in comparison.output
    assert "run --repeat 5" in comparison.output


def test_a_large_ratio_whose_interval_includes_one_is_undecided(tmp_path: Path) -> None:
    ours, theirs = (
        write_run(
            tmp_path / name,
            [{"node": "n1", "trip_ns": value, "repeat": at} for at, value in enumerate(values)],
            repeat=4,
        )
        for name, values in (("a", [100, 101, 130, 99]), ("b", [150, 160, 101, 155]))
    )
    comparison = run_compare(ours, theirs)
    assert comparison.exit_code == 0
    assert "undecided" in comparison.output
    assert "the true ratio may be 1" in comparison.output


def test_what_one_side_alone_has_measured_is_noted(tmp_path: Path) -> None:
    ours = write_run(
        tmp_path / "a", [{"size_bytes": 4, "p50_ns": 10, "rate_bit_s": 5}, {"size_bytes": 8, "p50_ns": 10}]
    )
    theirs = write_run(tmp_path / "b", [{"size_bytes": 4, "p50_ns": 10}])
    output = " ".join(run_compare(ours, theirs).output.split())
    assert "1 point was measured on one side only: left out" in output
    assert "measured on one side only, and left out: rate_bit_s" in output


def test_simulations_are_compared_exactly_only_with_equal_seeds(tmp_path: Path) -> None:
    first, slower = (
        write_run(tmp_path / name, ping_pong_rows(factor), mode="sim") for name, factor in (("a", 1), ("b", 1.1))
    )
    assert run_compare(first, slower).exit_code == 1
    assert run_compare(first, write_run(tmp_path / "c", ping_pong_rows(1.1), mode="sim", seed=5)).exit_code == 0


def test_the_runs_in_a_directory_are_samples_without_invalid_and_unfinished_ones(tmp_path: Path) -> None:
    for number in range(6):
        write_run(tmp_path / "before" / f"run-{number}", noisy(1, number, 1), seed=number)
        write_run(tmp_path / "after" / f"run-{number}", noisy(1.3, 50 + number, 1), seed=number)
    write_run(tmp_path / "after" / "bad", noisy(0.1, 9, 1), result={"status": "done", "verdict": verdict("invalid")})
    write_run(tmp_path / "after" / "killed", noisy(0.1, 9, 1), result={})
    comparison = run_compare(tmp_path / "before", tmp_path / "after")
    assert comparison.exit_code == 1
    assert "bad is invalid, and its figures are not used" in comparison.output
    assert "killed did not complete (unfinished), and is left out" in comparison.output
    assert "6 and 6" in comparison.output


@pytest.mark.parametrize(("key", "first", "second"), [("protocol", "emp", "via"), ("mode", "live", "dilated")])
def test_runs_of_several_kinds_in_a_directory_are_not_mixed(tmp_path: Path, key: str, first: str, second: str) -> None:
    write_run(tmp_path / "series" / "first", noisy(1, 1), **{key: first})
    write_run(tmp_path / "series" / "second", noisy(1, 2), **{key: second})
    comparison = run_compare(tmp_path / "series", tmp_path / "series" / "first")
    assert comparison.exit_code == 2
    assert "differ in workload, settings, protocol or mode" in comparison.output


def test_all_rows_of_a_repetition_are_one_sample(tmp_path: Path) -> None:
    """A thousand messages of one run are one sample: they do not show the variation between runs."""
    first, second = (
        write_run(tmp_path / name, [{"node": "n1", "trip_ns": base + number % 7} for number in range(1000)])
        for name, base in (("a", 1000), ("b", 2000))
    )
    comparison = run_compare(first, second)
    assert comparison.exit_code == 0
    assert "1 and 1" in comparison.output
    assert "undecided" in comparison.output


def test_differing_options_are_named(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", ping_pong_rows())
    second = write_run(tmp_path / "b", ping_pong_rows(), protocol="tcp", settings={"count": 7})
    comparison = run_compare(first, second)
    assert comparison.exit_code == 0
    assert "differs: protocol (emp, tcp)" in comparison.output
    assert "differs: setting count (1000, 7)" in comparison.output


def test_the_json_output_matches_its_schema(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [{"node": "n1", "asked_again": 0, "p50_ns": 5}], mode="sim")
    second = write_run(tmp_path / "b", [{"node": "n1", "asked_again": 3, "p50_ns": 5}], mode="sim")
    comparison = run_compare(first, second, "--json")
    assert comparison.exit_code == 1
    document = json.loads(comparison.stdout)
    jsonschema.validate(document, dict(schema_of("compare")))
    assert [(measure["measure"], measure["ratio"], measure["judgement"]) for measure in document["measures"]] == [
        ("asked_again", None, "worse"), ("p50_ns", 1, "no difference"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("second_run", "sentence"),
    [
        ({"workload": "sort"}, "is of workload pingpong, .* of sort: different workloads cannot be compared"),
        ({"rows": []}, "has no rows with a measure"),
        ({"rows": ping_pong_rows(sizes=[9])}, "have no measure in common"),
        ({"result": {}}, r"did not complete \(unfinished\)"),
        ({"result": {"status": "failed", "error": "x"}}, r"did not complete \(failed\)"),
        ({"result": {"status": "done", "verdict": verdict("invalid")}}, "is invalid, and its figures are not used"),
    ],
)
def test_incomparable_runs_are_exit_code_2_and_an_error_of_one_line(tmp_path: Path, second_run, sentence: str) -> None:
    first = write_run(tmp_path / "a", ping_pong_rows())
    second = write_run(tmp_path / "b", **{"rows": ping_pong_rows(), **second_run})
    comparison = run_compare(first, second)
    assert comparison.exit_code == 2
    assert len(comparison.stderr.splitlines()) == 1
    assert_error(comparison, sentence)


def test_missing_damaged_or_newer_runs_are_exit_code_2(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", ping_pong_rows())
    assert_error(run_compare(first, tmp_path / "nowhere"), "is not the folder of a run")
    for text, sentence in (("{", "damaged"), ('{"format": 99}', "newer version of testbed")):
        second = write_run(tmp_path / f"b{len(text)}", ping_pong_rows())
        (second / "run.json").write_text(text)
        assert_error(run_compare(first, second), sentence)
    (write_run(tmp_path / "c", ping_pong_rows()) / "rows.jsonl").unlink()
    assert_error(run_compare(first, tmp_path / "c"), r"has no rows\.jsonl")


@pytest.mark.parametrize(
    "arguments", [["a"], ["a", "a", "a"], ["a", "a", "--against", "paper"], ["a", "a", "--threshold", "5x"],
                  ["a", "a", "--measure", "p51"], ["a", "--against", "paper", "--measure", "p50"]],
)  # fmt: skip
def test_a_usage_error_is_exit_code_2(tmp_path: Path, arguments: Sequence[str]) -> None:
    write_run(tmp_path / "a", ping_pong_rows())
    assert run_compare(*[tmp_path / "a" if argument == "a" else argument for argument in arguments]).exit_code == 2


def test_a_run_compared_with_its_protocols_paper(tmp_path: Path) -> None:
    slow_run = write_run(tmp_path / "slow", ping_pong_rows(1.5, sizes=[4, 1500]), mode="sim")
    comparison = run_compare(slow_run, "--against", "paper")
    assert comparison.exit_code == 1
    assert "latency, 4 B" in comparison.output
    assert "23 us" in comparison.output
    equal_run = write_run(tmp_path / "good", [{"size_bytes": 4, "p50_ns": 22_900}], mode="sim")
    assert run_compare(equal_run, "--against", "paper").exit_code == 0
    live = write_run(tmp_path / "live", [{"size_bytes": 4, "p50_ns": 99_000}])
    comparison = run_compare(live, "--against", "paper")
    assert (comparison.exit_code, "undecided" in comparison.output) == (0, True)


def test_the_output_of_reproduce_is_compared_with_the_papers_values(tmp_path: Path) -> None:
    row = {"system": "emp", "name": "latency, 4 B", "paper": 23, "ours": 30, "unit": "us", "kind": "predicted"}
    unmeasured_row = {**row, "name": "latency: TCP", "paper": 120, "ours": None, "kind": "paper"}
    file = tmp_path / "emp.json"

    def write(measured: float) -> None:
        document = {
            "kind": "reproduce",
            "systems": [{"paper": "a paper"}],
            "rows": [{**row, "ours": measured}, unmeasured_row],
        }
        file.write_text(json.dumps(document))

    write(30)
    assert run_compare(file, "--against", "paper").exit_code == 1
    write(22)
    assert run_compare(file, "--against", "paper").exit_code == 0
    file.write_text('{"kind": "run"}')
    assert_error(run_compare(file, "--against", "paper"), "is not a file of this version's 'testbed reproduce")


def test_a_missing_paper_or_row_is_explained(tmp_path: Path) -> None:
    assert_error(
        run_compare(write_run(tmp_path / "a", ping_pong_rows(), protocol="tcp"), "--against", "paper"),
        "tcp has no paper",
    )
    sort = write_run(tmp_path / "b", ping_pong_rows(), workload="sort", form="sort")
    assert_error(run_compare(sort, "--against", "paper"), "the paper has no value")


def assert_error(comparison: Result, sentence: str) -> None:
    import re

    assert comparison.exit_code == 2, comparison.output
    assert re.search(sentence, comparison.stderr), comparison.stderr
