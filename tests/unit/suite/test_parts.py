"""Parts of the test suite, and the memory limit of its processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from protocols.core.compiled_build import build

TESTS = Path(__file__).parents[2]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Return the folder of a small suite with this suite's conftest and a memory limit of one megabyte."""
    folder = tmp_path / "tests"
    (folder / "live").mkdir(parents=True)
    (folder / "unit").mkdir()
    for name in ("__init__.py", "conftest.py", "requirements.py", "parts.py"):
        shutil.copy(TESTS / name, folder)
    rules = (folder / "parts.py").read_text()
    assert "MAX_MEMORY = 10**9\n" in rules
    (folder / "parts.py").write_text(rules.replace("10**9", "10**6"))
    (folder / "live" / "test_wires.py").write_text("def test_wire(): pass\n")
    (folder / "live" / "test_rates.py").write_text(
        "import pytest\npytestmark = pytest.mark.alone\ndef test_rate(): pass\n"
    )
    (folder / "semantics").mkdir()
    (folder / "semantics" / "test_meaning.py").write_text("def test_meaning(): pass\n")
    (folder / "unit" / "test_sums.py").write_text("def test_sum(): pass\n")
    (folder / "unit" / "test_times.py").write_text(
        "import pytest\n@pytest.mark.alone\ndef test_time(): pass\ndef test_other(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return tmp_path


WHERE = r"(tests/\S+::\S+|the end of the tests)"
"""Where a process, of the tests or the one that distributes them, has taken most memory."""


def run(suite: Path, *arguments: str, part: str, strict: bool = False, third: str = "") -> tuple[int, str, str]:
    """Run a part of the suite; return exit code, output and summary. third: seed that selects a third of the files."""
    summary = suite / "summary"
    environment = {
        **os.environ, "TESTBED_PART": part, "TESTBED_SUMMARY": str(summary), "TESTBED_STRICT": "1" * strict,
        "TESTBED_THIRD": third,
    }  # fmt: skip
    environment.pop("TESTBED_LONG", None)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:testbed", *arguments]
    completed = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)
    return completed.returncode, completed.stdout, summary.read_text() if summary.exists() else ""


def test_each_test_is_in_one_part(suite: Path) -> None:
    tests_of_part = {
        "beside": ("test_sum", "test_other"),
        "live": ("test_wire",),
        "alone": ("test_time", "test_rate", "test_meaning"),
    }
    outputs = {part: run(suite, part=part)[1] for part in tests_of_part}
    for part, output in outputs.items():
        for first, names in tests_of_part.items():
            assert [f"::{name} PASSED" in output for name in names] == [part == first] * len(names)
    summary = (suite / "summary").read_text()
    for head in ("beside each other: 2 passed", "live, beside each other: 1 passed", "alone: 3 passed"):
        assert f"{build()}, {head};" in summary


def names_in(output: str) -> set[str]:
    return {line.split("::")[0] for line in output.splitlines() if " PASSED" in line and "/sim/" in line}


def test_a_third_of_the_files_drawn_by_a_seed_is_interpreted_if_all_run_compiled(suite: Path) -> None:
    (suite / "tests" / "sim").mkdir()
    for number in range(28):
        (suite / "tests" / "sim" / f"test_run{number}.py").write_text("def test_run(): pass\ndef test_again(): pass\n")
    outputs = [run(suite, part="beside", third=third)[1] for third in ("1", "1", "2")]
    third, repeated, different = (names_in(output) for output in outputs)
    assert 7 <= len(third) <= 10, "a third of 31 files, 28 of which are in this part"
    assert third == repeated != different
    assert outputs[0].count("::test_again PASSED") == len(third), "a file is drawn as a whole"
    for output in outputs:
        assert output.count("::test_sum PASSED") == 1, "all unit tests are interpreted"
    assert "third: TESTBED_THIRD=2" in outputs[2]


def test_all_tests_that_compiled_code_does_not_permit_are_interpreted(suite: Path) -> None:
    (suite / "tests" / "sim").mkdir()
    for number in range(20):
        (suite / "tests" / "sim" / f"test_run{number}.py").write_text(
            'import pytest\n@pytest.mark.requires("interpreted")\ndef test_patch(): pass\ndef test_run(): pass\n'
        )
    _, output, _ = run(suite, part="beside", third="1")
    assert output.count("::test_patch ") == 20, "the compiled build skips them"
    assert 5 <= output.count("::test_run PASSED") <= 8


def test_a_requested_file_of_the_other_part_is_deselected(suite: Path) -> None:
    code, output, _ = run(suite, "tests/live/test_wires.py", part="beside")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "1 deselected" in output


def test_exceeding_the_memory_limit_fails_a_strict_run_also_in_several_processes(suite: Path) -> None:
    code, output, _ = run(suite, part="beside")
    assert code == pytest.ExitCode.OK
    assert re.search(rf"more than 1, by {WHERE}: what does it keep\?", output)
    code, _, summary = run(suite, "--numprocesses=2", part="beside", strict=True)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert re.search(rf"more than 1 \(strict: fails\), by {WHERE}: what", summary)
    assert summary.count(f"{build()}, beside each other: ") == 2, "one line for each run, and none for its processes"
