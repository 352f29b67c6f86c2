"""Datapaths under test behind one interface: the wire model in memory, and relay, tc and netem between two nodes.

Frames are sent at scheduled times as far as the machine allows; their actual arrival at the link is taken from the
kernel's stamps at the link's free end, before any datapath touches them. Expected results are computed from actual
arrivals, not from scheduled ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from testbed import Cluster, RunningCluster
from testbed.cluster.faults import fault_injection
from testbed.cluster.plan.veth_wiring import free_ends, stage_ends
from testbed.cluster.records.state import State, Store
from testbed.cluster.services import relay_client
from testbed.fabric.direction import LinkDirection
from testbed.fates.records import Record
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.kernel import qdiscs, rtnl_dump
from testbed.kernel.datapaths import TABLE, Fit
from testbed.kernel.loss_classifier import read_counters
from testbed.spec.layout import ConfiguredDatapath, Impairment
from tests.live.machine_state import eventually
from tests.semantics.tapped_links import Cable, DirectionName, Schedule, Stamped
from tests.unit.fates.wire_frames import run_schedule

SLOW: Final = float(os.environ.get("TESTBED_SLOW", "1"))
DEADLINE: Final = (100 if os.environ.get("TESTBED_VM") else 20) * SLOW
"""Seconds in which a datapath must deliver the frames in flight."""

NOTHING: Final = Impairment()
LINK: Final = "n1:eth0--n2:eth0"
KEYS: Final = tuple(field.name for field in fields(Impairment))

RealName: TypeAlias = Literal["relay", "tc", "netem"]
DatapathName: TypeAlias = Literal["model"] | RealName
DIRECTIONS: Final[tuple[DirectionName, DirectionName]] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Run:
    """Frames that entered one direction of a link, in order, and those that left it. Times in nanoseconds since
    the first frame's arrival at the link."""

    offered: Stamped
    arrived: Stamped

    @property
    def frames(self) -> list[bytes]:
        """Received frames, in order."""
        return [frame for _, frame in self.arrived]


class Oracle(LinkDirection):
    """The model, with a record of its deliveries and fates."""

    def __init__(
        self, link: str, direction: DirectionName, impairment: Impairment, seed: int, files: Mapping[str, str]
    ) -> None:
        self.log: list[Record] = []
        self.arrived: Stamped = []
        super().__init__(
            link, direction, impairment, FateOptions(seed, fields=known_fields(), files=files, log=self.log.append)
        )

    def after(self, schedule: Schedule) -> Oracle:
        self.arrived += run_schedule(self, schedule)
        return self

    @property
    def frames(self) -> list[bytes]:
        return [frame for _, frame in self.arrived]


FRAMES_AFTER_CHANGE: Final = 200
"""Number of frames of a burst that are sent only after a change of the impairment."""


class Line:
    """A link with impairments in force."""

    def __init__(self, datapath: DatapathName, link: str, seed: int) -> None:
        self.datapath = datapath
        self.link = link
        self.seed = seed
        self.impairments: dict[DirectionName, Impairment] = dict.fromkeys(DIRECTIONS, NOTHING)
        self.files: Mapping[str, str] = {}

    @property
    def virtual(self) -> bool:
        """Return whether the datapath's clock is virtual, so that no frame is late."""
        return self.datapath == "model"

    def fit(self, feature: str) -> Fit:
        """Return the table's fit of the datapath for a feature; the model is the reference."""
        return Fit.EXACT if self.datapath == "model" else TABLE[feature][self.datapath].fit

    def exact(self, feature: str) -> bool:
        return self.fit(feature) is Fit.EXACT

    def carry(self, schedule: Schedule, direction: DirectionName = "forward") -> Run:
        """Send the frames at one end; return those that left the other end once no frame is in flight."""
        return self.carry_both({direction: schedule})[direction]

    def carry_both(self, schedules: Mapping[DirectionName, Schedule]) -> dict[DirectionName, Run]:
        """Carry a schedule in each direction at once."""
        raise NotImplementedError

    def carry_through_change(self, schedule: Schedule, index: int, after: Impairment) -> tuple[Run, range]:
        """Send frames forward and change the impairment after the frame at `index` has arrived at the link. Returns the
        run and the range of indexes of the first frame after the change."""
        raise NotImplementedError

    def expected(self, run: Run, direction: DirectionName = "forward") -> Oracle:
        """Run the model on the frames at the times at which the datapath received them."""
        return Oracle(self.link, direction, self.impairments[direction], self.seed, self.files).after(run.offered)

    def expected_through_change(self, run: Run, index: int, before: Impairment) -> Oracle:
        """Run the model with impairment `before` up to the frame at `index` and the present one from there on."""
        oracle = Oracle(self.link, "forward", before, self.seed, self.files)
        first, remaining = run.offered[:index], run.offered[index:]
        for now, frame in first:
            oracle.arrived += oracle.poll(now)
            oracle.offer(now, frame)
        now = remaining[0][0] if remaining else first[-1][0]
        oracle.arrived += oracle.poll(now)
        oracle.change(now, self.impairments["forward"], self.files)
        return oracle.after(remaining)


