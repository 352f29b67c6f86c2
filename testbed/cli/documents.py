"""JSON Schemas of the documents printed with ``--json``.

Each document has ``format``, the version of its form, and ``kind``, the command. Within a version fields may be added;
existing ones keep their names and meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from testbed.cli.consoles import FORMAT

Schema: TypeAlias = Mapping[str, object]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _said(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_DIRECTION = _object(
    frames=_said(_NUMBER, "frames since the link was made"),
    bytes=_said(_NUMBER, "their bytes"),
    dropped=_said(_NUMBER, "frames that the kernel dropped"),
    impairment=_said(
        {"type": "object"},
        "what is in force, by the keys of a description; times in ns, rates in bit/s, sizes in bytes",
    ),
)
_INJECTED = _object(
    number=_said(_NUMBER, "for 'testbed heal'"),
    what=_TEXT,
    links=_list(_TEXT),
    seconds_left=_said({"type": ["number", "null"]}, "until it heals by itself; null: never"),
)
_CARRIER = _object(
    name=_said(_TEXT, "the link"),
    datapath=_said(_TEXT, "netem, tc or relay"),
    notes=_said(_list(_TEXT), "what is approximate there, or why others were not taken"),
)
_TRIP: Schema = {
    **_object(
        nodes=_list(_TEXT),
        delay=_said(_NUMBER, "ns, the sum of both ways"),
        jitter=_said(_NUMBER, "ns, the sum of both ways"),
        loss=_said({"type": "number"}, "share of round trips that lose a frame"),
        rate=_said(_NUMBER, "bit/s of the slowest link from the first to the second; 0: unlimited"),
        rules=_said(_NUMBER, "fault rules on the way"),
        down=_said(_FLAG, "a link on the way is down"),
    ),
    "type": ["object", "null"],
}
_NIC = _object(
    name=_TEXT,
    mac=_TEXT,
    mtu=_NUMBER,
    addresses=_said(_list(_TEXT), "with prefix length"),
    link=_said(_TEXT, "the name of its link"),
)
_AGENT = _said(
    {
        **_object(
            pid=_said(_NUMBER, "its process; 0: it does not answer"),
            hosts=_list(_object(function=_NUMBER, pid=_said(_NUMBER, "of the process that has attached"))),
            lost=_said(_NUMBER, "frames that were not read in time, or not sent"),
        ),
        "type": ["object", "null"],
    },
    "of its NIC, where that is shared",
)
_NODE = _object(
    name=_TEXT,
    tags=_list(_TEXT),
    namespace=_said(_TEXT, "the path of its network namespace"),
    there=_said(_FLAG, "whether the namespace exists"),
    programs=_said(_list(_NUMBER), "process numbers of the programs in it"),
    agent=_AGENT,
    nics=_list(_NIC),
)
_PORT = _object(number=_NUMBER, link=_TEXT)
_SWITCH = _object(
    name=_TEXT,
    kind=_TEXT,
    learns=_said(_FLAG, "false: it forwards by the plan"),
    ports=_list(_PORT),
)
_LINK = _object(
    name=_TEXT,
    tags=_list(_TEXT),
    a=_said(_TEXT, "OWNER:PORT"),
    b=_said(_TEXT, "OWNER:PORT"),
    datapath=_said(_TEXT, "who carries its frames: direct, netem, tc or relay"),
    notes=_said(_list(_TEXT), "what is approximate there, or why other datapaths were not taken"),
    there=_said(_FLAG, "whether both ends exist"),
    up=_FLAG,
    forward=_said(_DIRECTION, "a to b"),
    backward=_said(_DIRECTION, "b to a"),
)
_CLUSTER = _object(
    name=_TEXT,
    origin=_said(_TEXT, "the path of its file, or topology:NAME, or python"),
    phase={"enum": ["building", "up", "changing", "removing"]},
    lasting=_said(_FLAG, "false: it ends with its owner"),
    owner=_said(_NUMBER, "the process that made it"),
    created=_said(_NUMBER, "seconds of the epoch"),
    nodes=_list(_NODE),
    switches=_list(_SWITCH),
    links=_list(_LINK),
    shared=_said({"type": ["object", "null"]}, "its NICs are: protocol, functions, owner"),
    injected=_said(_list(_INJECTED), "what is laid over what the description declares"),
)
_PROGRAM = _object(
    pid=_NUMBER,
    name=_TEXT,
    cpu=_said({"type": "number"}, "of one processor: 0.5 is half of it"),
    memory=_said(_NUMBER, "bytes that are resident"),
)
_FLOW = _object(
    frames=_said(_NUMBER, "since the link was made"),
    bytes=_NUMBER,
    rate=_said({"type": "number"}, "frames/s"),
    bits=_said({"type": "number"}, "bit/s"),
    dropped=_said({"type": "object"}, "frames by cause"),
    drop_rate=_said({"type": "number"}, "frames/s"),
    met=_said({"type": "object"}, "what else was done to frames: corrupted, duplicated, reordered, delayed"),
    declared=_said(_TEXT, "impairments in words"),
    injected=_said(_TEXT, "impairments in words"),
)
_SNAPSHOT = _object(
    cluster=_TEXT,
    origin=_TEXT,
    time=_said(_NUMBER, "wall clock, ns"),
    age=_said({"type": "number"}, "seconds since the cluster came up"),
    span=_said({"type": "number"}, "seconds that the rates are of"),
    summary=_TEXT,
    phase=_TEXT,
    warning=_said(_TEXT, "what is wrong with the cluster, or empty"),
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
                    agent=_said({"type": "object"}, "what a shared NIC's firmware has counted"),
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
            forward=_said(_FLOW, "a to b"),
            backward=_said(_FLOW, "b to a"),
            tags=_list(_TEXT),
        )
    ),
    faults=_list(
        _object(
            number=_NUMBER,
            what=_TEXT,
            links=_list(_TEXT),
            seconds_left=_said({"type": ["number", "null"]}, "until it heals by itself; null: never"),
        )
    ),
    carriers=_said(_list(_PROGRAM), "processes beside the cluster, such as its relay's"),
    events=_said(_list(_object(time=_NUMBER, kind=_TEXT, where=_TEXT, what=_TEXT)), "the last ones"),
)
_LAYOUT: Schema = {
    "type": "object",
    "description": "the cluster with everything derived; what has its default is left out",
}
_GRADE: Schema = {"enum": ["trusted", "degraded", "invalid"]}
_OPTIONAL: Schema = {"type": ["number", "null"]}
_FINDING = _object(
    what=_said(_TEXT, "its name in the table of thresholds"),
    link=_said(_TEXT, "empty: the whole machine"),
    direction={"enum": ["forward", "backward", ""]},
    asked=_OPTIONAL,
    measured=_OPTIONAL,
    unit=_said(_TEXT, "of asked, measured and interval: ns, bit/s, share, frames"),
    interval=_said(
        {"type": ["array", "null"], "items": {"type": "number"}}, "what the sample can be reconciled with, at 1e-6"
    ),
    grade=_said({"enum": ["trusted", "undecided", "degraded", "invalid", "failed"]}, "undecided: too little was seen"),
    reason=_TEXT,
)
_PROTOCOLS = _list(
    _object(
        name=_TEXT,
        package=_TEXT,
        version=_TEXT,
        ethertype=_said(_NUMBER, "0: the kernel's own protocol"),
        modes=_list(_TEXT),
        nics=_said(_list(_TEXT), "where its firmware may be: inline, shared"),
        fabrics=_said(_list(_TEXT), "the kinds of switches that it crosses"),
        problem=_said(_TEXT, "why it cannot be had, or empty"),
    )
)
_PROBLEM = _object(path=_TEXT, found=_TEXT, expected=_TEXT, suggestion=_TEXT)

DOCUMENTS: Mapping[str, Schema] = {
    "status": _object(clusters=_list(_CLUSTER)),
    "top": _SNAPSHOT,
    "up": _object(
        cluster=_TEXT,
        origin=_TEXT,
        dry_run=_FLAG,
        operations=_said(_list(_TEXT), "what was done, or with dry_run would be"),
        impaired=_list(_CARRIER),
        former=_said(_list(_TEXT), "clusters that are still up from this file, under names that it had before"),
    ),
    "inject": _object(
        cluster=_TEXT,
        number=_said(_NUMBER, "for 'testbed heal'"),
        what=_TEXT,
        links=_list(_object(name=_TEXT, datapath=_TEXT)),
        round_trip=_said(_TRIP, "what one between two nodes now sees"),
        seconds=_said({"type": "number"}, "until it was in force"),
    ),
    "heal": _object(
        cluster=_TEXT,
        healed=_list(_object(number=_NUMBER, what=_TEXT)),
        idle_rules=_said(_list(_TEXT), "a sentence for each rule that never decided a frame's fate"),
    ),
    "check": _object(
        cluster=_TEXT,
        grade=_GRADE,
        seconds=_said({"type": "number"}, "the span"),
        slow=_said({"type": "number"}, "the slow-machine factor"),
        findings=_list(_FINDING),
        notes=_said(_list(_TEXT), "warnings, such as rules that decided nothing"),
    ),
    "run": {
        **_object(
            cluster=_TEXT,
            folder=_said(_TEXT, "where everything of the run is"),
            verdict=_said({"type": "object"}, "grade, seconds, notes, findings"),
            workload=_TEXT,
            settings=_said({"type": "object"}, "of the workload; times in ns, sizes in bytes"),
            protocol=_TEXT,
            mode={"enum": ["sim", "live", "dilated"]},
            seed=_NUMBER,
            seconds=_said({"type": "number"}, "of the whole run"),
            rows=_said(_list({"type": "object"}), "what was measured; keys end with their unit"),
            results=_said(_list({"type": "object"}), "of each repetition, what the programs returned, by node"),
            counted=_said(_list({"type": "object"}), "of each repetition, the counters of the NICs' firmware, by node"),
            used=_said(
                _list({"type": "object"}),
                "of each repetition under a profile, by node and part: jobs, busy_ns, waited_ns, share; of a host's core "
                "also the nanoseconds by cause, as trap_ns",
            ),
            switches=_said(
                _list({"type": "object"}),
                "of each repetition, by modelled switch: frames that did not go on there, or not whole, by cause; in "
                "namespaces also stops, how often NICs at it were told STOP",
            ),
            commands=_said(_list({"type": "object"}), "of commands: node, command, code, log"),
        ),
        "required": ["cluster", "folder", "verdict"],
    },
    "compare": _object(
        threshold=_said({"type": "number"}, "the share beyond which a difference matters"),
        worse=_said(_FLAG, "a measure is, beyond the threshold and beyond chance"),
        differences=_said(_list(_TEXT), "what was asked for differently"),
        notes=_list(_TEXT),
        measures=_list(
            _object(
                point=_said({"type": "object"}, "what was measured: node, size_bytes, ...; of a paper its row"),
                measure=_said(_TEXT, "a row's key; of a paper its row's unit"),
                a=_said({"type": "number"}, "median; of a paper its value"),
                b=_said({"type": "number"}, "median"),
                samples=_said(_list(_NUMBER), "of a and of b"),
                ratio=_said({"type": ["number", "null"]}, "b to a; null: infinite"),
                low=_said({"type": ["number", "null"]}, "what the samples leave open; null: too few, or infinite"),
                high={"type": ["number", "null"]},
                judgement=_said(_TEXT, "worse, better, undecided or no difference"),
            )
        ),
    ),
    "reproduce": _object(
        protocol=_TEXT,
        paper=_TEXT,
        cluster=_TEXT,
        profile=_said({"type": "object"}, "its name and what it prices; ns, bit/s, bytes"),
        rows=_list(
            _object(
                name=_TEXT,
                paper={"type": "number"},
                ours={"type": "number"},
                unit=_TEXT,
                error=_said({"type": "number"}, "by what share ours is more"),
                calibrated=_said(_FLAG, "false: a prediction"),
                source=_TEXT,
                meaning=_TEXT,
                others=_said({"type": "object"}, "other systems' values, as the paper has them"),
            )
        ),
        median_error=_said({"type": "number"}, "of the predicted rows"),
        errors=_said({"type": "object"}, 'of the predicted rows, by table: rows, median, p90, worst; "": rows of none'),
        tables=_list(_object(name=_TEXT, source=_TEXT, columns=_list(_TEXT), rows=_list({"type": "object"}))),
        shapes=_list(_object(name=_TEXT, holds=_FLAG, detail=_TEXT)),
        failures=_said(_list(_TEXT), "a sentence for each calibrated row and each shape that has not come out"),
    ),
    "replay": {
        **_object(
            folder=_TEXT,
            repetition=_NUMBER,
            mode={"enum": ["sim", "live"]},
            same=_said(_FLAG, "a check that had failed has failed again; where none had, none has"),
            before=_said(_list(_TEXT), "the checks that had failed"),
            now=_said(_list(_TEXT), "those that have failed now"),
            error=_said(_TEXT, "with which the run has ended, or empty"),
            fates=_said(_NUMBER, "in the log; -1: the seed has given them"),
            shrunk=_said({"type": "object"}, "with --shrink: fates, runs, minimal, log"),
        ),
        "required": ["folder", "repetition", "mode", "same", "before", "now", "error", "fates"],
    },
    "check-run": _object(
        folder=_TEXT, repetitions=_said(_list({"type": "object"}), "passed, checks, ambiguous, figures")
    ),
    "frame": _object(
        time=_said(_NUMBER, "wall clock, ns"),
        link=_TEXT,
        end=_said(_TEXT, "the end of the link where it was seen"),
        way=_said({"enum": ["out", "in"]}, "it leaves that end, or comes to it"),
        bytes=_said(_NUMBER, "of the frame"),
        what=_said(_TEXT, "the frame in words"),
        causes=_said(_list(_TEXT), "who decided a fate of it: loss, rule, queue full, ..."),
        met=_said(_TEXT, "what it met, in words; empty for most"),
    ),
    "decoded": _object(
        capture=_said(_TEXT, "which one of several of a folder; empty where there is one"),
        time=_said(_NUMBER, "ns, of the wall clock or since a simulation's beginning"),
        interface=_said(_TEXT, "the end of a link where it was seen"),
        link=_said(_TEXT, "empty where the capture does not say it"),
        direction=_said({"enum": ["forward", "backward", ""]}, "of the link, as in rules"),
        way=_said({"enum": ["out", "in", ""]}, "it leaves that end, or comes to it"),
        bytes=_said(_NUMBER, "of the frame"),
        what=_said(_TEXT, "the frame in words"),
        protocol=_said(_TEXT, "the innermost header whose fields are known"),
        fields=_said({"type": "object"}, "by the names that filters and rules use; numbers, addresses as text"),
        met=_said(_TEXT, "what it met, in words; empty for most"),
    ),
    "message": {
        **_object(
            capture=_said(_TEXT, "which one of several of a folder; empty where there is one"),
            protocol=_TEXT,
            message=_said(_TEXT, "for --message: from which node to which, and the protocol's id"),
            begun=_said(_NUMBER, "ns, when its first frame was seen"),
            ended=_said(_NUMBER, "ns, its last"),
            bytes=_said(_NUMBER, "of the whole message, as far as its frames say"),
            sent=_said({"type": "object"}, "frames by role: data, ack, nack, control"),
            again=_said(_NUMBER, "of these, what had been sent before"),
            lost=_said(_NUMBER, "frames of any role"),
            frames=_said(_list({"type": "object"}), "each: time, interface, way, role, what, again, lost, met"),
        ),
        "required": ["capture", "protocol", "message", "begun", "ended", "bytes", "sent", "again", "lost"],
    },
    "capture": _object(
        cluster=_TEXT,
        target=_TEXT,
        seconds={"type": "number"},
        frames=_said({"type": "object"}, "by end of a link"),
        met=_said({"type": "object"}, "frames that met something, by cause"),
        dropped=_said({"type": "object"}, "frames that are lacking as they were not read in time, by end"),
        cut=_said(_NUMBER, "frames of which the end is lacking"),
        untold=_said(_NUMBER, "frames that have met something that is not told beside them"),
        undecided=_said(_NUMBER, "frames that a loss classifier may have dropped"),
        late=_said(_NUMBER, "frames out of order"),
        gone=_said(_FLAG, "the cluster was taken down"),
        whole=_said(_FLAG, "every frame is there, with all that it met"),
    ),
    "runs": _object(
        runs=_list(
            _object(
                folder=_TEXT,
                status=_said(_TEXT, "done, failed, interrupted or unfinished"),
                asked=_said({"type": "object"}, "its run.json"),
                result=_said({"type": "object"}, "its result.json"),
            )
        ),
        unreadable=_said(_list(_TEXT), "a sentence for each folder that cannot be read"),
    ),
    "workloads": _object(
        workloads=_said({"type": "object"}, "by name: a summary, and the settings with their defaults"),
        protocols=_list(_TEXT),
    ),
    "protocols": _object(
        protocols=_PROTOCOLS,
        problems=_said(_list(_TEXT), "a sentence for each two packages that clash, and for each that cannot be had"),
    ),
    "event": _object(
        of=_said(_TEXT, "the cluster, or the run's folder"),
        time=_said(_NUMBER, "wall clock, ns"),
        event=_said(_TEXT, "its kind"),
        where=_said(_TEXT, "links or nodes, or empty"),
        what=_said(_TEXT, "the rest in words"),
        facts=_said({"type": "object"}, "as they were recorded; clock: monotonic ns"),
    ),
    "ssh": _object(cluster=_TEXT, configuration=_said(_TEXT, "the path of a file for 'ssh -F'")),
    "down": _object(clusters=_list(_TEXT)),
    "gc": _object(findings=_list(_object(what=_TEXT, removed=_FLAG, reason=_TEXT))),
    "validate": {
        **_object(valid=_FLAG, origin=_TEXT, problems=_list(_PROBLEM), layout=_LAYOUT),
        "required": ["origin", "problems", "valid"],  # an invalid description has no layout
    },
    "scenario-check": _object(
        name=_TEXT,
        cluster=_TEXT,
        moments=_list(
            _object(
                at=_said(_NUMBER, "nanoseconds since the programs go"),
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
            _object(name=_TEXT, meaning=_TEXT, datapaths=_said({"type": "object"}, "fit, reason and bound of each"))
        )
    ),
    "doctor": _object(
        abilities=_list(_object(name=_TEXT, there=_FLAG, detail=_TEXT, meaning=_TEXT, remedy=_TEXT)),
        protocols=_PROTOCOLS,
    ),
}


def schema_of(kind: str) -> Schema:
    """JSON Schema of a document; `kind` is a key of DOCUMENTS."""
    schema = dict(DOCUMENTS[kind])
    properties = schema["properties"]
    assert isinstance(properties, dict)
    schema["properties"] = {"format": {"const": FORMAT}, "kind": {"const": kind}, **properties}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"testbed {kind} --json", **schema}
