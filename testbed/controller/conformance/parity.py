"""Parity of two runs of one description under different clocks: fates flow by flow, and messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from testbed.fates.flows import Flow
from testbed.fates.records import Fate, Record

FlowOfLink = tuple[str, str, Flow]
"""Link, direction, flow."""


def fates_by_flow(records: Iterable[Record]) -> dict[FlowOfLink, dict[int, Fate]]:
    """Which frames of each flow met which fate, by their numbers."""
    found: dict[FlowOfLink, dict[int, Fate]] = {}
    for record in records:
        found.setdefault((record.link, record.direction, record.flow), {})[record.n] = record.fate
    return found


def differing_flows(
    there: Mapping[FlowOfLink, Mapping[int, Fate]], here: Mapping[FlowOfLink, Mapping[int, Fate]]
) -> tuple[list[FlowOfLink], int]:
    """Return the flows whose frames have other fates here, and how many fates were compared.

    The n-th frame of a flow has the same fate in both, though it need not be the same frame. Flows are compared as far as
    both runs have come: how many frames there were differs with their timing.
    """
    differing, compared = [], 0
    for flow in there.keys() & here.keys():
        last = min(max(there[flow]), max(here[flow]))
        expected, found = ({n: fate for n, fate in of[flow].items() if n <= last} for of in (there, here))
        compared += len(expected)
        if expected != found:
            differing.append(flow)
    return differing, compared


Received = dict[tuple[int, int, int], list[tuple[int, str]]]


def received_messages(folder: Path, node: str) -> Received:
    """Bytes and digest of each message that a node of a run has received, by peer, context and tag, in the order of its
    receives: messages do not overtake one another there. Which of several is complete first is nobody's promise."""
    told = [json.loads(line) for line in (folder / "history" / f"{node}.jsonl").read_text().splitlines()]
    found: Received = {}
    for one in sorted((one for one in told if one["what"] == "received"), key=lambda one: int(one["n"])):
        found.setdefault((one["peer"], one["context"], one["tag"]), []).append((one["bytes"], one["digest"]))
    return found