class ModelLine(Line):
    """The model in memory: every frame arrives as scheduled."""

    def carry_both(self, schedules: Mapping[DirectionName, Schedule]) -> dict[DirectionName, Run]:
        runs = {}
        for direction, schedule in schedules.items():
            oracle = Oracle(self.link, direction, self.impairments[direction], self.seed, self.files)
            runs[direction] = Run(list(schedule), oracle.after(schedule).arrived)
        return runs

    def carry_through_change(self, schedule: Schedule, index: int, after: Impairment) -> tuple[Run, range]:
        before, self.impairments["forward"] = self.impairments["forward"], after
        run = Run(list(schedule), [])
        oracle = self.expected_through_change(run, index, before)
        return Run(run.offered, oracle.arrived), range(index, index + 1)


class ClusterLine(Line):
    """A link of a running cluster, with real frames."""

    def __init__(self, datapath: DatapathName, cluster: RunningCluster, cable: Cable) -> None:
        state = cluster.state
        super().__init__(datapath, cable.link, state.layout.seed)
        self._store = Store()
        self._cluster = cluster
        self._cable = cable

    def set(self, direction: DirectionName, impairment: Impairment) -> None:
        """Inject an impairment in place of the present one."""
        before = self.impairments[direction]
        keys: dict[str, Any] = {
            key: getattr(impairment, key)
            for key in KEYS
            if key != "rules" and getattr(impairment, key) != getattr(before, key)
        }
        self.impairments[direction] = impairment
        if keys or impairment.rules != before.rules:
            new = [rule for rule in impairment.rules if rule not in before.rules]
            fault_injection.inject(self._store, self._cluster.name, self.link, keys, rules=new, direction=direction)

    def carry_both(self, schedules: Mapping[DirectionName, Schedule]) -> dict[DirectionName, Run]:
        cable = self._cable
        before = self._sample()
        start_marks = {direction: cable.marks(direction) for direction in schedules}
        cable.send(schedules)
        return {
            direction: self._settle(direction, len(schedule), start_marks[direction], before)
            for direction, schedule in schedules.items()
        }

    def carry_through_change(self, schedule: Schedule, index: int, after: Impairment) -> tuple[Run, range]:
        cable = self._cable
        before = self._sample()
        start_marks = cable.marks("forward")
        with cable.sending(schedule, FRAMES_AFTER_CHANGE) as send_rest:
            eventually(lambda: len(cable.offered("forward", start_marks)) >= index, f"frame {index} comes", DEADLINE)
            earliest = len(cable.offered("forward", start_marks))
            self.set("forward", after)
            latest = len(cable.offered("forward", start_marks))
            send_rest()
        run = self._settle("forward", len(schedule), start_marks, before)
        return run, range(earliest, latest + 1)

    def _settle(
        self, direction: DirectionName, count: int, start_marks: tuple[int, int], before: _CounterSample
    ) -> Run:
        """Wait until the number of frames that the datapath reports has arrived."""
        cable = self._cable

        def is_idle() -> bool:
            if len(cable.offered(direction, start_marks)) < count:
                return False
            passed_count = self._sample().passed(before, direction, count)
            return passed_count is not None and len(cable.arrived(direction, start_marks)) >= passed_count

        try:
            eventually(is_idle, "every frame is through or dropped", DEADLINE)
        except AssertionError as error:
            counts_now = len(cable.offered(direction, start_marks)), len(cable.arrived(direction, start_marks))
            raise AssertionError(f"{error}: sent {count}, offered and arrived {counts_now}, {self._sample()}") from None
        offered, arrived = cable.offered(direction, start_marks), cable.arrived(direction, start_marks)
        assert len(offered) == count
        first_time = offered[0][0]
        return Run(
            [(time - first_time, frame) for time, frame in offered],
            [(time - first_time, frame) for time, frame in arrived],
        )

    def _sample(self) -> _CounterSample:
        state: State = self._cluster.state
        if self.datapath == "relay":
            report = relay_client.report(self._store, state)
            return _CounterSample(relay=report["links"][self.link] if report and self.link in report["links"] else None)
        route = self._cable.wire.route
        roots = qdiscs.qdiscs(route)
        names = stage_ends(self._cluster.state.layout, self.link)
        ends = {
            direction: rtnl_dump.interface_named(route, name) for direction, name in zip(DIRECTIONS, names, strict=True)
        }
        into = dict(zip(DIRECTIONS, (self._cable.index_a, self._cable.index_b), strict=True))
        classifier_counters = {
            direction: read_counters(route, into[direction]) if self.datapath == "tc" else None
            for direction in DIRECTIONS
        }
        return _CounterSample(
            roots={direction: roots.get(end.index) if end is not None else None for direction, end in ends.items()},
            lost={
                direction: counters.lost if counters is not None else 0
                for direction, counters in classifier_counters.items()
            },
        )


