"""Summary of a run's folder: messages of histories, faults of events, links of faults, missing data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import NotFoundError, UnsupportedError
from testbed.observe.report.deliveries import read_deliveries
from testbed.observe.report.run_events import repetitions
from testbed.observe.report.run_summary import summarize_run
from testbed.observe.report.samples import samples
from tests.report.synthetic_runs import SECOND, fault_events, ping_pong_rows, write_run

BEGINS = {"event": "repetition begins", "number": 1}


def history(folder: Path, **events: list[dict[str, object]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, node_events in events.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in node_events))
    return folder


def send(clock: int, n: int, peer: int, size: int, tag: int = 0) -> dict[str, object]:
    return {
        "clock_ns": clock,
        "what": "send",
        "n": n,
        "peer": peer,
        "context": 0,
        "tag": tag,
        "bytes": size,
        "digest": "",
    }


def receive(clock: int, n: int) -> dict[str, object]:
    return {"clock_ns": clock, "what": "receive", "n": n, "peer": -1, "context": 0, "tag": -1, "bytes": 9999}


def received_event(clock: int, n: int, peer: int, size: int, tag: int = 0) -> dict[str, object]:
    return {"clock_ns": clock, "what": "received", "n": n, "peer": peer, "context": 0, "tag": tag, "bytes": size}


def test_a_message_matches_the_earliest_receive_even_if_that_ends_later(tmp_path: Path) -> None:
    folder = history(
        tmp_path / "history",
        a=[send(10, 1, 1, 5000), send(11, 2, 1, 8)],
        b=[receive(0, 1), receive(1, 2), received_event(20, 2, 0, 8), received_event(90, 1, 0, 5000)],
    )
    deliveries = read_deliveries(folder, ["a", "b"])
    assert deliveries is not None
    assert [list(deliveries.at), list(deliveries.took), list(deliveries.bytes_moved)] == [[20, 90], [9, 80], [8, 5000]]


def test_a_restarted_program_numbers_its_receives_from_one(tmp_path: Path) -> None:
    folder = history(
        tmp_path / "history",
        a=[send(10, 1, 1, 1), send(50, 2, 1, 2)],
        b=[receive(0, 1), received_event(20, 1, 0, 1), receive(30, 1), received_event(60, 1, 0, 2)],
    )
    deliveries = read_deliveries(folder, ["a", "b"])
    assert deliveries is not None
    assert list(deliveries.took) == [10, 10]


def test_histories_with_differing_sizes_give_no_deliveries(tmp_path: Path) -> None:
    folder = history(tmp_path / "history", a=[send(10, 1, 1, 5)], b=[receive(0, 1), received_event(20, 1, 0, 6)])
    assert read_deliveries(folder, ["a", "b"]) is None
    assert read_deliveries(tmp_path / "nowhere", ["a", "b"]) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_every_fault_is_listed_once_with_or_without_an_end(spans) -> None:
    events: list[dict[str, object]] = [BEGINS]
    ends: list[dict[str, object]] = []
    for name, begin_time, lasts in spans:
        begin_event, *end_events = fault_events(
            name, begin_time * SECOND, None if lasts == 0 else (begin_time + lasts) * SECOND, 0, name
        )
        events.append(begin_event)
        ends += end_events
    (summary,) = repetitions([*events, *ends], virtual=True)
    assert sorted(fault.begin for fault in summary.faults) == sorted(float(begin_time) for _, begin_time, _ in spans)
    assert sum(fault.end is None for fault in summary.faults) == sum(lasts == 0 for *_, lasts in spans)


def test_the_events_of_a_fault_give_the_programs_start_time() -> None:
    zero = 40 * SECOND
    (summary,) = repetitions([BEGINS, *fault_events("loss 10% on n1", SECOND, 2 * SECOND, zero)], virtual=False)
    assert summary.zero == zero
    assert [(fault.begin, fault.end) for fault in summary.faults] == [(1.0, 2.0)]


def test_faults_belong_to_their_repetition() -> None:
    first, second = repetitions(
        [BEGINS, *fault_events("x", 1, 2, 0), BEGINS, *fault_events("y", 3, 4, 0)], virtual=True
    )
    assert ([fault.what for fault in first.faults], [fault.what for fault in second.faults]) == (["x"], ["y"])


def test_the_links_of_a_simulated_fault_are_those_of_the_scenario(tmp_path: Path) -> None:
    scenario = '[[fault]]\nkind = "impair"\non = ["n1"]\nloss = 0.1\nfrom = "1s"\nto = "2s"\n'
    summary = summarize_run(
        write_run(tmp_path / "run", ping_pong_rows(), scenario=scenario, mode="sim",
             events=[BEGINS, *fault_events("loss 10% on n1", SECOND, 2 * SECOND, 0)]), "",
    )  # fmt: skip
    assert summary.injected == {"n1:eth0--s1:1": ("loss 10% on n1",)}


def test_the_links_of_a_live_fault_are_those_of_the_clusters_events(tmp_path: Path) -> None:
    events = [
        {"event": "inject", "what": "links held for storm", "links": ["n2:eth0--s1:2"]},
        {"event": "inject", "what": "loss 5% on n1", "links": ["n1:eth0--s1:1"]},
    ]
    assert summarize_run(write_run(tmp_path / "run", ping_pong_rows(), events=events), "").injected == {
        "n1:eth0--s1:1": ("loss 5% on n1",)
    }


@pytest.mark.parametrize(
    ("file", "sentence"),
    [("rows.jsonl", "the run's measurements are lost"), ("events.jsonl", "it is unknown when faults were in force"),
     ("cluster.json", "there is no picture"), ("result.json", "never ended")],
)  # fmt: skip
def test_a_missing_file_is_reported_and_the_others_are_shown(tmp_path: Path, file: str, sentence: str) -> None:
    run = write_run(tmp_path / "run", ping_pong_rows(), events=[BEGINS])
    (run / file).unlink()
    summary = summarize_run(run, "")
    assert [reason for reason in summary.missing if sentence in reason]
    assert len(summary.missing) == 1


def test_missing_or_newer_runs_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"not a run's folder: it has no run\.json"):
        summarize_run(tmp_path, "")
    run = write_run(tmp_path / "run")
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**document, "format": 99}))
    with pytest.raises(UnsupportedError, match="newer version of testbed"):
        summarize_run(run, "")


def test_rows_of_each_message_are_samples_and_rows_of_results_are_not(tmp_path: Path) -> None:
    assert samples(summarize_run(write_run(tmp_path / "few", ping_pong_rows()), "")) is None
    rows = [
        {"node": "n1", "clock_ns": 7 * SECOND + number * 1000, "trip_ns": number, "moved_bytes": 10}
        for number in range(50)
    ]
    message_samples = samples(summarize_run(write_run(tmp_path / "many", rows), ""))
    assert message_samples is not None
    assert (
        message_samples.quantity,
        message_samples.took.size,
        message_samples.at[0],
        list(message_samples.moved[:2]),
    ) == (
        "trip",
        50,
        0.0,
        [10, 10],
    )
