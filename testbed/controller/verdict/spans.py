"""Findings on a span, from two snapshots of counters and the events between them: losses and lateness of the emulator, and
the state of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from testbed.cluster.faults.injections import BOTH, in_force
from testbed.cluster.records.state import State
from testbed.controller.probing.expectations import expect
from testbed.controller.verdict import statistics
from testbed.controller.verdict.counter_snapshots import CounterSnapshot
from testbed.controller.verdict.thresholds import Table
from testbed.controller.verdict.verdicts import Finding, Grade
from testbed.kernel import softnet
from testbed.kernel.loss_classifier import Counters

_SECOND: Final = 1_000_000_000  # ns
_MIN_SPAN: Final = 100_000_000  # ns, some ten ticks, for shares of processor time
_MIN_P99_FRAMES: Final = 100  # for a 99th percentile
_MIN_BUSY_SHARE: Final = 0.1  # of the relay, for its ceiling
_CEILING_FINDINGS: Final = ("relay lateness p99", "relay lost")
"""Findings on the relay that a lack of processor time explains."""

_LOSS_COUNTERS: Final = ("overrun", "oversized", "unsent")  # of the relay
_AGENT_LOSS_COUNTERS: Final = ("dropped", "unsent", "overflowed")

Event = Mapping[str, Any]

COUNTERS_CONTINUE: Final = "counters of rules (nth, first, every) and chance continue"
"""Note on a restarted relay, which takes over the counters of its predecessor."""


def _finding(
    table: Table,
    name: str,
    measured: float,
    reason: str = "",
    place: tuple[str, str] = ("", ""),
    configured: float = 0.0,
) -> Finding:
    """Return a finding for a value that is expected to be 0. place: link and direction. configured: base of a relative
    limit."""
    return Finding(name, *place, 0.0, measured, table.unit(name), table.grade(name, measured, configured), reason)


# The emulator


def relay_findings(
    state: State, before: CounterSnapshot, after: CounterSnapshot, events: Sequence[Event], table: Table
) -> list[Finding]:
    """Return findings on every direction that the relay carries. events: all events, also those before the span."""
    carried = [link for link in state.layout.links if state.datapaths.get(link.name) == "relay"]
    span = [event for event in events if event["clock"] >= before.clock]
    cut = links_taken_down(state, events, before.clock)
    findings = _relay_gap_findings(span, before, after, table, carried=bool(carried))
    if after.relay is None:
        return [*findings, *_lost_before_healed(span, (), table)]
    ceiling = _forwarding_ceiling(before, after)
    for link in carried:
        for direction in BOTH:
            now = after.relay["links"].get(link.name, {}).get(direction)
            if now is None:
                reason = "the relay should carry the link, but does not report it"
                findings.append(Finding("relay lost", link.name, direction, 0, None, "frames", Grade.INVALID, reason))
                continue
            earlier = _relay_baseline(before, after, link.name, direction, events)
            delay = in_force(link, direction, state.injected).impairment.delay
            direction_findings = _direction_findings(
                table, link.name, direction, now, earlier, delay, is_cut=link.name in cut
            )
            findings += [_with_ceiling(finding, ceiling) for finding in direction_findings]
    return [*findings, *_lost_before_healed(span, {link.name for link in carried}, table)]


def _forwarding_ceiling(before: CounterSnapshot, after: CounterSnapshot) -> str:
    """Describe the rate at which the relay forwarded frames, and its ceiling: the frames that it forwards in one second of
    processor time. Empty if a relay process was replaced in the span, or if the relay was mostly idle, when its other work
    would distort the ceiling."""
    ran = sum(ran - before.ran[pid] for pid, ran in after.ran.items() if pid in before.ran)
    frames, span = _frames_offered(after) - _frames_offered(before), after.clock - before.clock
    if frames <= 0 or span <= 0 or ran < _MIN_BUSY_SHARE * span or after.ran.keys() != before.ran.keys():
        return ""
    rate, ceiling = frames * _SECOND // span, frames * _SECOND // ran
    return f"the relay forwarded {rate:,} frames/s of all links, and a processor forwards {ceiling:,} at most here"


def _frames_offered(snapshot: CounterSnapshot) -> int:
    links = snapshot.relay["links"].values() if snapshot.relay is not None else ()
    return sum(report["counters"]["offered"] for link in links for report in link.values())


def _with_ceiling(finding: Finding, ceiling: str) -> Finding:
    """Add the relay's ceiling to a finding for which a lack of processor time may be the reason."""
    if not ceiling or finding.what not in _CEILING_FINDINGS or finding.grade not in (Grade.DEGRADED, Grade.INVALID):
        return finding
    return replace(finding, reason="; ".join(filter(None, (finding.reason, ceiling))))


