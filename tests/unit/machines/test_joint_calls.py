"""Calls that several machines carry out together: barriers, and the end after another machine's failure."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator

import pytest

from testbed.errors import TestbedError
from testbed.machines.request_reader import PROCEED, STOP, RequestReader
from testbed.machines.worker import Dialogue, serve


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def request(number: int, call: str) -> bytes:
    return json.dumps({"number": number, "call": call, "arguments": {}}).encode() + b"\n"


def parse_answers(answers: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_a_machine_reports_its_phase_and_continues_on_command(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    answers = io.BytesIO()
    os.write(writer, b"\n" + request(7, PROCEED))
    Dialogue(RequestReader(reader), answers, 7).barrier("ready")
    assert parse_answers(answers) == [{"number": 7, "reached": "ready"}]
    os.close(writer)


def test_a_machine_ends_when_another_has_failed_or_the_controller_has_ended(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    dialogue = Dialogue(RequestReader(reader), io.BytesIO(), 7)
    os.write(writer, b"\n\n")  # keepalives
    dialogue.check()
    os.write(writer, request(7, STOP))
    with pytest.raises(TestbedError, match="another machine has failed"):
        dialogue.check()
    dialogue.check()
    os.close(writer)
    with pytest.raises(TestbedError, match="the controller has disconnected"):
        dialogue.barrier("done")


def test_input_for_an_ended_call_is_not_a_request(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, request(1, "fail") + request(1, STOP) + request(1, PROCEED) + request(2, "answer"))
    os.close(writer)
    answers = io.BytesIO()

    def fail(_: Dialogue) -> object:
        raise TestbedError("not here")

    serve(RequestReader(reader), answers, {"fail": fail}, {"answer": lambda: 42})
    assert parse_answers(answers) == [
        {"number": 1, "error": "not here", "class": "TestbedError"},
        {"number": 2, "reply": 42},
    ]
