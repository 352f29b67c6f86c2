"""`testbed check` and verdicts from Python on running clusters: correct links are trusted, and faulty ones are not.

Limits make the grades independent of the machine's speed: "trusted" has limits that only a pause of the machine exceeds,
"degraded" a first limit that is always exceeded and a second one that never is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from testbed import Cluster, RunningCluster
from testbed.cli.documents import schema_of
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.veth_wiring import free_ends
from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from testbed.controller.cluster_check import baseline, check, verdict
from testbed.controller.probing.routed_paths import THERE_AND_BACK
from testbed.controller.verdict.thresholds import LIMITS, Limit, Table
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict
from testbed.errors import DescriptionError, NotFoundError
from testbed.runtime.calls import call
from testbed.runtime.relay.orders import RelayedDirection, RelayPaths
from tests.live import iproute2
from tests.live.machine_state import eventually

pytestmark = [
    pytest.mark.requires("root", "ip"),
    pytest.mark.usefixtures("machine"),
    pytest.mark.timeout(180),
]

TESTBED = str(Path(sys.executable).with_name("testbed"))
SLOW = float(os.environ.get("TESTBED_SLOW", "1"))
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
OUT_OF_REACH = 3_600 * SECOND

# Findings about the machine, which no test depends on.
MACHINE = ("softnet drops", "steal", "relay waiting", "timer floor p99", "scheduling lag p99", "wall clock")


def lenient(limit: Limit) -> Limit:
    """Return a limit that tolerates any lateness of the machine."""
    return (
        replace(limit, degraded=10 * SECOND, invalid=OUT_OF_REACH) if limit.is_scaled and limit.unit == "ns" else limit
    )


LENIENT = Table({what: lenient(limit) for what, limit in LIMITS.items()}, SLOW)


def link_findings(verdict: Verdict) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.what not in MACHINE]


def names_graded(verdict: Verdict, grade: Grade) -> set[str]:
    return {finding.what for finding in link_findings(verdict) if finding.grade is grade}


def by_name(verdict: Verdict, link: str, direction: str) -> dict[str, Finding]:
    return {finding.what: finding for finding in verdict.of(link, direction)}


@contextmanager
def star(nodes: int = 2) -> Iterator[RunningCluster]:
    with Cluster.star(nodes).up() as cluster:
        yield cluster


def link_of(cluster: RunningCluster, node: str) -> str:
    (link,) = [link.name for link in cluster.state.layout.links if node in (link.a.owner, link.b.owner)]
    return link


def relay_pid(cluster: RunningCluster) -> int:
    report = relay_client.report(Store(), Store().choose(cluster.name))
    assert report is not None
    pid: int = report["pid"]
    return pid


def offered_frames(cluster: RunningCluster, link: str) -> int:
    report = relay_client.report(Store(), Store().choose(cluster.name))
    assert report is not None
    offered: int = report["links"][link]["forward"]["counters"]["offered"]
    return offered


# Trusted


def test_a_configured_delay_is_trusted_in_both_directions() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="20ms")
        verdict = check(cluster, table=LENIENT)
        assert names_graded(verdict, Grade.DEGRADED) | names_graded(verdict, Grade.INVALID) == set()
        for direction in ("forward", "backward"):
            findings = by_name(verdict, link_of(cluster, "n1"), direction)
            assert findings["delay min"].measured is not None
            assert 20 * MILLISECOND - 50_000 <= findings["delay min"].measured < 20 * MILLISECOND + 10 * SECOND * SLOW
            assert findings["delay p50"].grade is Grade.TRUSTED
            assert findings["loss"].measured == 0
            assert findings["order"].measured == 0
        assert {finding.what for finding in verdict.of("")} >= {*MACHINE, "relay gap"}


def test_a_configured_loss_is_trusted_after_enough_probes_and_undecided_before() -> None:
    with star() as cluster:
        cluster.inject("n1", loss="30%", delay="1ms")
        long_check = check(cluster, table=LENIENT)
        assert names_graded(long_check, Grade.INVALID) == set()
        finding = by_name(long_check, link_of(cluster, "n1"), "forward")["loss"]
        assert finding.grade is Grade.TRUSTED
        assert finding.interval is not None
        assert finding.interval[0] < 0.3 < finding.interval[1]
        short_check = check(cluster, seconds=0.05, table=LENIENT)
        loss = by_name(short_check, link_of(cluster, "n1"), "forward")["loss"]
        assert loss.grade is Grade.UNDECIDED
        assert loss in short_check.undecided


def test_rate_duplicates_corruption_and_reordering_are_measured() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="5ms", rate="5mbit", duplicate="30%", corrupt="30%", reorder="30%")
        verdict = check(cluster, seconds=2, table=LENIENT)
        assert names_graded(verdict, Grade.INVALID) == set()
        findings = by_name(verdict, link_of(cluster, "n1"), "backward")
        for what in ("duplicate", "corrupt", "reorder"):
            interval = findings[what].interval
            assert interval is not None
            assert interval[0] < 0.3 < interval[1]
        assert findings["rate"].grade in (
            Grade.TRUSTED,
            Grade.UNDECIDED,
        )  # a machine may be too busy to fill 5 Mbit/s


def test_unimpaired_links_are_probed_only_when_named() -> None:
    with star(3) as cluster:
        unimpaired = check(cluster)
        assert link_findings(unimpaired) == []
        assert "no link is impaired" in unimpaired.notes[0]
        verdict = check(cluster, "all", 0.3, table=LENIENT)
        assert names_graded(verdict, Grade.INVALID) | names_graded(verdict, Grade.DEGRADED) == set()
        assert len({(finding.link, finding.direction) for finding in verdict.findings if finding.link}) == 6
        assert {finding.measured for finding in verdict.findings if finding.what == "loss"} == {0}


@pytest.mark.parametrize("shape", ["pair", "ring"])
def test_links_between_nodes_and_between_switches_are_probed(shape: str) -> None:
    description = Cluster.ring(3) if shape == "ring" else Cluster.back_to_back()
    with description.up() as cluster:
        cluster.inject("all", delay="3ms")
        verdict = check(cluster, "all", 0.5, table=LENIENT)
        assert names_graded(verdict, Grade.INVALID) | names_graded(verdict, Grade.DEGRADED) == set()
        links = cluster.state.layout.links
        assert {(finding.link, finding.direction) for finding in verdict.findings if finding.link} == {
            (link.name, direction) for link in links for direction in ("forward", "backward")
        }
        for finding in verdict.findings:
            if finding.what == "delay min":
                assert finding.measured is not None
                assert finding.measured >= 3 * MILLISECOND - 50_000


@pytest.mark.requires("bpf")
def test_losses_of_a_tc_classifier_are_measured() -> None:
    with star() as cluster:
        cluster.inject("n1", loss="30%")
        assert set(Store().choose(cluster.name).datapaths.values()) == {"tc"}
        verdict = check(cluster, table=LENIENT)
        assert names_graded(verdict, Grade.INVALID) == set()
        findings = by_name(verdict, link_of(cluster, "n1"), "forward")
        assert findings["loss"].grade is Grade.TRUSTED
        assert findings["classifier inexact"].measured == 0


def test_a_link_that_is_down_carries_nothing() -> None:
    with star() as cluster:
        cluster.cut("n1")
        verdict = check(cluster, seconds=0.2, table=LENIENT)
        assert {finding.what for finding in verdict.findings if finding.link} == {"down"}
        assert names_graded(verdict, Grade.TRUSTED) >= {"down"}


def test_probes_leave_no_trace_at_switches_and_nodes() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="1ms")
        wire = cluster.state.namespaces[namespace_names.WIRE]

        def forwarding_state() -> tuple[object, ...]:
            tables = [iproute2.query(wire, "bridge", "fdb", "show")]
            drops = []
            for node in cluster:
                tables.append(iproute2.query(node.namespace, "ip", "neigh"))
                (nic,) = iproute2.query(node.namespace, "ip", "-s", "link", "show", node.layout.nics[0].name)
                drops.append(nic["stats64"]["rx"]["dropped"])
            peer_nic = iproute2.query(
                cluster["n2"].namespace, "ip", "-s", "link", "show", cluster["n2"].layout.nics[0].name
            )
            return tables, drops, peer_nic[0]["stats64"]["rx"]["packets"]

        before = forwarding_state()
        verdict = check(cluster, "n1", 0.3, table=LENIENT)
        assert names_graded(verdict, Grade.INVALID) == set()
        assert forwarding_state() == before


@contextmanager
def ring() -> Iterator[RunningCluster]:
    """Four Myrinet switches in a ring with a node each."""
    with Cluster.ring(4, kind="myrinet").up() as cluster:
        yield cluster


def test_source_routed_links_are_probed_from_nic_to_nic() -> None:
    with ring() as cluster:
        (cable,) = [link.name for link in cluster.state.layout.links if (link.a.owner, link.b.owner) == ("s2", "s3")]
        cluster.inject("n1", delay="20ms")
        cluster.inject(cable, delay="5ms", loss="40%")
        verdict = check(cluster, seconds=2, table=LENIENT)
        assert names_graded(verdict, Grade.DEGRADED) | names_graded(verdict, Grade.INVALID) == set()
        expected = {(link_of(cluster, "n1"), THERE_AND_BACK): 40, (cable, "forward"): 5, (cable, "backward"): 5}
        probed = {(finding.link, finding.direction) for finding in verdict.findings if finding.what == "delay min"}
        assert probed == expected.keys()
        for (link, direction), delay in expected.items():
            findings = by_name(verdict, link, direction)
            assert findings["delay min"].measured is not None
            assert findings["delay min"].measured >= delay * MILLISECOND - 50_000
            assert findings["delay p50"].grade is Grade.TRUSTED
            assert findings["loss"].asked == pytest.approx(0.4 if link == cable else 0)
        assert any("probed from NIC to NIC" in note for note in verdict.notes)


def test_a_cut_source_routed_link_is_reported_as_down() -> None:
    with ring() as cluster, cluster.cut("n2"):
        verdict = check(cluster, "n2", seconds=1, table=LENIENT)
        (finding,) = verdict.of(link_of(cluster, "n2"), THERE_AND_BACK)
        assert (finding.what, finding.measured, finding.grade) == ("down", 0, Grade.TRUSTED)


# Not trusted


def override_relay(cluster: RunningCluster, **impairment: object) -> None:
    """Load an impairment into the relay that differs from the cluster's state."""
    paths = RelayPaths(Store().directory(cluster.name))
    orders = paths.read_orders()
    assert orders is not None
    links = tuple(
        replace(
            link,
            forward=RelayedDirection(replace(link.forward.impairment, **impairment)),  # type: ignore[arg-type]
        )
        for link in orders.links
    )
    paths.orders.write_text(replace(orders, links=links).to_json())
    for number in range(orders.processes):
        if orders.share(number).links:
            call(paths.socket(number), {"do": "load"})


