"""The relay's process: forwarded frames, restarts of the relay and its supervisor, kill points."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from testbed import Cluster, Grade, RunningCluster
from testbed.cluster import removal
from testbed.cluster.garbage import collect
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.plan import namespace_names
from testbed.cluster.records.state import Store
from testbed.cluster.services.service_kinds import supervisor_command
from testbed.cluster.startup import bring_up
from testbed.controller.cluster_check import baseline, verdict
from testbed.kernel import namespaces, processes
from testbed.kernel.children import in_child
from testbed.runtime.calls import call
from testbed.runtime.relay.orders import RelayPaths
from testbed.runtime.supervision import running_supervisor
from testbed.spec.layout import Layout
from testbed.spec.model import Defaults, Description, Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.live import node_sockets
from tests.live.forked_children import background, changes_of, kill_after, kill_points
from tests.live.iproute2 import namespace_contents, ping
from tests.live.machine_state import Machine, eventually, snapshot
from tests.live.node_sockets import socket_in
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.testbed_command import testbed
from tests.live.traffic import (
    all_events,
    events_of,
    frames_between,
    relay_pid,
    relay_report,
    relayed_links,
    supervisor_of,
)

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]

MS = 10**6
NAME = "relayed"
LINK = "n1:eth0--s1:1"


def impaired_star(*, nodes: int = 3, **impairment: str) -> Description:
    """Return a star whose first link is impaired."""
    links = [Link(ends=["n1", "s1"], **impairment)]  # type: ignore[arg-type]
    links += [Link(ends=[f"n{number}", "s1"]) for number in range(2, nodes + 1)]
    node_elements = [Node(name=f"n{number}") for number in range(1, nodes + 1)]
    return Description(name=NAME, nodes=node_elements, switches=[Switch(name="s1")], links=links)


def up(layout: Layout) -> ApplyResult:
    return bring_up(Store(), layout, name=NAME, origin="test", lasting=True)


@contextmanager
def running(**impairment: str) -> Iterator[RunningCluster]:
    with RunningCluster(Store(), up(resolve(impaired_star(**impairment))).state) as cluster:
        yield cluster


# Forwarded frames


@contextmanager
def tcp_connection(cluster: RunningCluster, client: str, server: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Open a TCP connection between two nodes; yield both ends."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket_in(cluster[server].namespace, socket.socket))
        listener.bind((cluster[server].address, 5001))
        listener.listen()
        sender = stack.enter_context(socket_in(cluster[client].namespace, socket.socket))
        sender.connect((cluster[server].address, 5001))
        receiver, _ = listener.accept()
        yield sender, stack.enter_context(receiver)


def transfer(sender: socket.socket, receiver: socket.socket, count: int) -> bytes:
    """Send `count` random bytes in writes of up to 64 KiB; return the received bytes."""
    data = os.urandom(1 << 16) * (count >> 16)
    sender.setblocking(False)
    receiver.setblocking(False)
    unsent, received = memoryview(data), bytearray()
    while len(received) < len(data):
        readable, writable, _ = select.select([receiver], [sender] if unsent else [], [], 30)
        assert readable or writable, f"no progress for 30 s after {len(received)} bytes"
        if writable:
            unsent = unsent[sender.send(unsent[: 1 << 18]) :]
        if readable:
            received += receiver.recv(1 << 18)
    assert received == data
    return bytes(received)


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_tcp_on_a_link_with_random_fates_uses_frames_of_the_mtu(mtu: int) -> None:
    """No GSO frame and no partial checksum reaches the relay: the sender's offloads are off."""
    description = Cluster(**{**Cluster.star(2).model_dump(exclude_defaults=True), "defaults": Defaults(mtu=mtu)})
    with description.up() as cluster, cluster.inject("n1", delay="200us", rate="10gbit"):
        with tcp_connection(cluster, "n1", "n2") as (sender, receiver):
            transfer(sender, receiver, 8 << 20)
            transfer(receiver, sender, 8 << 20)
        for direction, link in relay_report(cluster)["links"][LINK].items():
            emulator = link["emulator"]
            assert (emulator["oversized"], emulator["finished"], link["pieces"]) == (0, 0, 0), direction
            counted = link["counters"]
            assert counted["delivered_bytes"] > 8 << 20
            assert counted["delivered_bytes"] / counted["delivered"] > mtu * 0.4
        ping(cluster, "n1", "n2", "-s", str(mtu - 28), "-M", "do")