@dataclass(frozen=True, slots=True)
class _CounterSample:
    """Counters of a datapath at one instant."""

    relay: Mapping[str, Any] | None = None
    roots: Mapping[DirectionName, qdiscs.Qdisc | None] | None = None
    lost: Mapping[DirectionName, int] | None = None

    def passed(self, before: _CounterSample, direction: DirectionName, count: int) -> int | None:
        """Return how many of `count` frames have left; None while some are in flight."""
        if self.relay is not None:
            now, before_counters = (
                self.relay[direction]["counters"],
                before.relay[direction]["counters"] if before.relay else None,
            )
            assert not any(self.relay[direction]["emulator"].values()), (
                f"lost inside the emulator: {self.relay[direction]}"
            )
            if (
                self.relay[direction]["held"]
                or now["offered"] - (before_counters["offered"] if before_counters else 0) != count
            ):
                return None
            delivered: int = now["delivered"] - (before_counters["delivered"] if before_counters else 0)
            return delivered
        if self.roots is None or self.lost is None:
            return count  # nothing holds frames
        assert before.roots is not None
        assert before.lost is not None
        lost_count = self.lost[direction] - before.lost[direction]
        root, earlier = self.roots[direction], before.roots[direction]
        if root is None or root.kind not in ("netem", "tbf"):
            return count - lost_count
        is_known = earlier is not None and earlier.kind == root.kind
        frames, dropped = (earlier.frames, earlier.dropped) if earlier is not None and is_known else (0, 0)
        removed_count = root.frames - frames
        if root.queued or removed_count + root.dropped - dropped < count - lost_count:
            return None
        return removed_count


class DatapathUnderTest:
    """Factory of impaired lines on one datapath, one line at a time."""

    def __init__(self, name: DatapathName) -> None:
        self.name = name

    @contextmanager
    def impaired(
        self, forward: Impairment, backward: Impairment = NOTHING, files: Mapping[str, str] | None = None
    ) -> Iterator[Line]:
        """Context manager: a line with these impairments. files: the texts of existing files that they name."""
        raise NotImplementedError


class ModelDatapath(DatapathUnderTest):
    def __init__(self, link: str = LINK, seed: int = 1) -> None:
        super().__init__("model")
        self._link = link
        self._seed = seed

    @contextmanager
    def impaired(
        self, forward: Impairment, backward: Impairment = NOTHING, files: Mapping[str, str] | None = None
    ) -> Iterator[Line]:
        line = ModelLine("model", self._link, self._seed)
        line.impairments = {"forward": forward, "backward": backward}
        line.files = files or {}
        yield line


class ClusterDatapath(DatapathUnderTest):
    """A cluster whose impaired links one datapath carries; frames between two of its nodes."""

    def __init__(self, name: DatapathName, description: Cluster, link: str = LINK) -> None:
        super().__init__(name)
        self._stack = ExitStack()
        requested: ConfiguredDatapath = "auto" if name == "model" else name
        try:
            self.cluster = self._stack.enter_context(description.up(datapath=requested))
            ends = free_ends(self.cluster.state.layout, link)
            self._cable = self._stack.enter_context(Cable(self.cluster, link, *ends))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def impaired(
        self, forward: Impairment, backward: Impairment = NOTHING, files: Mapping[str, str] | None = None
    ) -> Iterator[Line]:
        line = ClusterLine(self.name, self.cluster, self._cable)
        line.files = files or {}
        try:
            for direction, impairment in zip(DIRECTIONS, (forward, backward), strict=True):
                line.set(direction, impairment)
            with self._cable.tapped():
                yield line
        finally:
            self.cluster.heal()


class DatapathsUnderTest:
    """Datapaths by name, each brought up on first use."""

    def __init__(self) -> None:
        self._running: dict[DatapathName, DatapathUnderTest] = {}

    def __getitem__(self, name: DatapathName) -> DatapathUnderTest:
        if name not in self._running:
            datapath = ModelDatapath() if name == "model" else ClusterDatapath(name, Cluster.back_to_back())
            self._running[name] = datapath
        return self._running[name]

    def close(self) -> None:
        for datapath in self._running.values():
            if isinstance(datapath, ClusterDatapath):
                datapath.close()
