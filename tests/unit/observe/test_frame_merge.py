"""Merge of captured frames in order of time, each with its own fate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from testbed.fates.flows import Flow
from testbed.fates.records import PATTERN
from testbed.observe.sniff.fate_reconstruction import FateReconstruction
from testbed.observe.sniff.frame_merge import MAX_STAMP_DIFFERENCE, CapturedFrame, FrameMerge
from testbed.observe.sniff.points import Point
from testbed.runtime.relay.relay_watch import FrameFates
from testbed.spec.layout import End, Impairment

N1 = Point("l", End("n1", "eth0"), "forward", "/ns", "n1.eth0", True, "relay")
N2 = Point("l", End("n2", "eth0"), "backward", "/ns", "n2.eth0", True, "relay")

N1_BY_TC = replace(N1, datapath="tc")


@dataclass
class ReadClassifier:
    """Stand-in for a classifier with a loss pattern, read after it has counted `frames` frames."""

    reconstruction: FateReconstruction
    frames: int
    id: int = 1

    @property
    def name(self) -> str:
        return self.reconstruction.classifier_name

    @property
    def program(self) -> ReadClassifier:
        return self

    def count(self, flow: Flow) -> int:
        raise NotImplementedError

    def flows(self) -> dict[Flow, int]:
        raise NotImplementedError

    def state(self) -> int:
        return self.frames


def fate_of(stamp: int, frame: bytes, text: str = "dropped", direction: str = "forward") -> FrameFates:
    return FrameFates("l", direction, stamp, crc32(frame), ("loss",), text)


def times_and_fates(frames: Sequence[CapturedFrame]) -> list[tuple[int, str]]:
    return [(frame.when, frame.fate) for frame in frames]


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans())), st.lists(st.integers(1, 120)))
def test_frames_of_two_points_are_released_once_and_in_order(passed: list[tuple[int, bool]], until: list[int]) -> None:
    merge = FrameMerge(0)
    merge.add(N1, [(stamp, False, b"a") for stamp, first in sorted(passed) if first])
    merge.add(N2, [(stamp, True, b"a") for stamp, first in sorted(passed) if not first])
    released = [frame for limit in [*sorted(until), 200] for frame in merge.release(limit)]
    assert [merged_frame.when for merged_frame in released] == sorted(stamp for stamp, _ in passed)
    assert all(merged_frame.entering == (merged_frame.point is N1) for merged_frame in released)


def test_a_fate_may_be_reported_before_or_after_its_frame() -> None:
    merge = FrameMerge(0)
    merge.add_fates([fate_of(20, b"b")])
    merge.add(N1, [(10, False, b"a"), (20, False, b"b"), (30, False, b"c")])
    merge.add_fates([fate_of(30, b"c")])
    assert times_and_fates(merge.release(40)) == [(10, ""), (20, "dropped"), (30, "dropped")]
    assert merge.unplaced == 0


def test_segments_of_one_frame_have_one_time_stamp_and_are_distinguished_by_content() -> None:
    merge = FrameMerge(0)
    merge.add(N1, [(10, False, b"a"), (10, False, b"b"), (10, False, b"c")])
    merge.add_fates([fate_of(10, b"b")])
    assert [(frame.frame, frame.fate) for frame in merge.release(40)] == [(b"a", ""), (b"b", "dropped"), (b"c", "")]


def test_identical_frames_at_one_time_are_listed_once() -> None:
    merge = FrameMerge(0)
    merge.add(N1, [(10, False, b"a")] * 3)
    merge.add_fates([fate_of(10, b"a", "first"), fate_of(10, b"a", "second")])
    assert [frame.fate for frame in merge.release(40)] == ["first", "second", ""]


def test_a_slightly_different_timestamp_matches_the_nearest_frame_with_that_content() -> None:
    merge = FrameMerge(0)
    merge.add(
        N1,
        [
            (1_000, False, b"a"),
            (2_000, False, b"b"),
            (9_000, False, b"a"),
            (2_000 + 2 * MAX_STAMP_DIFFERENCE, False, b"c"),
        ],
    )
    merge.add_fates([fate_of(2_000, b"a"), fate_of(2_000, b"c")])
    assert times_and_fates(merge.release(10 * MAX_STAMP_DIFFERENCE)) == [
        (1_000, "dropped"),
        (2_000, ""),
        (9_000, ""),
        (2_000 + 2 * MAX_STAMP_DIFFERENCE, ""),
    ]
    assert merge.unplaced == 1


def test_a_fate_is_listed_at_its_direction_and_where_the_frame_enters() -> None:
    merge = FrameMerge(0)
    merge.add(N1, [(10, False, b"a"), (20, True, b"a")])
    merge.add(N2, [(20, False, b"a")])
    merge.add_fates([fate_of(10, b"a"), fate_of(20, b"a", "corrupted", "backward")])
    assert [(frame.point.device, frame.fate) for frame in merge.release(40)] == [
        ("n1.eth0", "dropped"),
        ("n1.eth0", ""),
        ("n2.eth0", "corrupted"),
    ]


def test_frames_before_the_capture_are_ignored() -> None:
    merge = FrameMerge(100)
    merge.add(N1, [(90, False, b"a"), (110, False, b"b")])
    merge.add_fates([fate_of(90, b"a")])
    assert times_and_fates(merge.release(200)) == [(110, "")]
    assert (merge.unplaced, merge.late) == (0, 0)


def test_frames_before_the_first_release_that_are_read_later_are_ignored() -> None:
    merge = FrameMerge(100)
    assert merge.release(50) == []
    merge.add(N1, [(90, False, b"a"), (110, False, b"b")])
    assert times_and_fates(merge.release(200)) == [(110, "")]


def test_frames_before_the_capture_are_counted_for_later_fates() -> None:
    """The classifier is read before two frames, which pass before the capture's start."""
    begun, quiet = 10**18, 10**9
    reconstruction = FateReconstruction("l", "forward", 3, Impairment(loss_pattern="3"), begun - 2 * quiet)
    reconstruction.read(ReadClassifier(reconstruction, 0), lambda: begun - quiet // 2)
    merge = FrameMerge(begun)
    stamps = [begun - 20, begun - 10, begun + 10, begun + 20]
    merge.add(N1_BY_TC, [(stamp, False, bytes(60)) for stamp in stamps], reconstruction)
    released = merge.release(begun + quiet)
    assert [(frame.when, frame.causes) for frame in released] == [(begun + 10, (PATTERN,)), (begun + 20, ())]
    assert reconstruction.undecided == 0


def test_frames_captured_before_a_replaced_classifier_is_noticed_are_decided_by_the_new_one() -> None:
    start, second = 10**18, 10**9
    old = FateReconstruction("l", "forward", 3, Impairment(loss_pattern="2"), start)
    old.read(ReadClassifier(old, 0), lambda: start + second)
    merge = FrameMerge(start)
    merge.add(N1_BY_TC, [(start + number * second, False, bytes(60)) for number in range(2, 6)], old)
    # The second frame was decided by the old classifier, the third and later by the new one.
    checked_at = start + 2 * second
    new = FateReconstruction("l", "forward", 3, Impairment(loss_pattern="1"), checked_at, old)
    merge.reconstruct(N1_BY_TC, new, checked_at)
    new.read(ReadClassifier(new, 2), lambda: start + 6 * second)
    released = merge.release(start + 10 * second)
    assert [frame.causes for frame in released] == [(), (PATTERN,), (PATTERN,), ()]
    assert (old.undecided, new.undecided) == (0, 0)


def test_a_late_frame_and_a_fate_without_a_frame_are_released_and_counted() -> None:
    merge = FrameMerge(0)
    assert merge.release(5 * MAX_STAMP_DIFFERENCE) == []
    merge.add(N1, [(10, False, b"a")])
    merge.add_fates([fate_of(3 * MAX_STAMP_DIFFERENCE, b"b")])
    assert times_and_fates(merge.release(6 * MAX_STAMP_DIFFERENCE)) == [(10, "")]
    assert (merge.unplaced, merge.late) == (1, 1)