def test_a_relay_that_loses_more_than_configured_is_detected() -> None:
    with star() as cluster:
        cluster.inject("n1", loss="5%", delay="1ms")
        before = baseline(cluster)
        override_relay(cluster, loss=0.2)
        run_verdict = check(cluster, seconds=4, table=LENIENT)
        assert run_verdict.grade is Grade.INVALID
        link = link_of(cluster, "n1")
        assert by_name(run_verdict, link, "forward")["loss"].grade is Grade.INVALID
        assert by_name(run_verdict, link, "backward")["loss"].grade is not Grade.INVALID
        verdict_since_baseline = verdict(cluster, before, table=LENIENT)
        assert by_name(verdict_since_baseline, link, "forward")["loss"].grade is Grade.INVALID


def test_a_source_routed_network_that_deviates_from_the_configuration_is_detected() -> None:
    with ring() as cluster:
        cluster.inject("n1", delay="30ms")
        override_relay(cluster, delay=5 * MILLISECOND, loss=0.5)
        verdict = check(cluster, seconds=3, table=LENIENT)
        findings = by_name(verdict, link_of(cluster, "n1"), THERE_AND_BACK)
        assert findings["delay min"].grade is Grade.INVALID
        assert "early" in findings["delay min"].reason
        assert findings["loss"].grade is Grade.INVALID


