"""JSON Schemas of the documents printed with ``--json``.

Each document has ``format``, the version of its form, and ``kind``, the command. Within a version fields may be added;
existing ones keep their names and meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from testbed.cli.consoles import format_of

Schema: TypeAlias = Mapping[str, object]

_TEXT: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_FLAG: Schema = {"type": "boolean"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _with_description(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_DIRECTION = _object(
    frames=_with_description(_INTEGER, "frames since the link was created"),
    bytes=_with_description(_INTEGER, "bytes in these frames"),
    dropped=_with_description(_INTEGER, "frames that the kernel dropped"),
    impairment=_with_description(
        {"type": "object"},
        "impairments in force, by the keys of a description; times in ns, rates in bit/s, sizes in bytes",
    ),
)
_INJECTED = _object(
    number=_with_description(_INTEGER, "number for 'testbed heal'"),
    what=_TEXT,
    links=_list(_TEXT),
    seconds_left=_with_description(_NUMBER_OR_NULL, "seconds until it heals by itself; null: never"),
)
_IMPAIRED = _object(
    name=_with_description(_TEXT, "the link"),
    datapath=_with_description(_TEXT, "netem, tc or relay"),
    notes=_with_description(
        _list(_TEXT), "approximations of the datapath, and reasons why other datapaths were not chosen"
    ),
)
_ROUND_TRIP: Schema = {
    **_object(
        nodes=_list(_TEXT),
        delay=_with_description(_INTEGER, "ns, sum over both directions"),
        jitter=_with_description(_INTEGER, "ns, sum over both directions"),
        loss=_with_description(_NUMBER, "share of round trips that lose a frame"),
        rate=_with_description(_INTEGER, "bit/s of the slowest link from the first to the second; 0: unlimited"),
        rules=_with_description(_INTEGER, "fault rules on the path"),
        down=_with_description(_FLAG, "a link of the path is down"),
    ),
    "type": ["object", "null"],
}
_NIC = _object(
    name=_TEXT,
    mac=_TEXT,
    mtu=_INTEGER,
    addresses=_with_description(_list(_TEXT), "with prefix length"),
    link=_with_description(_TEXT, "name of the NIC's link"),
)
_AGENT = _with_description(
    {
        **_object(
            pid=_with_description(_INTEGER, "pid of the agent; 0: it does not answer"),
            hosts=_list(_object(function=_INTEGER, pid=_with_description(_INTEGER, "pid of the attached process"))),
            lost=_with_description(_INTEGER, "frames that were not read in time, or not sent"),
        ),
        "type": ["object", "null"],
    },
    "agent of the node's NIC; null: the NIC is not shared",
)
_NODE = _object(
    name=_TEXT,
    tags=_list(_TEXT),
    namespace=_with_description(_TEXT, "the path of its network namespace"),
    exists=_with_description(_FLAG, "whether the namespace exists"),
    programs=_with_description(_list(_INTEGER), "pids of the programs in the node"),
    agent=_AGENT,
    nics=_list(_NIC),
)
_PORT = _object(number=_INTEGER, link=_TEXT)
_SWITCH = _object(
    name=_TEXT,
    kind=_TEXT,
    learns=_with_description(_FLAG, "false: it forwards by planned tables"),
    ports=_list(_PORT),
)
_LINK = _object(
    name=_TEXT,
    tags=_list(_TEXT),
    a=_with_description(_TEXT, "OWNER:PORT"),
    b=_with_description(_TEXT, "OWNER:PORT"),
    datapath=_with_description(_TEXT, "direct, netem, tc or relay"),
    notes=_with_description(
        _list(_TEXT), "approximations of the datapath, and reasons why other datapaths were not chosen"
    ),
    exists=_with_description(_FLAG, "whether both ends exist"),
    up=_FLAG,
    forward=_with_description(_DIRECTION, "a to b"),
    backward=_with_description(_DIRECTION, "b to a"),
)
_CLUSTER = _object(
    name=_TEXT,
    origin=_with_description(_TEXT, "path of the description, topology:NAME, or python"),
    phase={"enum": ["building", "up", "changing", "removing"]},
    lasting=_with_description(_FLAG, "false: the cluster ends with its owner"),
    owner=_with_description(_INTEGER, "pid of the process that brought it up"),
    created=_with_description(_INTEGER, "seconds since the epoch"),
    nodes=_list(_NODE),
    switches=_list(_SWITCH),
    links=_list(_LINK),
    shared=_with_description(
        {"type": ["object", "null"]}, "sharing of its NICs: protocol, functions, owner; null: the NICs are not shared"
    ),
    injected=_with_description(_list(_INJECTED), "injections in force, on top of the declared impairments"),
)
_PROGRAM = _object(
    pid=_INTEGER,
    name=_TEXT,
    cpu=_with_description(_NUMBER, "share of one processor: 0.5 is half of it"),
    memory=_with_description(_INTEGER, "resident bytes"),
)
_FLOW = _object(
    frames=_with_description(_INTEGER, "since the link was created"),
    bytes=_INTEGER,
    rate=_with_description(_NUMBER, "frames/s"),
    bits=_with_description(_NUMBER, "bit/s"),
    dropped=_with_description({"type": "object"}, "frames by cause"),
    drop_rate=_with_description(_NUMBER, "frames/s"),
    fates=_with_description({"type": "object"}, "frames by other fates: corrupted, duplicated, reordered, delayed"),
    declared=_with_description(_TEXT, "text of the declared impairments"),
    injected=_with_description(_TEXT, "text of the injected impairments"),
)
_SNAPSHOT = _object(
    cluster=_TEXT,
    origin=_TEXT,
    time=_with_description(_INTEGER, "wall clock, ns"),
    age=_with_description(_NUMBER, "seconds since the cluster came up"),
    span=_with_description(_NUMBER, "seconds over which rates are averaged"),
    summary=_TEXT,
    phase=_TEXT,
    warning=_with_description(_TEXT, "a problem of the cluster, or empty"),
    nodes=_list(
        _object(
            name=_TEXT,
            state={"enum": ["up", "GONE"]},
            nics=_list(
                _object(
                    name=_TEXT,
                    mac=_TEXT,
                    addresses=_list(_TEXT),
                    link=_TEXT,
                    out=_FLOW,
                    back=_FLOW,
                    agent=_with_description({"type": "object"}, "counters of a shared NIC's firmware"),
                )
            ),
            programs=_list(_PROGRAM),
            tags=_list(_TEXT),
        )
    ),
    links=_list(
        _object(
            name=_TEXT,
            a=_TEXT,
            b=_TEXT,
            state={"enum": ["up", "down", "GONE"]},
            datapath=_TEXT,
            forward=_with_description(_FLOW, "a to b"),
            backward=_with_description(_FLOW, "b to a"),
            tags=_list(_TEXT),
        )
    ),
    faults=_list(
        _object(
            number=_INTEGER,
            what=_TEXT,
            links=_list(_TEXT),
            seconds_left=_with_description(_NUMBER_OR_NULL, "seconds until it heals by itself; null: never"),
        )
    ),
    carriers=_with_description(_list(_PROGRAM), "the testbed's own processes, such as the relay"),
    events=_with_description(_list(_object(time=_INTEGER, kind=_TEXT, where=_TEXT, what=_TEXT)), "most recent events"),
    switches=_list(_object(name=_TEXT, kind=_TEXT)),
)
_LAYOUT: Schema = {
    "type": "object",
    "description": "the cluster with all derived keys; keys with default values are left out",
}
_GRADE: Schema = {"enum": ["trusted", "degraded", "invalid"]}
_FINDING = _object(
    what=_with_description(_TEXT, "name of the finding in the table of thresholds"),
    link=_with_description(_TEXT, "empty: the whole machine"),
    direction={"enum": ["forward", "backward", ""]},
    asked=_NUMBER_OR_NULL,
    measured=_NUMBER_OR_NULL,
    unit=_with_description(_TEXT, "unit of asked, measured and interval: ns, bit/s, share, frames"),
    interval=_with_description({"type": ["array", "null"], "items": _NUMBER}, "confidence interval at 1e-6"),
    grade=_with_description(
        {"enum": ["trusted", "undecided", "degraded", "invalid", "failed"]}, "undecided: the sample is too small"
    ),
    reason=_TEXT,
)
_PROTOCOLS = _list(
    _object(
        name=_TEXT,
        package=_TEXT,
        version=_TEXT,
        ethertype=_with_description(_INTEGER, "0: the kernel's own protocol"),
        modes=_list(_TEXT),
        nics=_with_description(_list(_TEXT), "execution of its firmware: inline, shared"),
        fabrics=_with_description(_list(_TEXT), "the kinds of switches that it supports"),
        profiles=_with_description(_list(_TEXT), "names of its cost profiles"),
        settings=_with_description(
            {"type": "object"}, "settings of its firmware with their defaults; times in ns, sizes in bytes"
        ),
        problem=_with_description(_TEXT, "reason why it is unavailable, or empty"),
    )
)
_CAPABILITIES = _list(_object(name=_TEXT, available=_FLAG, detail=_TEXT, meaning=_TEXT, remedy=_TEXT))
_REPORT: Schema = {
    **_object(
        host_name=_TEXT,
        version=_with_description(_TEXT, "installed version of testbed"),
        python=_TEXT,
        kernel=_TEXT,
        cores=_INTEGER,
        memory=_with_description(_INTEGER, "bytes"),
        underlay_mtu=_with_description(
            _INTEGER, "MTU of the interface with the underlay address; 0: no underlay address"
        ),
        capabilities=_CAPABILITIES,
    ),
    "type": ["object", "null"],
}
_PROBLEM = _object(path=_TEXT, found=_TEXT, expected=_TEXT, suggestion=_TEXT)

DOCUMENTS: Mapping[str, Schema] = {
    "status": _object(clusters=_list(_CLUSTER)),
    "top": _SNAPSHOT,
    "up": _object(
        cluster=_TEXT,
        origin=_TEXT,
        dry_run=_FLAG,
        operations=_with_description(_list(_TEXT), "executed operations, or with dry_run planned ones"),
        impaired=_list(_IMPAIRED),
        former=_with_description(_list(_TEXT), "clusters that are still up from this file under its former names"),
        warnings=_with_description(_list(_TEXT), "NICs of different MTUs in one network"),
    ),
    "inject": _object(
        cluster=_TEXT,
        number=_with_description(_INTEGER, "number for 'testbed heal'"),
        what=_TEXT,
        links=_list(_object(name=_TEXT, datapath=_TEXT)),
        round_trip=_with_description(_ROUND_TRIP, "round trip between two nodes, with all impairments in force"),
        seconds=_with_description(_NUMBER, "seconds until the injection was in force"),
    ),
    "heal": _object(
        cluster=_TEXT,
        healed=_list(_object(number=_INTEGER, what=_TEXT)),
        idle_rules=_with_description(_list(_TEXT), "a sentence for each rule that never decided a frame's fate"),
    ),
    "check": _object(
        cluster=_TEXT,
        grade=_GRADE,
        seconds=_with_description(_NUMBER, "duration of the measurement"),
        slow=_with_description(_NUMBER, "the slow-machine factor"),
        findings=_list(_FINDING),
        notes=_with_description(_list(_TEXT), "warnings, such as rules that decided nothing"),
    ),
    "run": {
        **_object(
            cluster=_TEXT,
            folder=_with_description(_TEXT, "the run's folder"),
            verdict=_with_description({"type": "object"}, "grade, seconds, notes, findings"),
            workload=_TEXT,
            settings=_with_description({"type": "object"}, "settings of the workload; times in ns, sizes in bytes"),
            protocol=_TEXT,
            mode={"enum": ["sim", "live", "dilated"]},
            seed=_INTEGER,
            seconds=_with_description(_NUMBER, "duration of the run"),
            rows=_with_description(_list({"type": "object"}), "measurements; keys end with their unit"),
            results=_with_description(
                _list({"type": "object"}), "return values of the programs, by repetition and node"
            ),
            counted=_with_description(
                _list({"type": "object"}), "counters of the NICs' firmware, by repetition and node"
            ),
            used=_with_description(
                _list({"type": "object"}),
                "with a profile, by repetition, node and part: jobs, busy_ns, waited_ns, share; for a host's core "
                "also the nanoseconds by cause, as trap_ns",
            ),
            switches=_with_description(
                _list({"type": "object"}),
                "by repetition and modelled switch: frames that were dropped or truncated, by cause; in "
                "namespaces also stops: number of STOPs sent to its NICs",
            ),
            commands=_with_description(_list({"type": "object"}), "run of commands: node, command, code, log"),
        ),
        "required": ["cluster", "folder", "verdict"],
    },
    "run-series": _object(
        folder=_TEXT,
        report=_with_description(_TEXT, "path of the report; empty: no report"),
        runs=_list(
            _object(
                protocol=_TEXT,
                mode={"enum": ["sim", "live", "dilated"]},
                verdict=_with_description(_TEXT, "grade, or reason why there is no result"),
                run=_with_description({"type": ["object", "null"]}, "result as of 'run'; null: no result"),
            )
        ),
    ),
    "compare": _object(
        threshold=_with_description(_NUMBER, "minimum relative difference"),
        worse=_with_description(_FLAG, "a measure is significantly worse, beyond the threshold"),
        differences=_with_description(_list(_TEXT), "differing settings"),
        notes=_list(_TEXT),
        measures=_list(
            _object(
                point=_with_description(
                    {"type": "object"}, "conditions of the measurement: node, size_bytes, ...; for a paper its row"
                ),
                measure=_with_description(_TEXT, "key of a row; for a paper the unit of its row"),
                a=_with_description(_NUMBER, "median; for a paper its value"),
                b=_with_description(_NUMBER, "median"),
                samples=_with_description(_list(_INTEGER), "numbers of samples of a and b"),
                ratio=_with_description(_NUMBER_OR_NULL, "ratio of b to a; null: infinite"),
                low=_with_description(_NUMBER_OR_NULL, "confidence interval; null: too few samples, or infinite"),
                high=_NUMBER_OR_NULL,
                judgement=_with_description(_TEXT, "worse, better, undecided or no difference"),
            )
        ),
    ),
    "study": _object(
        name=_TEXT,
        folder=_TEXT,
        points=_list(
            _object(
                point=_with_description(_INTEGER, "number of the point in the order of the study's file, from 0"),
                parameters=_with_description({"type": "object"}, "parameters of the run, by name"),
                outcome=_with_description(_TEXT, "outcome of the last attempt: done or failed"),
                error=_with_description(_TEXT, "reason of the failure"),
                verdict=_with_description(_TEXT, "the run's grade"),
                attempt=_with_description(_INTEGER, "number of the last attempt, from 1"),
                seconds=_NUMBER,
                rows=_list({"type": "object"}),
            )
        ),
    ),
    "study-points": _object(
        name=_TEXT, points=_with_description(_list({"type": "object"}), "the parameters of each run, by name")
    ),
    "reproduce": _object(
        folder=_with_description(_TEXT, "folder of the points, for --continue"),
        mode={"enum": ["sim", "dilated"]},
        rows=_list(
            _object(
                system=_TEXT,
                place=_with_description(_TEXT, "table, figure or section of the paper"),
                table=_with_description(_TEXT, "table with a separate error summary, or empty"),
                name=_TEXT,
                unit=_TEXT,
                paper=_NUMBER,
                ours=_with_description(_NUMBER_OR_NULL, "reproduced value; null: a value of the paper only"),
                error=_with_description(_NUMBER_OR_NULL, "relative deviation from the paper"),
                kind={"enum": ["calibrated", "predicted", "paper"]},
                source=_TEXT,
                meaning=_TEXT,
            )
        ),
        systems=_list(
            _object(
                system=_TEXT,
                paper=_TEXT,
                cluster=_TEXT,
                profile=_with_description({"type": "object"}, "name and costs of the profile; ns, bit/s, bytes"),
                constants=_with_description(_INTEGER, "number of calibrated constants of the profile"),
                seconds=_with_description(_NUMBER, "total time of its points"),
                overall=_with_description(
                    {"type": ["object", "null"]}, "errors of the predicted rows: rows, median, p90, worst; null: none"
                ),
                errors=_with_description({"type": "object"}, 'errors by table; "": rows without a table'),
                tables=_list(_object(name=_TEXT, source=_TEXT, columns=_list(_TEXT), rows=_list({"type": "object"}))),
                shapes=_list(_object(name=_TEXT, holds=_FLAG, detail=_TEXT)),
                unmatched=_with_description(
                    _list(_object(value=_TEXT, why=_TEXT)), "published values that have no row"
                ),
                failures=_with_description(_list(_TEXT), "a sentence for each row and shape that was not reproduced"),
            )
        ),
    ),
    "replay": {
        **_object(
            folder=_TEXT,
            repetition=_INTEGER,
            mode={"enum": ["sim", "live"]},
            same=_with_description(_FLAG, "the same checks failed, or none in both runs"),
            before=_with_description(_list(_TEXT), "checks that failed in the original run"),
            now=_with_description(_list(_TEXT), "checks that failed in the replay"),
            error=_with_description(_TEXT, "the error that ended the run, or empty"),
            fates=_with_description(_INTEGER, "number of fates in the log; -1: fates drawn from the seed"),
            shrunk=_with_description({"type": "object"}, "with --shrink: fates, runs, minimal, log"),
        ),
        "required": ["folder", "repetition", "mode", "same", "before", "now", "error", "fates"],
    },
    "check-run": _object(
        folder=_TEXT, repetitions=_with_description(_list({"type": "object"}), "passed, checks, ambiguous, figures")
    ),
    "frame": _object(
        time=_with_description(_INTEGER, "wall clock, ns"),
        link=_TEXT,
        end=_with_description(_TEXT, "end of the link at which the frame was captured"),
        way=_with_description({"enum": ["out", "in"]}, "whether the frame leaves that end or arrives at it"),
        bytes=_with_description(_INTEGER, "length of the frame"),
        what=_with_description(_TEXT, "summary of the frame"),
        causes=_with_description(_list(_TEXT), "causes of the fate: loss, rule, queue full, ..."),
        fate=_with_description(_TEXT, "description of the frame's fate; empty if it passed unchanged"),
    ),
    "decoded": _object(
        capture=_with_description(_TEXT, "file name, if the folder has several captures"),
        time=_with_description(_INTEGER, "ns, of the wall clock or since a simulation's beginning"),
        interface=_with_description(_TEXT, "end of the link at which the frame was captured"),
        link=_with_description(_TEXT, "empty if the capture does not record it"),
        direction=_with_description({"enum": ["forward", "backward", ""]}, "direction of the link, as in rules"),
        way=_with_description({"enum": ["out", "in", ""]}, "whether the frame leaves that end or arrives at it"),
        bytes=_with_description(_INTEGER, "length of the frame"),
        what=_with_description(_TEXT, "summary of the frame"),
        protocol=_with_description(_TEXT, "the innermost header whose fields are known"),
        fields=_with_description(
            {"type": "object"}, "values by the field names of filters and rules: numbers; addresses as text"
        ),
        fate=_with_description(_TEXT, "description of the frame's fate; empty if it passed unchanged"),
    ),
    "message": {
        **_object(
            capture=_with_description(_TEXT, "file name, if the folder has several captures"),
            protocol=_TEXT,
            message=_with_description(
                _TEXT, "identifier for --message: the nodes, and the protocol's id of the message"
            ),
            begun=_with_description(_INTEGER, "time of its first frame, ns"),
            ended=_with_description(_INTEGER, "time of its last frame, ns"),
            bytes=_with_description(_INTEGER, "size of the complete message, if its frames have the length"),
            sent=_with_description({"type": "object"}, "frames by role: data, ack, nack, control"),
            again=_with_description(_INTEGER, "number of retransmissions among the sent frames"),
            lost=_with_description(_INTEGER, "lost frames of any role"),
            frames=_with_description(
                _list({"type": "object"}), "its frames: time, interface, way, role, what, again, lost, fate"
            ),
        ),
        "required": ["capture", "protocol", "message", "begun", "ended", "bytes", "sent", "again", "lost"],
    },
    "capture": _object(
        cluster=_TEXT,
        target=_TEXT,
        seconds=_NUMBER,
        frames=_with_description({"type": "object"}, "number of frames by end of a link"),
        fates=_with_description({"type": "object"}, "frames with a fate other than a pass, by cause"),
        dropped=_with_description({"type": "object"}, "number of frames that were not read in time, by end"),
        cut=_with_description(_INTEGER, "frames that are truncated"),
        unknown_fates=_with_description(_INTEGER, "frames whose fate is unknown"),
        undecided=_with_description(_INTEGER, "frames that a loss classifier may have dropped: it is unknown which"),
        late=_with_description(_INTEGER, "frames out of order"),
        gone=_with_description(_FLAG, "the cluster was taken down"),
        complete=_with_description(_FLAG, "all frames were captured, with their fates"),
    ),
    "runs": _object(
        runs=_list(
            _object(
                folder=_TEXT,
                status=_with_description(_TEXT, "done, failed, interrupted or unfinished"),
                asked=_with_description({"type": "object"}, "content of its run.json"),
                result=_with_description({"type": "object"}, "content of its result.json"),
            )
        ),
        unreadable=_with_description(_list(_TEXT), "a sentence for each folder that cannot be read"),
    ),
    "workloads": _object(
        workloads=_with_description({"type": "object"}, "by name: a summary, and the settings with their defaults"),
        protocols=_list(_TEXT),
    ),
    "protocols": _object(
        protocols=_PROTOCOLS,
        problems=_with_description(
            _list(_TEXT), "a sentence for each pair of packages that clash, and for each unavailable one"
        ),
    ),
    "protocol-check": _object(
        protocol=_TEXT,
        passed=_with_description(_FLAG, "no check has failed"),
        checks=_list(
            _object(
                name=_TEXT,
                demands=_TEXT,
                state={"enum": ["passed", "failed", "not applicable"]},
                reason=_with_description(
                    _TEXT, "reason of a failure or of not being applicable; for a pass a note, or empty"
                ),
                seconds=_NUMBER,
            )
        ),
    ),
    "event": _object(
        of=_with_description(_TEXT, "name of the cluster, or folder of the run"),
        time=_with_description(_INTEGER, "wall clock, ns"),
        event=_with_description(_TEXT, "kind of the event"),
        where=_with_description(_TEXT, "links or nodes, or empty"),
        what=_with_description(_TEXT, "description of the other attributes"),
        facts=_with_description({"type": "object"}, "attributes as recorded; clock: monotonic ns"),
    ),
    "ssh": _object(cluster=_TEXT, configuration=_with_description(_TEXT, "the path of a file for 'ssh -F'")),
    "down": _object(clusters=_list(_TEXT)),
    "gc": _object(findings=_list(_object(what=_TEXT, removed=_FLAG, reason=_TEXT))),
    "validate": {
        **_object(
            valid=_FLAG,
            origin=_TEXT,
            problems=_list(_PROBLEM),
            warnings=_with_description(_list(_TEXT), "NICs of different MTUs in one network"),
            layout=_LAYOUT,
        ),
        "required": ["origin", "problems", "valid", "warnings"],  # an invalid description has no layout
    },
    "scenario-check": _object(
        name=_TEXT,
        cluster=_TEXT,
        moments=_list(
            _object(
                at=_with_description(_INTEGER, "nanoseconds since the programs began"),
                begins=_FLAG,
                fault=_TEXT,
                kind=_TEXT,
                what=_TEXT,
            )
        ),
    ),
    "graph": _object(layout=_LAYOUT),
    "topologies": _object(topologies=_list(_object(name=_TEXT, purpose=_TEXT))),
    "datapaths": _object(
        features=_list(
            _object(
                name=_TEXT,
                meaning=_TEXT,
                datapaths=_with_description({"type": "object"}, "fit, reason and bound of each datapath"),
            )
        )
    ),
    "doctor": _object(
        capabilities=_CAPABILITIES,
        protocols=_PROTOCOLS,
    ),
    "machines-check": _object(
        machines=_list(
            _object(
                name=_TEXT,
                address=_TEXT,
                usable=_FLAG,
                problem=_with_description(_TEXT, "reason why it cannot be used, or empty"),
                report=_with_description(_REPORT, "report of the machine; null: it could not be reached"),
            )
        )
    ),
    "machines-up": _object(
        cluster=_TEXT,
        dry_run=_FLAG,
        machines=_with_description({"type": "object"}, "names of its nodes and switches, by machine"),
        cut=_object(
            links=_with_description(_list(_TEXT), "links between machines"),
            rate=_with_description(_INTEGER, "total rate of these links in both directions, bit/s"),
        ),
        underlays=_list(
            _object(
                machines=_with_description(_list(_TEXT), "names of the two machines"),
                round_trip=_with_description(_INTEGER, "median round trip of ICMP echo between them, ns"),
                spread=_with_description(_INTEGER, "difference of the longest and the shortest round trip, ns"),
                loss=_with_description(_NUMBER, "share of echo requests without a reply"),
            )
        ),
        operations=_with_description({"type": "object"}, "number of operations by machine; empty with dry_run"),
        changed=_with_description(_list(_TEXT), "machines whose part was up before with another layout"),
    ),
    "machines-down": _object(
        cluster=_TEXT,
        machines=_with_description(_list(_TEXT), "machines that had a part of the cluster"),
        unreachable=_with_description({"type": "object"}, "reasons by unreachable machine"),
    ),
    "machines-status": _object(
        cluster=_TEXT,
        machines=_with_description(
            {"type": "object"},
            "by machine: nodes, links, injections (number and text), and missing processes and machines",
        ),
        unreachable=_with_description({"type": "object"}, "reasons by unreachable machine"),
    ),
    "machines-capture": _object(
        cluster=_TEXT,
        target=_TEXT,
        file=_with_description(_TEXT, "path of the capture of all machines"),
        frames=_with_description({"type": "object"}, "number of frames by end of a link"),
        complete=_with_description(_FLAG, "all frames were captured, with their fates"),
    ),
    "machines-gc": _object(machines=_with_description({"type": "object"}, "findings as of gc, by machine")),
}


def schema_of(kind: str) -> Schema:
    """Return the JSON Schema of a document, with its format and kind. kind: a key of DOCUMENTS."""
    schema = dict(DOCUMENTS[kind])
    properties = schema["properties"]
    assert isinstance(properties, dict)
    schema["properties"] = {"format": {"const": format_of(kind)}, "kind": {"const": kind}, **properties}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"testbed {kind} --json", **schema}
