"""Captures on links of a running cluster: each frame with its fate."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from testbed import Cluster, RunningCluster, TestbedError
from testbed.cli.documents import schema_of
from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from testbed.controller.verdict.counter_snapshots import read_counters
from testbed.errors import NotFoundError
from testbed.kernel import mounts, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.tpacket import BLOCK, Ring
from tests.live import node_sockets
from tests.live.machine_state import DEADLINE, eventually
from tests.live.traffic import relay_pid, relay_report
from tests.sim.scapy_captures import read_capture

_numbers = itertools.count(1)

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]

_ATTEMPTS = 5
COUNT = 150


def send_both_ways(cluster: RunningCluster, count: int = COUNT) -> None:
    """Send `count` frames from n1 to n2 and as many back, all different, without waiting for them to arrive."""
    a, b = node_sockets.mac(cluster, "n1"), node_sockets.mac(cluster, "n2")
    with node_sockets.nic_sockets(cluster) as nics:
        for _ in range(count):
            nics["n1"].send(node_sockets.numbered_frame(b, a, next(_numbers)))
            nics["n2"].send(node_sockets.numbered_frame(a, b, next(_numbers)))


def counters(cluster: RunningCluster) -> list[dict[str, int]]:
    """Return the relay's counters of both directions of the only link, once no frame is in flight."""
    counters: list[dict[str, int]] = []

    def is_idle() -> bool:
        ((_, direction_report),) = relay_report(cluster)["links"].items()
        directions = [direction_report[direction] for direction in ("forward", "backward")]
        counters[:] = [counts["counters"] for counts in directions]
        return not any(counts["held"] for counts in directions)

    eventually(is_idle, "no frame is in flight")
    return counters


def assert_consistent_ends(path: Path, ends: tuple[str, str]) -> None:
    """Assert that the frames of one end that are not marked as dropped, and no others, are recorded at the other end."""
    frames = read_capture(path)
    senders: dict[bytes, str] = {}
    for name, _, frame, _ in frames:
        senders.setdefault(frame[6:12], name)  # a frame is first recorded at its sender's end
    for end, other in (ends, ends[::-1]):
        sent = [(name, frame, met) for name, _, frame, met in frames if senders[frame[6:12]] == end]
        assert Counter(frame for name, frame, met in sent if name == end and not met) == Counter(
            frame for name, frame, _ in sent if name == other
        )
        assert len(sent) > COUNT


def test_exactly_the_frames_that_the_relay_loses_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with Cluster.back_to_back(loss="30%", delay="1ms").up() as cluster, cluster.capture("n1", path) as capture:
        send_both_ways(cluster)
        counted = counters(cluster)
    lost = sum(counts["loss"] for counts in counted)
    assert lost > COUNT // 3
    assert capture.result.complete
    assert capture.result.fates == {"loss": lost}
    frames = read_capture(path)
    assert sum(met.startswith("dropped by loss, frame ") for *_, met in frames) == lost
    assert len(frames) == sum(counts["offered"] + counts["delivered"] for counts in counted)
    assert [when for _, when, *_ in frames] == sorted(when for _, when, *_ in frames)
    assert_consistent_ends(path, ("n1:eth0", "n2:eth0"))