def _lost_before_healed(span: Iterable[Event], carried: Collection[str], table: Table) -> Iterator[Finding]:
    """Yield findings on losses of links that the relay no longer carries, from its events in the span."""
    lost: Counter[tuple[str, str]] = Counter()
    for event in span:
        if event["event"] == "relay behind" and event["link"] not in carried:
            lost[event["link"], event["direction"]] += event["lost"]
    for key, count in lost.items():
        if count:
            yield _finding(table, "relay lost", count, "reported by the relay while it carried the link", key)


def agent_findings(
    before: CounterSnapshot, after: CounterSnapshot, events: Sequence[Event], table: Table
) -> list[Finding]:
    """Return findings on the agents of shared NICs. events: all events, also those before the span."""
    span = [event for event in events if event["clock"] >= before.clock]
    ended = any(event["event"] == "NICs shared no more" for event in span)
    if not after.agents and (not before.agents or ended):
        return []
    gaps: dict[str, list[tuple[int, str]]] = {}
    for event in span:
        if event["event"] == "NIC agent restarted":
            gap_begin, gap_end = event["gap"]
            reason = "the agent died and was restarted, which ended operations in progress of its hosts"
            gaps.setdefault(event["node"], []).append((max(1, gap_end - gap_begin), reason))
    for node in before.agents.keys() | after.agents.keys():
        earlier, now = before.agents.get(node), after.agents.get(node)
        if now is None:
            gaps.setdefault(node, []).append((max(1, after.clock - before.clock), "a required agent does not answer"))
        elif earlier is not None and earlier["pid"] != now["pid"] and node not in gaps:  # not recorded yet
            gaps[node] = [(max(1, after.clock - before.clock), "the agent died and was restarted in the span")]
    reasons = [f"{node}: {reason}" for node, node_gaps in sorted(gaps.items()) for _, reason in node_gaps]
    longest = max((length for node_gaps in gaps.values() for length, _ in node_gaps), default=0)
    findings = [_finding(table, "NIC agent gap", longest, "; ".join(dict.fromkeys(reasons)))]
    for node, now in sorted(after.agents.items()):
        if now is not None:
            earlier = before.agents.get(node)
            since = {
                name: now[name] - (earlier[name] if earlier and earlier["pid"] == now["pid"] else 0)
                for name in _AGENT_LOSS_COUNTERS
            }
            lost = sum(since.values())
            detail = (
                f"{node}: " + ", ".join(f"{count} {name}" for name, count in since.items() if count) if lost else ""
            )
            findings.append(_finding(table, "NIC lost", lost, detail))
    return findings


def links_taken_down(state: State, events: Sequence[Event], since: int) -> set[str]:
    """Return the links that were down, as requested, at some time since `since`: losses at their ends are intended. since:
    monotonic nanoseconds. events: all events, also earlier ones."""
    cuts = {event["number"]: event.get("down", ()) for event in events if event["event"] == "inject"}
    links = {link for injection in state.injected for link in injection.down}
    for event in events:
        if event["clock"] >= since and event["event"] in ("inject", "heal"):
            links.update(cuts.get(event["number"], ()))
    return links