def test_a_relay_whose_delay_deviates_from_the_configuration_is_detected() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="50ms")
        override_relay(cluster, delay=5 * MILLISECOND)
        verdict = check(cluster)
        finding = by_name(verdict, link_of(cluster, "n1"), "forward")["delay min"]
        assert finding.grade is Grade.INVALID
        assert "early" in finding.reason
        assert verdict.grade is Grade.INVALID


def test_a_killed_relay_makes_only_verdicts_of_that_time_span_invalid() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="10ms")
        before = baseline(cluster)
        clock = time.monotonic_ns()
        killed = relay_pid(cluster)
        os.kill(killed, signal.SIGKILL)
        # Before and after its restart.
        assert verdict(cluster, before, table=LENIENT).grade is Grade.INVALID
        eventually(
            lambda: relay_client.report(Store(), Store().choose(cluster.name)) is not None,
            "a new relay is running",
            30 * SLOW,
        )
        eventually(
            lambda: names_graded(verdict(cluster, clock), Grade.INVALID) == {"relay gap"},
            "the gap is reported",
            30 * SLOW,
        )
        run_verdict = verdict(cluster, before, table=LENIENT)
        assert run_verdict.grade is Grade.INVALID
        (gap,) = [
            finding for finding in run_verdict.findings if finding.what == "relay gap" and "died" in finding.reason
        ]
        assert gap.measured is not None
        assert gap.measured > 0
        later = verdict(cluster, baseline(cluster), table=LENIENT)
        assert names_graded(later, Grade.INVALID) == set()


