"""Run folders are readable however the run ended; those of a newer format are rejected."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.runs.folders import RunFolder
from testbed.errors import ConflictError, NotFoundError, TestbedError, UnsupportedError
from testbed.kernel.children import in_child
from testbed.observe.recorded import FORMAT, read_run, runs
from testbed.runtime.journal import Journal, UnwritableError, read


def new_run_folder(path: Path) -> RunFolder:
    return RunFolder(path, {"cluster": "star-4", "began": 1.0}, "name = 'star-4'\n", {"name": "star-4"})


def test_a_run_folder_is_readable_during_and_after_the_run(tmp_path: Path) -> None:
    run_folder = new_run_folder(tmp_path / "run")
    run_folder.rows.write({"p50_ns": 7})
    run_folder.add_event("begins", number=1)
    assert read_run(tmp_path / "run").status == "unfinished"
    assert list(read_run(tmp_path / "run").rows()) == [{"p50_ns": 7}]
    run_folder.close({"status": "done"})
    run = read_run(tmp_path / "run")
    assert (run.status, run.parameters["cluster"]) == ("done", "star-4")
    assert [event["event"] for event in run.events()] == ["begins"]


def test_an_existing_path_is_rejected_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConflictError, match="a run needs a folder of its own"):
        new_run_folder(tmp_path)
    with pytest.raises(ConflictError):
        new_run_folder(tmp_path / "mine")
    assert os.listdir(tmp_path) == ["mine"]


def test_a_run_of_a_newer_format_is_rejected_and_does_not_hide_other_runs(tmp_path: Path) -> None:
    new_run_folder(tmp_path / "old").close({"status": "done"})
    new_run_folder(tmp_path / "new").close({"status": "done"})
    new_run_folder(tmp_path / "damaged")
    document = json.loads((tmp_path / "new" / "run.json").read_text())
    (tmp_path / "new" / "run.json").write_text(json.dumps({**document, "format": FORMAT + 1}))
    (tmp_path / "damaged" / "run.json").write_text("{")
    with pytest.raises(UnsupportedError, match=f"newer version of testbed .format {FORMAT + 1}"):
        read_run(tmp_path / "new")
    run_list, messages = runs(tmp_path)
    assert [run.folder.name for run in run_list] == ["old"]
    assert len(messages) == 2
    with pytest.raises(TestbedError, match="damaged"):
        read_run(tmp_path / "damaged")
    with pytest.raises(NotFoundError, match="not a run's folder"):
        read_run(tmp_path)
    assert runs(tmp_path / "nowhere") == ([], [])


def test_the_runs_of_a_series_are_listed_with_the_other_runs(tmp_path: Path) -> None:
    new_run_folder(tmp_path / "one").close({"status": "done"})
    new_run_folder(tmp_path / "series" / "emp-sim").close({"status": "done"})
    new_run_folder(tmp_path / "series" / "tcp-live").close({"status": "done"})
    new_run_folder(tmp_path / "one" / "copy").close({"status": "done"})  # a run's folder is no series
    run_list, messages = runs(tmp_path)
    assert sorted(str(run.folder.relative_to(tmp_path)) for run in run_list) == [
        "one",
        "series/emp-sim",
        "series/tcp-live",
    ]
    assert not messages


def test_repetitions_have_separate_folders_unless_there_is_only_one(tmp_path: Path) -> None:
    run_folder = new_run_folder(tmp_path / "run")
    assert run_folder.create_repetition(1, 1).logs == tmp_path / "run" / "logs"
    assert run_folder.create_repetition(2, 3).logs == tmp_path / "run" / "repeat-2" / "logs"
    assert [run_folder.create_repetition(1, 1).number, run_folder.create_repetition(2, 3).number] == [0, 2]


@given(st.lists(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.binary())))
def test_every_document_is_one_line_and_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "rows.jsonl"
    journal = Journal(path)
    for document in documents:
        journal.write(document)
    journal.close()
    expected = [json.loads(json.dumps(document, default=repr)) for document in documents]
    documents_read = list(read(path)) if documents else []
    assert [sorted(document) for document in documents_read] == [sorted(document) for document in expected]


def test_incomplete_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n[1]\nnothing\n{"b": 2}\n{"c": ')
    assert list(read(path)) == [{"a": 1}, {"b": 2}]
    assert list(read(tmp_path / "none")) == []


def test_concurrent_writers_do_not_interleave_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    journals = [Journal(path) for _ in range(4)]
    writers = [
        threading.Thread(target=lambda journal=journal: [journal.write({"text": "x" * 5_000}) for _ in range(50)])
        for journal in journals
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sum(len(row["text"]) for row in read(path)) == 4 * 50 * 5_000


def test_a_line_that_exceeds_the_space_is_removed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def write_until_full() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
        journal = Journal(path)
        try:
            while True:
                journal.write({"text": "x" * 100})
        except UnwritableError as error:
            return str(error)

    assert "File too large" in in_child(write_until_full)
    assert path.read_bytes().endswith(b"}\n")
    assert len(list(read(path))) == 8
    with pytest.raises(UnwritableError, match="No space left on device"):
        Journal(Path("/dev/full")).write({"a": 1})