def _relay_gap_findings(
    span: Sequence[Event], before: CounterSnapshot, after: CounterSnapshot, table: Table, *, carried: bool
) -> list[Finding]:
    findings = []
    open_since: Event | None = None
    for event in span:
        match event["event"]:
            case "relay died":
                open_since = event
            case "relay restarted":
                open_since = None
                gap_begin, gap_end = event["gap"]
                lost = f"{event['lost']} frames were lost meanwhile, and {event['also_lost']}"
                reason = f"the relay died and was restarted; {lost}; {COUNTERS_CONTINUE}"
                findings.append(_finding(table, "relay gap", max(1, gap_end - gap_begin), reason))
            case "relay not restarted":
                open_since = open_since or event
    if carried and after.relay is None:
        since = open_since["clock"] if open_since is not None else before.clock
        findings.append(_finding(table, "relay gap", max(1, after.clock - since), "the required relay does not answer"))
    elif (
        not findings
        and before.relay is not None
        and after.relay is not None
        and before.relay["begun"] != after.relay["begun"]
        and not any(event["event"] == "replugged" for event in span)
    ):
        findings.append(_finding(table, "relay gap", 1, "a different relay runs now"))
    if carried and not findings:
        findings.append(_finding(table, "relay gap", 0))
    return findings


def _relay_baseline(
    before: CounterSnapshot, after: CounterSnapshot, link: str, direction: str, events: Sequence[Event]
) -> Mapping[str, Any]:
    """Return the counters of the same relay at the beginning of the span; without a snapshot of that time, the losses that
    the relay had reported by then."""
    if before.relay is not None:
        earlier: Mapping[str, Any] = before.relay["links"].get(link, {}).get(direction, {})
        return earlier if _is_continuous(before, after, link, direction) else {}
    restarted = max((event["clock"] for event in events if event["event"] == "relay restarted"), default=0)
    reported = [
        event
        for event in events
        if event["event"] == "relay behind"
        and restarted <= event["clock"] < before.clock
        and (event["link"], event["direction"]) == (link, direction)
    ]
    return {"reported_lost": sum(event["lost"] for event in reported)}


def _is_continuous(before: CounterSnapshot, after: CounterSnapshot, link: str, direction: str) -> bool:
    """Whether one process has counted the direction throughout the span: a restarted one counts from 0."""
    earlier, later = _relay_counters(before, link, direction), _relay_counters(after, link, direction)
    return earlier is not None and later is not None and earlier["offered"] <= later["offered"]


def _direction_findings(
    table: Table,
    link: str,
    direction: str,
    now: Mapping[str, Any],
    earlier: Mapping[str, Any],
    delay: int,
    *,
    is_cut: bool,
) -> list[Finding]:
    """Return findings on a direction that the relay carries. delay: configured, nanoseconds. is_cut: the link was taken
    down."""
    emulator, before_emulator = now["emulator"], earlier.get("emulator", {})
    since = {name: count - before_emulator.get(name, 0) for name, count in emulator.items()}
    lost = sum(since[name] for name in _LOSS_COUNTERS) - earlier.get("reported_lost", 0)
    detail = ", ".join(f"{since[name]} {name}" for name in _LOSS_COUNTERS if since[name])
    key = link, direction
    findings = [_finding(table, "relay lost", max(0, lost), detail, key)]
    if since["finished"] > 0:
        reason = "a sender's offloads were on: the relay computed checksums and segments for it, which takes time"
        findings.append(_finding(table, "relay finished", since["finished"], reason, key))
    if since["down"] > 0:
        name, reason = "relay at a down end", "they could not leave"
        if is_cut:
            name, reason = "relay at an end taken down", "they could not leave, as requested"
        findings.append(_finding(table, name, since["down"], reason, key))
    earlier_buckets = earlier.get("lateness", {}).get("buckets", [0] * len(now["lateness"]["buckets"]))
    counts = [count - before for count, before in zip(now["lateness"]["buckets"], earlier_buckets, strict=True)]
    if (frames := sum(counts)) > 0:
        late = bucket_quantile(counts, 0.99)
        if frames < _MIN_P99_FRAMES:
            reason = f"{frames} frames are too few, at least {_MIN_P99_FRAMES} are needed"
            findings.append(Finding("relay lateness p99", link, direction, 0, late, "ns", Grade.UNDECIDED, reason))
        else:
            reason = "since the relay started, not only in the span" if "reported_lost" in earlier else ""
            findings.append(_finding(table, "relay lateness p99", late, reason, key, delay))
    return findings