def test_forwarded_frames_keep_their_vlan_tags() -> None:
    with Cluster.back_to_back().up() as cluster, cluster.inject("all", delay="100us"):
        macs = node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1")
        tags = {1: b"\x81\x00\x20\x07", 2: b"\x81\x00\x00\x00", 3: b"\x88\xa8\x00\x05\x81\x00\x00\x06"}
        with (
            node_sockets.open_socket(cluster["n1"].namespace, "eth0") as sender,
            node_sockets.open_socket(cluster["n2"].namespace, "eth0", node_sockets.ETH_P_ALL) as receiver,
        ):
            receiver.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
            for number, tag in tags.items():
                plain = node_sockets.numbered_frame(*macs, number)
                sender.send(plain[:12] + tag + plain[12:])
            for tag in tags.values():
                node_sockets.wait_until_readable(receiver)
                data, control, _, _ = receiver.recvmsg(2048, 256)
                (auxiliary,) = [value for level, kind, value in control if (level, kind) == (263, 8)]
                assert int.from_bytes(auxiliary[:4], sys.byteorder) & 0x10, "the frame has a VLAN tag"
                outer = auxiliary[18:20][::-1] + auxiliary[16:18][::-1]  # TPID and TCI, in host byte order
                assert outer == tag[:4]
                assert data[12 : 12 + len(tag) - 4] == tag[4:]


# Lateness


def test_a_delayed_relay_reports_its_lateness() -> None:
    with (
        Cluster.back_to_back().up() as cluster,
        cluster.inject("all", delay="1ms"),
        node_sockets.nic_sockets(cluster) as nics,
    ):
        pid = relay_pid(cluster)
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(100):
                nics["n1"].send(
                    node_sockets.numbered_frame(
                        node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1"), number
                    )
                )
            assert not select.select([nics["n2"]], [], [], 0.1)[0], "the relay is stopped for 0.1 s"
        finally:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: bool(events_of(cluster, "relay behind")), "the lateness is logged")
        (event,) = events_of(cluster, "relay behind")
        assert (event["link"], event["direction"]) == ("n1:eth0--n2:eth0", "forward")
        assert (event["late"], event["lost"], event["limit"]) == (100, 0, MS)
        assert event["worst"] > 90 * MS
        assert node_sockets.frame_numbers(node_sockets.received(nics["n2"])) == list(range(100))


# Killed processes


def test_a_link_left_in_pass_through_by_a_killed_command_is_impaired_again_by_the_next_one() -> None:
    """The relay passes frames through unimpaired while a command takes a link from it."""
    with Cluster.star(2).up(datapath="relay") as cluster:
        ping(cluster, "n1", "n2")
        cluster.inject("n1", loss=1.0)
        link = next(iter(relayed_links(cluster)))
        relay = RelayPaths(Store().directory(cluster.state.name)).socket(0)

        def is_reachable() -> bool:
            return cluster["n1"].run(["ping", "-n", "-q", "-c1", "-W1", "n2"], check=False).returncode == 0

        assert not is_reachable()
        assert call(relay, {"do": "pass through", "links": [link, "unknown"]}) == {"early": {link: 0}}
        assert is_reachable()
        cluster.inject("n2", delay="1ms")
        assert not is_reachable()
        cluster.heal()
        assert is_reachable()


