"""Run folders with damaged files: every command reports the file and position of the damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.live.file_damage import damage_file, run_command

LONG = bool(os.environ.get("TESTBED_LONG"))
SEEDS = range(500 if LONG else 2)

COMMANDS = (
    ("report", "{}", "-o", "{}.html"),
    ("check-run", "{}"),
    ("compare", "{}", "{}"),
    ("replay", "{}", "--mode", "sim"),
    ("decode", "{}", "--messages"),
    ("runs", "{}"),
    ("runs", "{}", "--json"),
    ("events", "{}"),
)


@pytest.fixture(scope="module")
def intact_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a simulated run with a history and a capture."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ("--mode", "sim", "--check", "--history", "--capture", "--set", "messages=10", "--output", str(folder))
    assert run_command("run", "star-4", "random", *options).code == 0
    return folder


@pytest.fixture
def run(intact_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact_run, tmp_path / "run"))


def change_line(path: Path, number: int, change: Callable[[dict[str, object]], object]) -> None:
    lines = path.read_text().splitlines()
    document = json.loads(lines[number - 1])
    change(document)
    lines[number - 1] = json.dumps(document)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("command", "key"), [("report", "n"), ("check-run", "n"), ("check-run", "peer")])
def test_a_malformed_event_is_reported_with_file_and_line(run: Path, command: str, key: str) -> None:
    history = run / "history" / "n1.jsonl"
    change_line(history, 1, lambda event: event.update({key: [1]}))
    result = run_command(command, str(run), *(("-o", f"{run}.html") if command == "report" else ()))
    assert (result.code, result.is_clean_exit) == (1, True), result
    assert f"{history}, line 1 cannot be understood" in result.text


def test_escape_sequences_in_rows_are_printed_escaped(run: Path) -> None:
    change_line(run / "rows.jsonl", 1, lambda row: row.update(node="\x1b[2J\x9b31m\u202e[/red]"))
    result = run_command("runs", str(run))
    assert (result.code, result.is_clean_exit) == (0, True), result
    assert "\\x1b[2J\\x9b31m\\u202e[/red]" in result.text


def test_escape_sequences_in_json_output_are_escaped_without_changing_the_value(run: Path) -> None:
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**document, "command": "\x1b[2J\x9b"}))
    result = run_command("runs", str(run), "--json")
    assert result.is_clean_exit
    assert "\x9b" not in result.text
    assert json.loads(result.text)["runs"][0]["asked"]["command"] == "\x1b[2J\x9b"


@pytest.mark.timeout(7_200 if LONG else 120)
def test_no_command_ends_with_a_traceback_on_damaged_files(intact_run: Path, tmp_path: Path) -> None:
    seeds = [Random().randrange(1 << 32) for _ in SEEDS] if LONG else SEEDS
    for seed in seeds:
        random = Random(seed)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        run = Path(shutil.copytree(intact_run, tmp_path / "run"))
        file = random.choice(sorted(path for path in run.rglob("*") if path.is_file()))
        kind = damage_file(file, random)
        for command in COMMANDS:
            result = run_command(*(part.format(run) for part in command))
            assert result.is_clean_exit, (seed, file.name, kind, command, result)


# Devices and pipes instead of files


def test_a_missing_capture_is_reported(tmp_path: Path) -> None:
    result = run_command("decode", str(tmp_path / "none"))
    assert (result.code, result.text) == (4, f"testbed: there is no file {tmp_path / 'none'}\n")


def test_a_description_can_be_standard_input_but_not_a_named_pipe(tmp_path: Path, intact_run: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    result = run_command("validate", str(pipe), seconds=20)
    assert (result.code, result.is_clean_exit) == (2, True), result
    assert "expected a regular file" in result.text
    with (intact_run / "cluster.toml").open("rb") as description:
        piped = subprocess.run(
            ["testbed", "validate", "/dev/stdin"], stdin=description, capture_output=True, text=True, check=False
        )
    assert piped.returncode == 0, piped


def test_a_device_as_workload_is_rejected() -> None:
    result = run_command("run", "star-4", "/dev/zero", "--mode", "sim", seconds=20)
    assert (result.code, result.is_clean_exit) == (1, True), result
    assert "/dev/zero is not a regular file" in result.text