def bucket_quantile(counts: Sequence[int], share: float) -> float:
    """Estimate a quantile of values from their numbers of binary digits, by interpolation within a power of two.
    counts: the n-th is the number of values with n binary digits."""
    rank, below = share * sum(counts), 0
    for digits, count in enumerate(counts):
        if count and below + count >= rank:
            low = (1 << digits) >> 1
            return low + low * (rank - below) / count
        below += count
    return 0.0


def classifier_findings(before: CounterSnapshot, after: CounterSnapshot, table: Table) -> list[Finding]:
    """Return findings on every direction whose losses a classifier decides."""
    findings = []
    for (link, direction), now in after.classifiers.items():
        earlier = _earlier_counters(before, (link, direction), now)
        counts = {
            "without space in the table of flows": now.untold - earlier.untold,
            "passed because the Gilbert-Elliott state was busy": now.unsteady - earlier.unsteady,
            "merged by an offload": now.merged - earlier.merged,
        }
        detail = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        total = sum(counts.values())
        findings.append(_finding(table, "classifier inexact", total, detail, (link, direction)))
    return findings


def _earlier_counters(before: CounterSnapshot, key: tuple[str, str], now: Counters) -> Counters:
    """Return the earlier counters of a direction's classifier; all 0 if it was installed since then."""
    earlier = before.classifiers.get(key, Counters())
    return earlier if earlier.offered <= now.offered else Counters()


def replug_findings(events: Iterable[Event], since: int, table: Table) -> list[Finding]:
    """Return findings on changes of datapaths at which frames were lost or early. since: monotonic nanoseconds."""
    findings = []
    for event in events:
        if event["clock"] >= since and event["event"] == "replugged" and (event["lost"] or event["early"]):
            reason = f"{event['lost']} lost, {event['early']} early, from {event['before']} to {event['after']}"
            findings.append(_finding(table, "replugged", event["lost"] + event["early"], reason, (event["link"], "")))
    return findings


# Losses, by the datapaths' counters


def counted_losses(
    state: State, before: CounterSnapshot, after: CounterSnapshot, table: Table, *, changed: bool
) -> list[Finding]:
    """Compare the losses that relay and classifiers have decided with the impairments. changed: whether impairments changed
    in the span."""
    findings = []
    for link in state.layout.links:
        for direction in BOTH:
            counted = _count_random_losses(before, after, link.name, direction)
            expectation = expect(in_force(link, direction, state.injected).impairment, {})
            if counted is None or not counted[1] or expectation.loss.unpredictable:
                continue
            lost, offered = counted
            configured = expectation.loss.share
            interval = statistics.share_interval(lost, offered, expectation.loss.inflation)
            outside = lost / offered if configured == 0 else max(interval[0] - configured, configured - interval[1], 0)
            grade, reason = table.grade("loss", outside), f"{lost:,} of {offered:,}, by counters of the datapath"
            if changed:
                grade, reason = Grade.UNDECIDED, "the configuration changed in the span"
            elif grade is Grade.TRUSTED and offered < expectation.loss.min_probes:
                grade, reason = (
                    Grade.UNDECIDED,
                    f"{offered:,} frames are too few; a deviation of 20% needs {expectation.loss.min_probes:,}",
                )
            findings.append(
                Finding("loss", link.name, direction, configured, lost / offered, "share", grade, reason, interval)
            )
    return findings


def _count_random_losses(
    before: CounterSnapshot, after: CounterSnapshot, link: str, direction: str
) -> tuple[int, int] | None:
    """Return the frames lost by chance or pattern, and the frames whose fate was not decided by rules; None if no datapath
    counts them."""
    if (now := after.classifiers.get((link, direction))) is not None:
        before_counters = _earlier_counters(before, (link, direction), now)
        return now.lost - before_counters.lost, now.offered - before_counters.offered
    counters = _relay_counters(after, link, direction)
    if counters is None:
        return None
    earlier = _relay_counters(before, link, direction) if _is_continuous(before, after, link, direction) else None
    if earlier is None:
        earlier = dict.fromkeys(counters, 0)
    since = {name: count - earlier[name] for name, count in counters.items()}
    return since["loss"] + since["gemodel"] + since["loss_pattern"], since["offered"] - since["rule"]


