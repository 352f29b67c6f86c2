"""Checkers ignore cancelled transfers."""

from __future__ import annotations

from testbed.controller.checkers.histories import histories_of


def test_cancelled_transfers_are_left_out_of_a_history() -> None:
    send = {"what": "send", "peer": 1, "context": 0, "tag": 3, "bytes": 1, "digest": "ab"}
    receive = {"what": "receive", "peer": -1, "context": 0, "tag": -1, "bytes": 1}
    arrived = {"what": "received", "peer": 0, "context": 0, "tag": 3, "bytes": 1, "digest": "ab"}
    histories = histories_of(
        {
            "n1": [
                {"clock_ns": 1, "n": 1, **send},
                {"clock_ns": 2, "n": 2, **send},
                {"clock_ns": 3, "n": 1, "what": "cancelled"},
                {"clock_ns": 4, "n": 2, "what": "sent"},
            ],
            "n2": [
                {"clock_ns": 1, "n": 1, **receive},
                {"clock_ns": 2, "n": 2, **receive},
                {"clock_ns": 3, "n": 1, "what": "cancelled"},
                {"clock_ns": 5, "n": 2, **arrived},
            ],
        }
    )
    assert [send.number for send in histories.sends[0]] == [2]
    assert [(receive.number, receive.source, receive.is_complete) for receive in histories.receives[1]] == [
        (2, 0, True)
    ]
    assert histories.last_time == 5