def test_a_relay_killed_during_probing_makes_the_check_invalid() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="10ms")
        command = [TESTBED, "check", "--name", cluster.name, "--seconds", "3", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            link = link_of(cluster, "n1")
            eventually(lambda: offered_frames(cluster, link) > 100, "probes are being sent", 60 * SLOW)
            os.kill(relay_pid(cluster), signal.SIGKILL)
            output, _ = running.communicate(timeout=60 * SLOW)
        document = json.loads(output)
        assert running.returncode == 9
        assert document["grade"] == "invalid"
        assert "invalid" in {finding["grade"] for finding in document["findings"] if finding["what"] == "relay gap"}


def stop_under_load(relay: int, wire: str, device: str) -> None:
    """Stop the relay (SIGSTOP) while probes arrive at a link's free end, so that a hundred of them wait for 200 ms."""

    def count_arrived() -> int:
        (interface,) = iproute2.query(wire, "ip", "-s", "link", "show", device)
        count: int = interface["stats64"]["rx"]["packets"]
        return count

    started = count_arrived()
    until = time.monotonic() + 60 * SLOW
    while count_arrived() < started + 20 and time.monotonic() < until:
        time.sleep(0.005)  # between two samples
    os.kill(relay, signal.SIGSTOP)
    try:
        stopped, until = count_arrived(), time.monotonic() + 1
        while count_arrived() < stopped + 100 and time.monotonic() < until:
            time.sleep(0.005)  # between two samples
        time.sleep(0.2)  # the injected fault
    finally:
        os.kill(relay, signal.SIGCONT)


def test_a_temporarily_stopped_relay_degrades_its_delays() -> None:
    """100 of 2,000 probes exceed the first limit: more than 1 %."""
    table = LENIENT
    for what in ("delay p99", "relay lateness p99"):
        table = table.with_limits(what, degraded=50 * MILLISECOND / SLOW, invalid=OUT_OF_REACH)
    with star() as cluster:
        cluster.inject("n1", delay="5ms")
        link = link_of(cluster, "n1")
        device, _ = free_ends(cluster.state.layout, link)
        relay, wire = relay_pid(cluster), cluster.state.namespaces[namespace_names.WIRE]
        stopper = os.fork()
        if stopper == 0:
            status = 1
            try:
                stop_under_load(relay, wire, device)
                status = 0
            finally:
                os._exit(status)
        verdict = check(cluster, table=table)
        assert os.waitstatus_to_exitcode(os.waitpid(stopper, 0)[1]) == 0
        findings = by_name(verdict, link, "forward")
        assert findings["delay p99"].grade is Grade.DEGRADED
        assert findings["relay lateness p99"].grade is Grade.DEGRADED
        assert findings["loss"].grade is Grade.TRUSTED
        assert names_graded(verdict, Grade.INVALID) == set()


def test_an_injection_within_the_time_span_is_reported_and_its_losses_are_undecided() -> None:
    with star() as cluster:
        cluster.inject("n1", loss="30%", delay="1ms")
        before = baseline(cluster)
        cluster.inject("n1", loss="1%")
        run_verdict = verdict(cluster, before, table=LENIENT)
        assert any("loss 1%" in note for note in run_verdict.notes)
        assert {finding.grade for finding in run_verdict.findings if finding.what == "loss"} <= {Grade.UNDECIDED}


# The command


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TESTBED, *arguments], capture_output=True, text=True, timeout=120 * SLOW, env={**os.environ, **environment}
    )


def test_the_command_prints_a_table_or_json_and_its_exit_code_is_the_grade() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="20ms")
        result = run("check", "--name", cluster.name, "--seconds", "0.3", "--json", TESTBED_SLOW="1000")
        document = json.loads(result.stdout)
        jsonschema.validate(document, schema_of("check"))
        assert {"trusted": 0, "degraded": 8, "invalid": 9}[document["grade"]] == result.returncode
        assert document["slow"] == 1000
        text = run("check", "n2", "--name", cluster.name, "--seconds", "0.2")
        assert f"{link_of(cluster, 'n2')} forward, carried by direct" in text.stdout
        assert "timer floor p99" in text.stdout
        assert f"{cluster.name} is " in text.stdout.splitlines()[-1]
        assert "Traceback" not in text.stderr


def test_a_rule_that_never_matches_is_reported_and_does_not_lower_the_grade() -> None:
    with star() as cluster:
        cluster.inject("n1", delay="5ms", rules=["drop tcp.dport == 5001"])
        verdict = check(cluster, seconds=0.3, table=LENIENT)
        assert any("tcp.dport == 5001" in note for note in verdict.notes)
        assert names_graded(verdict, Grade.INVALID) | names_graded(verdict, Grade.DEGRADED) == set()


def test_a_usage_error_is_explained() -> None:
    with star() as cluster:
        with pytest.raises(NotFoundError, match="n9"):
            check(cluster, "n9")
        with pytest.raises(DescriptionError, match="seconds"):
            check(cluster, seconds=-1)
        result = run("check", "--name", cluster.name, TESTBED_SLOW="fast")
        assert result.returncode == 2
        assert "TESTBED_SLOW" in result.stderr