def _relay_counters(snapshot: CounterSnapshot, link: str, direction: str) -> Mapping[str, int] | None:
    if snapshot.relay is None:
        return None
    counters: Mapping[str, int] | None = snapshot.relay["links"].get(link, {}).get(direction, {}).get("counters")
    return counters


def count_overflowed(before: CounterSnapshot, after: CounterSnapshot, link: str, direction: str) -> int:
    """Return the number of frames that the relay's model dropped because the queue was full."""
    now, earlier = _relay_counters(after, link, direction), _relay_counters(before, link, direction)
    if now is None:
        return 0
    return now["queue"] - (
        earlier["queue"] if earlier is not None and _is_continuous(before, after, link, direction) else 0
    )


def had_active_rules(before: CounterSnapshot, after: CounterSnapshot, link: str, direction: str) -> bool:
    """Whether an injected rule decided a frame's fate in the span."""
    now, earlier = _relay_rules(after, link, direction), _relay_rules(before, link, direction)
    return any(rule["decided"] > earlier.get(name, {"decided": 0})["decided"] for name, rule in now.items())


def _relay_rules(snapshot: CounterSnapshot, link: str, direction: str) -> Mapping[str, Any]:
    rules: Mapping[str, Any] = {}
    if snapshot.relay is not None:
        rules = snapshot.relay["links"].get(link, {}).get(direction, {}).get("rules", {})
    return rules


# The machine


def machine_findings(before: CounterSnapshot, after: CounterSnapshot, table: Table) -> list[Finding]:
    """Return findings on backlog drops and processor time of the machine."""
    span = after.clock - before.clock
    reason = "counted machine-wide: frames of this cluster or of others"
    drops = softnet.drops_between(before.backlog, after.backlog)
    findings = [_finding(table, "softnet drops", drops, reason if drops else "")]
    ticks = after.ticks - before.ticks
    shares = []
    if ticks > 0:
        shares.append(_finding(table, "steal", (after.stolen - before.stolen) / ticks))
    waits = [waited - before.waited[pid] for pid, waited in after.waited.items() if pid in before.waited]
    if waits and span > 0:
        shares.append(_finding(table, "relay waiting", max(waits) / span))
    if span < _MIN_SPAN:
        reason = f"{span / 1e6:.0f} ms are too short for shares of processor time, {_MIN_SPAN / 1e6:.0f} ms are needed"
        shares = [replace(share, grade=Grade.UNDECIDED, reason=reason) for share in shares]
    findings += shares
    if after.loads and span > 0:
        cpu_time = sum(ran - before.loads.get(pid, 0) for pid, ran in after.loads.items())
        findings.append(_finding(table, "load", max(0, cpu_time) / span, "of one processor, by injected loads"))
    return findings


def sleeper_findings(floor: Sequence[int], lag: Sequence[int], table: Table) -> list[Finding]:
    """Judge wake-up latencies. floor, lag: floor and lag of a sleeper before and during probing, nanoseconds, ascending."""
    findings = []
    for name, values in (("timer floor p99", floor), ("scheduling lag p99", lag)):
        if values:
            p50, p99 = (statistics.quantile(values, share) for share in (0.5, 0.99))
            reason = f"p50 {p50 / 1e6:.3f} ms, worst {values[-1] / 1e6:.3f} ms of {len(values):,} wake-ups"
            findings.append(_finding(table, name, p99, reason))
    return findings


def describe_changes(events: Iterable[Event], since: int) -> list[str]:
    """Describe the injections and healings since `since`, monotonic nanoseconds."""
    return [
        f"{event['event']}: {event['what']}"
        for event in events
        if event["clock"] >= since and event["event"] in ("inject", "heal")
    ]


def idle_rules(after: CounterSnapshot) -> list[str]:
    """Return the relay's notes on rules that have decided no frame's fate, each once: the directions of links often have
    equal rules. A rule that has decided a frame's fate on any direction has no note."""
    if after.relay is None:
        return []
    decided = {
        rule["text"]
        for link in after.relay["links"].values()
        for direction in link.values()
        for rule in direction["rules"].values()
        if rule["decided"]
    }
    idle = [
        note
        for note in after.relay["idle_rules"]
        if not note.startswith(tuple(f"the rule {text!r} " for text in decided))
    ]
    return list(dict.fromkeys(idle))