def test_a_killed_relay_is_restarted_with_the_same_orders() -> None:
    with running(delay="1ms") as cluster, frames_between(cluster, ("n1", "n2"), ("n2", "n1")) as traffic:
        fault = cluster.inject("n1", corrupt="1%")
        before = relayed_links(cluster)
        for count in range(1, 4):
            pid = relay_pid(cluster)
            os.kill(pid, signal.SIGKILL)
            eventually(
                lambda count=count: len(events_of(cluster, "relay restarted")) == count, "the relay has restarted"
            )  # type: ignore[misc]
            assert relayed_links(cluster) == before
            traffic.wait()
            assert relay_pid(cluster) != pid
            died, restarted = events_of(cluster, "relay died")[-1], events_of(cluster, "relay restarted")[-1]
            assert died["pid"] == pid
            start, ended = restarted["gap"]
            assert start < ended <= restarted["time"]
            assert restarted["lost"] >= 0
        fault.lift()
        traffic.wait()


def test_a_repeatedly_killed_relay_is_restarted_with_backoff() -> None:
    """The supervisor waits longer before each restart; the relay runs in the end."""
    with running(delay="1ms") as cluster:
        for count in range(1, 7):
            eventually(
                lambda count=count: len(events_of(cluster, "relay restarted")) == count - 1, "the relay has restarted"
            )  # type: ignore[misc]
            os.kill(relay_pid(cluster), signal.SIGKILL)
        eventually(lambda: len(events_of(cluster, "relay restarted")) == 6, "the relay has restarted")
        ping(cluster, "n1", "n2")


