"""Comparison of two runs of one description under different clocks: fates by flow, and messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from testbed.fates.flows import Flow
from testbed.fates.records import Fate, Record

FlowOfLink = tuple[str, str, Flow]
"""Link, direction, flow."""


def fates_by_flow(records: Iterable[Record]) -> dict[FlowOfLink, dict[int, Fate]]:
    """Return the fates of each flow, by the number of the frame."""
    fates: dict[FlowOfLink, dict[int, Fate]] = {}
    for record in records:
        fates.setdefault((record.link, record.direction, record.flow), {})[record.n] = record.fate
    return fates


def differing_flows(
    first: Mapping[FlowOfLink, Mapping[int, Fate]], second: Mapping[FlowOfLink, Mapping[int, Fate]]
) -> tuple[list[FlowOfLink], int]:
    """Return the flows whose fates differ between two runs, and the number of compared fates.

    The n-th frame of a flow must have the same fate in both runs, though it may be a different frame. The number of frames
    depends on timing, so each flow is compared up to the last fate of the shorter log.
    """
    differing, compared = [], 0
    for flow in first.keys() & second.keys():
        last = min(max(first[flow]), max(second[flow]))
        expected, actual = ({n: fate for n, fate in fates[flow].items() if n <= last} for fates in (first, second))
        compared += len(expected)
        if expected != actual:
            differing.append(flow)
    return differing, compared


Received = dict[tuple[int, int, int], list[tuple[int, str]]]
"""Sizes and digests of messages, by peer, context and tag."""


def received_messages(folder: Path, node: str) -> Received:
    """Return size and digest of each message that a node received in a run, by peer, context and tag, in the order in which
    its receives were posted. This order is guaranteed; the order of completion is not."""
    events = [json.loads(line) for line in (folder / "history" / f"{node}.jsonl").read_text().splitlines()]
    messages: Received = {}
    for event in sorted((event for event in events if event["what"] == "received"), key=lambda event: int(event["n"])):
        channel = event["peer"], event["context"], event["tag"]
        messages.setdefault(channel, []).append((event["bytes"], event["digest"]))
    return messages