@pytest.mark.requires("bpf")
def test_every_frame_that_a_classifier_loses_is_recorded_although_it_reports_none(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with Cluster.back_to_back(loss="30%").up(datapath="tc") as cluster:
        send_both_ways(cluster, 20)  # losses before the capture
        before = read_counters(Store(), cluster.state).classifiers
        with cluster.capture("n1--n2", path) as capture:
            send_both_ways(cluster)
        after = read_counters(Store(), cluster.state).classifiers
    assert capture.result.fates == {"loss": sum(after[place].lost - before[place].lost for place in after)}
    assert capture.result.complete
    assert_consistent_ends(path, ("n1:eth0", "n2:eth0"))


@pytest.mark.alone  # needs a machine that is in time
@pytest.mark.parametrize("datapath", ["relay", pytest.param("tc", marks=pytest.mark.requires("bpf"))])
def test_a_fault_injected_later_is_reported_from_its_first_frame_on(tmp_path: Path, datapath: str) -> None:
    """The capture reports itself as incomplete where the machine is too busy to announce the new datapath in time."""
    for attempt in range(_ATTEMPTS):
        with (
            Cluster.star(2).up(datapath=datapath) as cluster,  # type: ignore[arg-type]
            cluster.capture("n1", tmp_path / f"{attempt}.pcapng") as capture,
        ):
            send_both_ways(cluster, 20)
            with cluster.inject("n1", loss="40%"):
                send_both_ways(cluster)
                if datapath == "relay":
                    lost = sum(counter["loss"] for counter in counters(cluster))
                else:
                    lost = sum(
                        classifier.lost for classifier in read_counters(Store(), cluster.state).classifiers.values()
                    )
            send_both_ways(cluster, 20)
        assert capture.result.fates.get("loss", 0) <= lost, capture.result
        if capture.result.complete:
            assert capture.result.fates == {"loss": lost}, capture.result
            return
    raise AssertionError(f"none of {_ATTEMPTS} captures was complete: {capture.result}")


@pytest.mark.alone  # needs a machine that is in time
@pytest.mark.requires("bpf")
def test_losses_that_replace_others_during_a_capture_are_recorded(tmp_path: Path) -> None:
    """The capture reports itself as incomplete where the machine is too busy to read the counts between the changes."""
    with Cluster.back_to_back(loss="30%").up(datapath="tc") as cluster:
        for attempt in range(_ATTEMPTS):
            send_both_ways(cluster, 20)  # losses before the capture
            before = read_counters(Store(), cluster.state).classifiers
            with cluster.capture("n1--n2", tmp_path / f"{attempt}.pcapng") as capture:
                send_both_ways(cluster)
                with cluster.inject("n1", loss="60%"):
                    send_both_ways(cluster)
                send_both_ways(cluster, 20)
            after = read_counters(Store(), cluster.state).classifiers
            if capture.result.complete:
                lost = sum(after[place].lost - before[place].lost for place in after)
                assert capture.result.fates == {"loss": lost}, capture.result
                return
    raise AssertionError(f"none of {_ATTEMPTS} captures was complete: {capture.result}")


def test_duplicates_corruption_and_rules_are_listed_where_the_frame_enters(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    rules = ["delay 3ms emp and nth(2)", "drop eth.type == 0x88b5 and nth(3)"]
    with (
        Cluster.back_to_back().up() as cluster,
        cluster.inject("n1", duplicate="20%", corrupt="10%", rules=rules),
        cluster.capture("all", path) as capture,
    ):
        send_both_ways(cluster)
        counted = counters(cluster)
    assert capture.result.complete
    words = [met for *_, met in read_capture(path) if met]
    for cause, counter, start in (
        ("duplicate", "duplicated", "duplicated by duplicate"),
        ("corrupt", "corrupted", "1 bit flipped by corrupt"),
    ):
        total = sum(counts[counter] for counts in counted)
        assert capture.result.fates[cause] == total == sum(start in word for word in words) > 0
    assert sum("delayed for 3000000 ns by rule 'delay 3ms" in word for word in words) == 2
    assert sum("dropped by rule 'drop eth.type" in word for word in words) == 2


def test_a_frame_that_meets_a_full_queue_is_recorded(tmp_path: Path) -> None:
    with (
        Cluster.back_to_back(rate="100kbit", queue_frames=2).up(datapath="relay") as cluster,
        cluster.capture("n1", tmp_path / "x.pcapng") as capture,
    ):
        send_both_ways(cluster, 50)
        full = sum(counter["queue"] for counter in counters(cluster))
    assert full > 10
    assert capture.result.fates == {"queue full": full}


def test_unimpaired_and_direct_links_record_each_frame_once_at_each_capture_point(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    pair = Cluster(
        name="pair", nodes=[{"name": "n1"}, {"name": "n2"}], links=[{"ends": ["n1", "n2"], "datapath": "direct"}]
    )
    for description, ends in (
        (pair, {"n1:eth0", "n2:eth0"}),
        (Cluster.back_to_back(), {"n1:eth0", "n2:eth0"}),
        (Cluster.star(2), {"n1:eth0"}),
    ):
        with description.up() as cluster:
            with cluster.capture("n1", path) as capture:
                send_both_ways(cluster, 10)
            counts = Counter((name, frame) for name, _, frame, _ in read_capture(path) if frame[12:14] == b"\x88\xb5")
        assert {name for name, _ in counts} == ends
        assert len(counts) == 20 * len(ends)
        assert set(counts.values()) == {1}
        assert capture.result.complete


def test_a_trunk_is_captured_at_both_switches_with_and_without_impairments(tmp_path: Path) -> None:
    with Cluster.dumbbell(1, 1).up() as cluster:
        switches = {switch.name for switch in cluster.state.layout.switches}
        (trunk,) = [link for link in cluster.state.layout.links if {link.a.owner, link.b.owner} <= switches]
        trunk_ends = {str(trunk.a), str(trunk.b)}
        for impairments in ({}, {"delay": "1ms"}):
            if impairments:
                cluster.inject(trunk.name, **impairments)
            with cluster.capture(trunk.name, tmp_path / "x.pcapng") as capture:
                send_both_ways(cluster, 10)
                if impairments:
                    counters(cluster)  # no frame is in flight to the other end
            counts = Counter((n, f) for n, _, f, _ in read_capture(tmp_path / "x.pcapng") if f[12:14] == b"\x88\xb5")
            assert {name for name, _ in counts} == trunk_ends
            assert set(counts.values()) == {1}
            assert len(counts) == 40
            assert capture.result.complete


def test_a_relay_killed_during_a_capture_reports_its_fates_after_its_restart(tmp_path: Path) -> None:
    with Cluster.back_to_back(loss="50%", delay="1ms").up() as cluster, node_sockets.nic_sockets(cluster) as nics:
        a, b = node_sockets.mac(cluster, "n1"), node_sockets.mac(cluster, "n2")
        with cluster.capture("n1", tmp_path / "x.pcapng") as capture:
            first = relay_pid(cluster)
            os.kill(first, signal.SIGKILL)
            eventually(lambda: _has_new_relay(cluster, first), "a new relay is running")
            for number in range(200):
                nics["n1"].send(node_sockets.numbered_frame(b, a, number))
        ((_, direction_report),) = relay_report(cluster)["links"].items()
        assert direction_report["forward"]["counters"]["offered"] == 200
        assert capture.result.fates == {"loss": direction_report["forward"]["counters"]["loss"]}


def _has_new_relay(cluster: RunningCluster, first_pid: int) -> bool:
    report = relay_client.report(Store(), cluster.state)
    return report is not None and report["pid"] != first_pid


def test_frames_dropped_by_a_full_receive_ring_are_counted() -> None:
    with Cluster.back_to_back().up() as cluster, node_sockets.nic_sockets(cluster) as nics:
        node = cluster["n2"]
        ring = Ring(node.namespace, "eth0", 2 * BLOCK)
        try:
            frame = node_sockets.mac(cluster, "n2") + node_sockets.mac(cluster, "n1") + b"\x88\xb6" + bytes(1400)
            for _ in range(1_000):
                nics["n1"].send(frame)
            read = 0
            while actual := ring.read():
                read += len(actual)
            counts = ring.update_counts()
            assert counts.dropped > 0
            assert read == counts.received
            assert counts.received + counts.dropped == 1_000
        finally:
            ring.close()


def test_a_killed_capture_leaves_nothing_and_the_relay_closes_its_watch(tmp_path: Path) -> None:
    with Cluster.back_to_back(loss="50%", delay="1ms").up() as cluster, node_sockets.nic_sockets(cluster) as nics:
        directory = Store().directory(cluster.name)
        with command("capture", "n1", "-w", str(tmp_path / "x.pcapng"), "--name", cluster.name) as process:
            eventually(lambda: _descriptors(cluster, "watch.") == 1, "the capture has started")
            process.kill()
        eventually(lambda: _descriptors(cluster, "watch.") == 0, "the relay has closed the watch")
        a, b = node_sockets.mac(cluster, "n1"), node_sockets.mac(cluster, "n2")
        nics["n1"].send(node_sockets.numbered_frame(b, a, 1))
        with cluster.capture("n1", tmp_path / "y.pcapng"):
            assert len(list(directory.glob("watch.*"))) == 1
        assert not list(directory.glob("watch.*"))


def _descriptors(cluster: RunningCluster, name: str) -> int:
    folder = Path(f"/proc/{relay_pid(cluster)}/fd")
    return sum(name in os.readlink(path) for path in folder.iterdir() if os.path.islink(path))


def test_a_full_disk_ends_the_capture_with_an_error_message_and_a_readable_file(tmp_path: Path) -> None:
    with Cluster.back_to_back().up() as cluster, node_sockets.nic_sockets(cluster) as nics:

        def capture_on_small_disk() -> tuple[str, int]:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            mounts.make_slave()
            syscalls.mount("none", str(tmp_path), "tmpfs", 0, "size=64k")
            path = tmp_path / "x.pcapng"
            frame = node_sockets.mac(cluster, "n2") + node_sockets.mac(cluster, "n1") + b"\x88\xb6" + bytes(1400)
            reported = ""
            try:
                with cluster.capture("n1", path):
                    for _ in range(5):
                        for _ in range(20):
                            nics["n1"].send(frame)
                        time.sleep(0.2)  # so that not all of them are written at once
            except OSError as error:
                reported = str(error)
            return reported, len(read_capture(path))

        reported, count = in_child(capture_on_small_disk)
    assert "No space left on device" in reported
    assert 0 < count < 50


def test_an_unknown_name_and_a_missing_folder_are_errors_of_one_line(tmp_path: Path) -> None:
    with Cluster.back_to_back().up() as cluster:
        with pytest.raises(NotFoundError, match="no link, node or switch 'n9'"), cluster.capture("n9", tmp_path / "x"):
            pass
        assert not (tmp_path / "x").exists()
        wrong = cluster.capture("n1", tmp_path / "nowhere" / "x.pcapng")
        with pytest.raises(TestbedError, match="the capture cannot be written: No such file"), wrong:
            pass


# The command


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from testbed.cli.main import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_misspelt_link_does_not_overwrite_an_earlier_capture(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    path.write_bytes(b"an hour of frames")
    with Cluster.back_to_back().up() as cluster:
        wrong = command("capture", "n9", "-w", str(path), "--name", cluster.name)
        assert "no link, node or switch 'n9'" in wrong.communicate(timeout=DEADLINE)[1]
        assert wrong.returncode == 4
    assert path.read_bytes() == b"an hour of frames"


def test_a_cluster_that_is_gone_does_not_overwrite_an_earlier_capture(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    path.write_bytes(b"an hour of frames")
    with Cluster.back_to_back().up() as cluster:
        holder = cluster.state.holder
        assert holder is not None
        os.kill(holder.pid, signal.SIGKILL)
        eventually(lambda: not holder.is_alive, "the holder has ended")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(holder.pid, 0)
        gone = command("capture", "n1", "-w", str(path), "--name", cluster.name)
        assert f"cluster {cluster.name} is gone: 'testbed gc' removes" in gone.communicate(timeout=DEADLINE)[1]
        assert gone.returncode == 4
    assert path.read_bytes() == b"an hour of frames"


@pytest.mark.requires("tcpdump")
def test_the_command_ends_on_ctrl_c_with_a_file_that_tcpdump_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with (
        Cluster.back_to_back(loss="30%", delay="1ms").up() as cluster,
        command("capture", "n1", "-w", str(path), "--name", cluster.name) as process,
    ):
        assert process.stderr is not None
        assert "Ctrl-C ends it" in process.stderr.readline()
        send_both_ways(cluster)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    frames = read_capture(path)
    assert f"{len(frames)} frames in" in errors
    assert f"fates: {sum(bool(fate) for *_, fate in frames)} loss" in errors
    read = subprocess.run(["tcpdump", "-nn", "-r", path], capture_output=True, text=True, check=True)
    assert sum(not line.startswith("\t") for line in read.stdout.splitlines()) == len(frames)


def parse_documents(text: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in text.splitlines()]
    for record in records:
        jsonschema.validate(record, schema_of(record["kind"]))
    return records


@pytest.mark.alone  # fates are recorded only if both ends are read in time
def test_json_output_has_an_object_per_frame_and_then_the_totals() -> None:
    with (
        Cluster.back_to_back(loss="30%", delay="1ms").up() as cluster,
        command("capture", "n1", "--count", "200", "--name", cluster.name, "--json") as process,
    ):
        directory = Store().directory(cluster.name)
        eventually(lambda: any(directory.glob("watch.*")), "the capture has started")
        while process.poll() is None:
            send_both_ways(cluster, 30)
        printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    *frames, total = parse_documents(printed)
    # More frames than the first burst has, whose fates may have been decided before the capture began.
    assert [document["kind"] for document in (*frames, total)] == ["frame"] * 200 + ["capture"]
    assert sum(total["frames"].values()) == 200
    lost = [entry for entry in frames if entry["causes"] == ["loss"]]
    assert len(lost) == total["fates"]["loss"] > 0
    assert all(document["way"] == "out" and document["fate"].startswith("dropped by loss, frame ") for document in lost)
    assert {entry["end"] for entry in frames} == {"n1:eth0", "n2:eth0"}
    assert all(entry["bytes"] == 64 for entry in frames if "0x88b5" in entry["what"])


def test_with_json_and_a_file_only_the_total_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with Cluster.back_to_back().up() as cluster:
        with command("capture", "n1", "-w", str(path), "--for", "300ms", "--name", cluster.name, "--json") as process:
            printed, _ = process.communicate(timeout=60)
        with command("capture", "n1", "-w", "-", "--name", cluster.name, "--json") as rejected:
            _, errors = rejected.communicate(timeout=60)
    document = json.loads(printed)
    jsonschema.validate(document, schema_of("capture"))
    assert document["complete"]
    assert len(read_capture(path)) == sum(document["frames"].values())
    assert rejected.returncode == 2
    assert "standard output is the capture" in errors


def test_the_command_prints_a_line_for_each_of_the_requested_frames() -> None:
    with (
        Cluster.back_to_back(loss="30%", delay="1ms").up() as cluster,
        command("capture", "n1", "--count", "400", "--name", cluster.name) as process,
    ):
        directory = Store().directory(cluster.name)
        eventually(lambda: any(directory.glob("watch.*")), "the capture has started")
        while process.poll() is None:
            send_both_ways(cluster, 30)
            time.sleep(0.05)  # bursts, so that the traffic lasts longer than a late read of one end under load
        lines, errors = process.communicate()
    assert process.returncode == 0
    assert len(lines.splitlines()) == 400
    assert "400 frames in" in errors
    assert any(" n1:eth0 > 02:" in line and "EtherType 0x88b5, 64 bytes" in line for line in lines.splitlines()), lines
    assert any("  [dropped by loss, frame " in line for line in lines.splitlines())