def kill_supervisor(cluster: RunningCluster) -> int:
    supervisor = supervisor_of(cluster)
    os.kill(supervisor.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(supervisor.pid, 0)  # if it is a child of this process
    return supervisor.pid


def test_a_relay_survives_its_supervisor_without_loss_and_restarts_it() -> None:
    with running(delay="1ms") as cluster, frames_between(cluster, ("n1", "n2"), ("n2", "n1")) as traffic:
        pid = relay_pid(cluster)
        for count in range(1, 4):
            killed = kill_supervisor(cluster)
            eventually(
                lambda count=count: len(events_of(cluster, "supervisor restarted")) == count,
                "the supervisor has restarted",
            )  # type: ignore[misc]
            traffic.wait()
            died, restarted = events_of(cluster, "supervisor died")[-1], events_of(cluster, "supervisor restarted")[-1]
            assert died["pid"] == killed
            assert restarted["pid"] == supervisor_of(cluster).pid != killed
            assert restarted["services"] == [pid]
            start, ended = restarted["gap"]
            assert start < ended <= restarted["time"]
        assert relay_pid(cluster) == pid
        assert events_of(cluster, "relay died") == []
        os.kill(pid, signal.SIGKILL)  # not a child of the new supervisor
        eventually(lambda: len(events_of(cluster, "relay restarted")) == 1, "the relay has restarted")
        cluster.inject("n2", delay="1ms")
        ping(cluster, "n1", "n2")


def test_a_verdict_without_a_supervisor_is_invalid_and_names_the_gap() -> None:
    with running(delay="1ms") as cluster:
        before = baseline(cluster)
        killed = kill_supervisor(cluster)
        (run_verdict,) = [finding for finding in verdict(cluster, before).findings if finding.what == "supervisor gap"]
        assert run_verdict.grade is Grade.INVALID
        assert f"(process {killed}) died" in run_verdict.reason
        start, ended = events_of(cluster, "supervisor restarted")[-1]["gap"]
        assert run_verdict.measured == ended - start > 0


def test_traffic_loses_nothing_while_the_supervisor_restarts() -> None:
    with running(delay="200us") as cluster, tcp_connection(cluster, "n1", "n2") as (sender, receiver):
        before = relay_report(cluster)["links"][LINK]["forward"]["emulator"]
        kill_supervisor(cluster)
        transfer(sender, receiver, 4 << 20)
        eventually(lambda: len(events_of(cluster, "supervisor restarted")) == 1, "the supervisor has restarted")
        after = relay_report(cluster)["links"][LINK]["forward"]["emulator"]
        assert (after["overrun"], after["unsent"]) == (before["overrun"], before["unsent"])


def test_a_supervisor_and_a_relay_killed_together_are_restarted_by_the_next_command() -> None:
    with running(delay="1ms") as cluster:
        supervisor, relay = supervisor_of(cluster).pid, relay_pid(cluster)
        os.kill(supervisor, signal.SIGSTOP)  # so that neither can restart the other
        os.kill(relay, signal.SIGKILL)
        kill_supervisor(cluster)
        assert "GONE" in testbed("status", "--name", NAME).stdout
        assert up(resolve(impaired_star(delay="1ms"))).operations == ()
        assert [event["pid"] for event in events_of(cluster, "supervisor died")] == [supervisor]
        assert len(events_of(cluster, "relay died")) == len(events_of(cluster, "relay restarted")) == 1
        ping(cluster, "n1", "n2")
        assert "GONE" not in testbed("status", "--name", NAME).stdout


def test_a_changed_impairment_does_not_wait_for_a_supervisor_that_is_stopped() -> None:
    with running(delay="1ms") as cluster:
        supervisor = supervisor_of(cluster).pid
        os.kill(supervisor, signal.SIGSTOP)
        try:
            cluster.inject("n1", delay="2ms")
            assert relayed_links(cluster)[LINK].forward.impairment.delay == 2 * MS
        finally:
            os.kill(supervisor, signal.SIGCONT)
        cluster.inject("n1", seconds=0.1, loss="1%")  # the supervisor heals it, and so it is asked
        eventually(lambda: len(cluster.state.injected) == 1, "the supervisor has healed the injection")


def test_concurrent_starts_of_a_supervisor_leave_one_running() -> None:
    with running(delay="1ms") as cluster, frames_between(cluster, ("n1", "n2")) as traffic:
        directory, pid = Store().directory(NAME), relay_pid(cluster)
        kill_supervisor(cluster)
        started = [
            os.posix_spawn(sys.executable, [*supervisor_command(Store(), NAME), "0", "0", ""], os.environ)
            for _ in range(4)
        ]
        eventually(lambda: len(events_of(cluster, "supervisor restarted")) == 1, "the supervisor has restarted")
        (remaining,) = [entry for entry in (running_supervisor(directory),) if entry is not None]
        for pid_started in started:
            if pid_started != remaining.pid:
                os.waitpid(pid_started, 0)
        assert running_supervisor(directory) == remaining
        assert relay_pid(cluster) == pid
        traffic.wait()


def test_a_missing_node_is_recreated_without_a_restart_of_the_relay() -> None:
    layout = resolve(impaired_star(delay="1ms"))
    with running(delay="1ms") as cluster:
        injection = cluster.inject("n2", delay="2ms")
        pid = relay_pid(cluster)
        namespaces.remove_name(os.path.basename(cluster["n1"].namespace))
        eventually(
            lambda: "n1.eth0" not in namespace_contents(cluster.state.namespaces[namespace_names.WIRE]).links,
            "the kernel has freed the namespace",
        )
        ping(cluster, "n2", "n3")
        assert up(layout).operations
        ping(RunningCluster.attach(NAME), "n1", "n2")
        assert relay_pid(cluster) == pid
        assert events_of(cluster, "relay died") == []
        injection.lift()
        ping(RunningCluster.attach(NAME), "n1", "n2")


def test_a_link_that_moves_to_another_switch_keeps_being_forwarded() -> None:
    def line(switch: str) -> Layout:
        links = [Link(ends=["n1", switch], delay="1ms"), Link(ends=["n2", "s2"]), Link(ends=["s1", "s2"], delay="1ms")]
        nodes = [Node(name="n1"), Node(name="n2")]
        return resolve(
            Description(name=NAME, nodes=nodes, switches=[Switch(name="s1"), Switch(name="s2")], links=links)
        )

    with RunningCluster(Store(), up(line("s1")).state) as cluster:
        index = namespace_contents(cluster["n1"].namespace).links["eth0"].index
        for switch in ("s2", "s1", "s2"):
            up(line(switch))
            ping(cluster, "n1", "n2")
            assert any(name.startswith(f"n1:eth0--{switch}") for name in relayed_links(cluster))
            assert namespace_contents(cluster["n1"].namespace).links["eth0"].index == index


def test_a_held_cluster_with_a_relay_ends_with_its_killed_process(machine: Machine) -> None:
    def hold_cluster(report: Callable[[object], None]) -> None:
        with Cluster.star(2).up() as cluster, cluster.inject("all", delay="1ms"):
            report(relay_pid(cluster))
            signal.pause()

    with background(hold_cluster) as process:
        pid = process.next_report()
        assert isinstance(pid, int)
        relay = processes.identity(pid)
        process.kill()
        eventually(lambda: not relay.is_alive, "the relay ends")
    machine.assert_unchanged("its process was killed")


def test_down_ends_the_clusters_processes() -> None:
    before = snapshot().processes
    with running(delay="1ms") as cluster:
        cluster.inject("n2", loss="1%", seconds=1000)
        assert snapshot().processes != before
    assert snapshot().processes == before


# Kill points


IMPAIRED = resolve(impaired_star(delay="1ms", corrupt="1%"))
CHANGED = resolve(impaired_star(nodes=4, delay="2ms", loss="1%"))


def down() -> None:
    removal.down(Store(), NAME)


def gc() -> None:
    collect(Store())


def is_up(layout: Layout) -> bool:
    state = Store().read(NAME)
    dry_run = bring_up(Store(), layout, name=NAME, origin="test", lasting=True, dry_run=True)
    return state is not None and state.phase == "up" and not dry_run.operations


def test_gc_cleans_up_after_an_up_with_a_relay_killed_at_any_change(
    machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    changes = changes_of(lambda: up(IMPAIRED))
    in_child(down)
    machine.assert_unchanged("after an undisturbed up and down")
    for count, after in kill_points(changes):
        kill_after(count, lambda: up(IMPAIRED))
        in_child(gc)
        if Store().read(NAME) is not None:
            assert is_up(IMPAIRED), f"killed after {after}"
            in_child(down)
        machine.assert_unchanged(f"up killed after change {count}, {after}")
    record_property("note", f"up of an impaired cluster of 3 nodes: {len(changes)} changes")


def test_a_killed_change_of_an_impaired_cluster_is_completed_by_the_next_up(
    machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    in_child(lambda: up(IMPAIRED))
    changes = changes_of(lambda: up(CHANGED))
    in_child(down)
    for count, after in kill_points(changes):
        in_child(lambda: up(IMPAIRED))
        kill_after(count, lambda: up(CHANGED))
        in_child(gc)
        then = IMPAIRED if count % 2 else CHANGED
        in_child(lambda then=then: up(then))  # type: ignore[misc]
        assert is_up(then), f"change killed after change {count}, {after}"
        try:
            ping(RunningCluster.attach(NAME), "n1", "n3")
        except Exception as error:
            reported = all_events(RunningCluster.attach(NAME))
            raise AssertionError(f"change killed after change {count}, {after}\n{reported}") from error
        in_child(down)
        machine.assert_unchanged(f"change killed after change {count}, {after}")
    record_property("note", f"change of an impaired cluster: {len(changes)} changes")


def test_a_cluster_with_a_killed_injection_is_repaired_by_the_next_command(
    machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    def inject() -> None:
        RunningCluster.attach(NAME).inject("n2", delay="1ms")

    in_child(lambda: up(IMPAIRED))
    changes = changes_of(inject)
    in_child(down)
    for count, after in kill_points(changes):
        in_child(lambda: up(IMPAIRED))
        kill_after(count, inject)
        in_child(lambda: up(IMPAIRED))
        in_child(RunningCluster.attach(NAME).heal)
        assert is_up(IMPAIRED), f"inject killed after change {count}, {after}"
        ping(RunningCluster.attach(NAME), "n1", "n2")
        in_child(down)
        machine.assert_unchanged(f"inject killed after change {count}, {after}")
    record_property("note", f"inject into a cluster with a relay: {len(changes)} changes")


# Without root


@pytest.mark.requires("userns")
def test_an_ordinary_users_relay_applies_changes_and_heals(home: os.PathLike[str]) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            fault = cluster.inject("n1", delay="3ms")
            first = cluster.inject("n1", rules=["drop icmp and nth(1)"], direction="out")
            assert cluster.state.datapaths == {LINK: "relay"}
            output = cluster["n1"].run(["ping", "-n", "-c2", "-i0.2", "-W2", "n2"], check=False).stdout
            assert "1 received" in output, output
            assert float(output.split("time=")[1].split()[0]) >= 6.0
            cluster.inject("n1", delay="1ms")
            fault.lift()
            first.lift()
            output = cluster["n1"].run(["ping", "-n", "-c1", "-W5", "n2"]).stdout
            assert float(output.split("time=")[1].split()[0]) >= 2.0
            os.kill(relay_pid(cluster), signal.SIGKILL)
            eventually(lambda: len(events_of(cluster, "relay restarted")) == 1, "the relay has restarted")
            ping(cluster, "n1", "n2")
            cluster.heal()
            assert relayed_links(cluster) == {}
            ping(cluster, "n1", "n2")

    wait_for_success(as_user(home, body))  # type: ignore[arg-type]


def test_a_restarted_relay_continues_its_counters_of_rules() -> None:
    """Rules continue to count frames, also per key; a rule that is added later starts at 1."""
    with running(delay="1ms") as cluster:
        cluster.inject("n1", rules=["drop icmp and nth(5)", "drop icmp and nth(8, ip.dst)"], direction="out")
        before = baseline(cluster)

        def lost_pings(count: int) -> list[int]:
            output = cluster["n1"].run(["ping", "-n", f"-c{count}", "-i0.2", "-W1", "n2"], check=False).stdout
            arrived = {int(number) for number in re.findall(r"icmp_seq=(\d+)", output)}
            return sorted(set(range(1, count + 1)) - arrived)

        assert lost_pings(3) == []
        os.kill(relay_pid(cluster), signal.SIGKILL)
        eventually(lambda: len(events_of(cluster, "relay restarted")) == 1, "the relay has restarted")
        assert lost_pings(3) == [2]
        os.kill(relay_pid(cluster), signal.SIGKILL)
        eventually(lambda: len(events_of(cluster, "relay restarted")) == 2, "the relay has restarted")
        assert lost_pings(3) == [3]  # the second rule has not seen the frame that the first one lost
        later = cluster.inject("n1", rules=["drop icmp and nth(2)"], direction="out")
        assert lost_pings(3) == [2]
        later.lift()
        assert "counts of rules and random losses continue" in testbed("events", "--name", NAME).stdout
        run_verdict = verdict(cluster, before)
        gaps = [finding for finding in run_verdict.findings if finding.what == "relay gap"]
        assert {run_verdict.grade, *(gap.grade for gap in gaps)} == {Grade.INVALID}
        assert all("counters of rules (nth, first, every) and chance continue" in gap.reason for gap in gaps)


def test_a_relay_that_ended_regularly_leaves_no_counters() -> None:
    """Declared rules count from 1 when they are added again."""
    impaired = impaired_star(rules=["drop icmp and nth(3)"])  # type: ignore[arg-type]
    with RunningCluster(Store(), up(resolve(impaired)).state) as cluster:
        for _ in range(2):
            cluster["n1"].run(["ping", "-n", "-q", "-c2", "-i0.2", "-W1", "n2"])
            up(resolve(impaired_star()))
            assert not list(Store().directory(NAME).glob("tallies.*"))
            up(resolve(impaired))
