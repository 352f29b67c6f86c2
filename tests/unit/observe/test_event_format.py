"""Formatted events, and reading of files that grow."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.observe.format.event_format import Tail, format_event, kinds
from testbed.runtime import event_log


def test_an_injection_is_formatted_with_its_links_and_its_number() -> None:
    event = {
        "time": 5, "clock": 1, "event": "inject", "number": 2, "what": "loss 5% on n1", "links": ["a", "b", "c", "d", "e"],
        "down": [], "until": 0, "took": 0.0891,
    }  # fmt: skip
    line = format_event(event)
    assert (line.time, line.kind, line.where) == (5, "inject", "a, b, c and 2 more")
    assert line.what == "2: loss 5% on n1, in 89 ms"


def test_a_relay_that_is_behind_reports_its_lateness() -> None:
    event = {
        "event": "relay behind", "link": "n1--s1", "direction": "forward", "late": 3, "limit": 1_000_000,
        "worst": 2_400_000, "lost": 1,
    }  # fmt: skip
    assert format_event(event).where == "n1--s1"
    assert format_event(event).what == "forward: 3 frames more than 1 ms late (worst 2.4 ms), 1 lost"
    assert format_event({**event, "late": 1}).what == "forward: 1 frame more than 1 ms late (worst 2.4 ms), 1 lost"


def test_a_link_that_changes_its_datapath_reports_the_cost() -> None:
    event = {"event": "replugged", "link": "n1--s1", "before": "direct", "after": "relay", "lost": 2, "early": 0}
    assert format_event(event).what == "from direct to relay, 2 frames lost"


def test_an_outage_has_its_cause_and_duration() -> None:
    assert format_event({"event": "relay died", "pid": 7}).what == "process 7"
    assert (
        format_event({"event": "node process died", "node": "n1", "pid": 7, "code": -9}).what == "process 7, signal 9"
    )
    parent = format_event({"event": "node parent died", "nodes": ["n1", "n2"], "pid": 7, "code": -9})
    assert (parent.where, parent.what) == ("n1, n2", "process 7, signal 9")
    restarted = {"event": "relay restarted", "pid": 8, "gap": [0, 12_000_000], "lost": 1}
    assert format_event(restarted).what == "process 8, 12 ms after the end of the previous one, 1 frame lost"


def test_an_unknown_event_is_formatted_field_by_field() -> None:
    line = format_event({"time": 1, "event": "moon rises", "phase": "full", "over": ["n1", "n2"]})
    assert (line.kind, line.where, line.what) == ("moon rises", "", "phase full, over n1, n2")


@given(
    st.sampled_from(kinds()),
    st.dictionaries(
        st.sampled_from(["link", "links", "what", "number", "took", "gap", "code", "lost", "time", "node", "late"]),
        st.one_of(st.integers(), st.text(), st.lists(st.integers()), st.none(), st.booleans()),
    ),
)
def test_an_event_of_another_version_is_formatted_as_far_as_possible(kind: str, facts: dict[str, object]) -> None:
    assert format_event({"event": kind, **facts}).kind == kind


def test_a_growing_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    with path.open("a") as file:
        file.write(json.dumps({"event": "first"}) + "\n" + '{"event": ')
        file.flush()
        assert tail.read() == [{"event": "first"}]
        assert tail.read() == []
        file.write('"second"}\nnonsense\n[1]\n{"event": "third"}\n')
    assert tail.read() == [{"event": "second"}, {"event": "third"}]
    path.unlink()
    assert tail.read() == []
    tail.close()


def test_a_fifo_in_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(OSError, match="it is not a regular file"):
        Tail(tmp_path / "events.jsonl").read()
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        event_log.record(tmp_path, "up")
