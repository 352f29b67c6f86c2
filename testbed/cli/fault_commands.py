"""Commands ``inject``, ``link``, ``partition``, ``load`` and ``heal``: faults in a running cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from testbed.cli.consoles import cluster_named, echo, json_option, name_option, print_json, print_warnings, seconds_of

if TYPE_CHECKING:
    from testbed.cluster.faults.fault_injection import Injected
    from testbed.cluster.faults.injections import Injection
    from testbed.cluster.records.paths import RoundTrip
    from testbed.cluster.records.state import Store

Command = Callable[..., None]

for_option = click.option("--for", "duration", metavar="TIME", help="Heal by itself after this time: 10s, 500ms.")

# Option -> (metavar, help). The values are written as in a description.
_IMPAIRMENTS = {
    "delay": ("TIME", "one-way delay"),
    "jitter": (
        "TIME",
        "spread of the delay; frames keep their order, which raises the mean if they are closer than it",
    ),
    "distribution": ("NAME", "of the jitter: uniform, normal, pareto, table, trace"),
    "jitter-file": ("FILE", "table or trace of the jitter"),
    "rate": ("RATE", "of the wire: 100mbit, or unlimited"),
    "rate-trace": ("FILE", "delivery opportunities in mahimahi's format, instead of a rate"),
    "queue": ("SIZE", "queue before the wire: 64KiB"),
    "queue-frames": ("N", "queue before the wire, in frames"),
    "loss": ("SHARE", "of frames: 5%"),
    "gemodel": ("'P R 1-H 1-K'", "losses in bursts, as tc writes them"),
    "loss-pattern": ("'5, 12, 24'", "numbers of the direction's frames that are lost"),
    "corrupt": ("SHARE", "of frames in which a bit is flipped"),
    "corrupt-bits": ("N", "bits flipped in a corrupted frame"),
    "duplicate": ("SHARE", "of frames that arrive twice"),
    "reorder": ("SHARE", "of frames that skip the delay"),
    "minimum-frame": ("SIZE", "minimum bytes by which a frame counts against the rate; needs a rate"),
    "overhead": ("N", "bytes that count against the rate in addition to each frame"),
    "cell-size": ("SIZE", "payload of a cell"),
    "cell-overhead": ("N", "bytes that count against the rate in addition to each cell's payload"),
}
_INTEGER_OPTIONS = ("queue-frames", "corrupt-bits", "overhead", "cell-overhead")
_FILE_OPTIONS = ("jitter-file", "rate-trace")


def impairment_options(command: Command, *, files: bool = True) -> Command:
    """Add an option for each key of an impairment. files: whether to include the options for files."""
    for name, (metavar, description) in reversed(_IMPAIRMENTS.items()):
        if name in _FILE_OPTIONS and not files:
            continue
        kind = int if name in _INTEGER_OPTIONS else str
        command = click.option(
            f"--{name}", metavar=metavar, type=kind, help=f"{description[0].upper()}{description[1:]}."
        )(command)
    return command


@click.command("inject", short_help="Impair links of a running cluster.")
@click.argument("target", nargs=-1, required=True, metavar="LINK|NODE|@TAG|all ...")
@impairment_options
@click.option(
    "--rule", "rules", multiple=True, metavar="'RULE'", help="A fault rule: 'drop tcp.dport == 5001 and nth(3)'."
)
@click.option("--replay", type=click.Path(dir_okay=False, resolve_path=True), default=None,
              help="Replay the fates of a log written by 'up --fates', instead of random ones.")  # fmt: skip
@click.option(
    "--direction", metavar="A-B|out|in", default="", help="From A to B, out of the node or into it; default: both."
)
@for_option
@name_option
@json_option
def inject_command(
    target: tuple[str, ...],
    rules: Sequence[str],
    replay: str | None,
    direction: str,
    duration: str | None,
    name: str | None,
    as_json: bool,
    **impairments: Any,
) -> None:
    """Impair links of a running cluster; keys that are not given keep their values. 'testbed heal' lifts the impairment.

    \b
    testbed inject n1 --loss 5% --delay 2ms              all links of n1, both directions
    testbed inject n1 n2 --loss 5%                       all links of n1 and n2: one injection
    testbed inject n1--s1 --rate 100mbit --direction n1-s1
    testbed inject all --rule 'drop udp and nth(3)' --for 10s
    testbed inject @rack1 --loss 5% --direction out      frames sent by the nodes of a tag

    When the command returns, the impairment is in force for the next frame that enters the link.
    """
    from testbed.cluster.faults import fault_injection
    from testbed.cluster.records.paths import example_pair, round_trip
    from testbed.spec.elements import Impairments

    store, cluster = _running(name)
    explicit_keys = {key: value for key, value in impairments.items() if value is not None}
    for option in _FILE_OPTIONS:
        key = option.replace("-", "_")
        if key in explicit_keys:
            explicit_keys[key] = _absolute(explicit_keys[key])
    keys = Impairments(**explicit_keys).explicit()
    injected = fault_injection.inject(
        store,
        cluster,
        target,
        keys,
        rules=rules,
        replay=replay or "",
        direction=direction,
        seconds=seconds_of(duration),
    )
    pair = example_pair(injected.state, injected.injection.links)
    trip = round_trip(injected.state, *pair) if pair is not None else None
    _print_injected(cluster, injected, as_json, trip)


def _running(cluster: str | None) -> tuple[Store, str]:
    """Return the store and the name of the cluster; None: the only one that is up. Raises NotFoundError."""
    from testbed.cluster.records.state import Store

    store = Store()
    return store, store.existing_name(cluster)


def _absolute(path: str) -> str:
    from pathlib import Path

    return str(Path(path).absolute())


@click.command("link")
@click.argument("target", metavar="LINK|NODE|@TAG|all")
@click.argument("action", type=click.Choice(["down", "up", "flap"]))
@for_option
@name_option
@json_option
def link_command(target: str, action: str, duration: str | None, name: str | None, as_json: bool) -> None:
    """Unplug cables (down), plug them in again (up), or both (flap: down for one second, or --for).

    The NICs at the ends of a link that is down have no carrier.
    """
    from testbed.cluster.faults import fault_injection

    store, cluster = _running(name)
    if action == "up":
        if duration is not None:
            raise click.UsageError("--for goes with 'down' and 'flap'")
        print_healed(cluster, fault_injection.heal_cut(store, cluster, target), as_json)
        return
    seconds = seconds_of(duration) or (1.0 if action == "flap" else 0.0)
    _print_injected(cluster, fault_injection.cut(store, cluster, target, seconds), as_json)


@click.command("partition")
@click.argument("groups", nargs=-1, required=True, metavar="NODE[,NODE...] / NODE[,NODE...] ...")
@for_option
@name_option
@json_option
def partition_command(groups: Sequence[str], duration: str | None, name: str | None, as_json: bool) -> None:
    """Block all traffic between groups of nodes: testbed partition n1,n2 / n3,n4

    Traffic within a group passes as before, and nodes in no group reach all others.
    """
    from testbed.cluster.faults import fault_injection

    store, cluster = _running(name)
    injected = fault_injection.partition(store, cluster, groups_of(groups), seconds_of(duration))
    _print_injected(cluster, injected, as_json)


def groups_of(words: Sequence[str]) -> list[list[str]]:
    """Parse the groups of a partition: n1,n2 / n3."""
    groups = " ".join(words).split("/")
    return [[node for node in group.replace(",", " ").split() if node] for group in groups]


@click.command("load")
@click.argument("nodes", nargs=-1, metavar="NODE | NODE... RECEIVER")
@click.option("--cpu", metavar="SHARE", help="Load this share of a processor: 50%, 200% for two.")
@click.option("--rate", metavar="RATE", help="Let each sender send at this rate: 500mbit.")
@click.option("--incast", metavar="NODE", help="Let all other nodes send to this one.")
@for_option
@name_option
@json_option
def load_command(
    nodes: Sequence[str],
    cpu: str | None,
    rate: str | None,
    incast: str | None,
    duration: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Load a node's processors, or fill links with datagrams without congestion control.

    \b
    testbed load n1 --cpu 50% --for 10s
    testbed load n1 n2 --rate 500mbit        n1 sends to n2
    testbed load --incast n2 --rate 100mbit  all others send to n2
    """
    from testbed.cluster.faults import fault_injection

    store, cluster = _running(name)
    seconds = seconds_of(duration)
    if cpu is not None:
        if rate is not None or incast is not None or len(nodes) != 1:
            raise click.UsageError("--cpu goes with one node: testbed load n1 --cpu 50%")
        _print_injected(
            cluster, fault_injection.load_processor(store, cluster, nodes[0], share_of(cpu), seconds), as_json
        )
        return
    if rate is None:
        raise click.UsageError("--cpu or --rate is required: testbed load n1 n2 --rate 500mbit")
    bits = rate_of(rate)
    if incast is not None:
        if nodes:
            raise click.UsageError("--incast names the receiver; all others send")
        injected = fault_injection.load_link(store, cluster, (), incast, bits, seconds)
    elif len(nodes) < 2:
        raise click.UsageError("name the senders and, last, the receiver: testbed load n1 n2 --rate 500mbit")
    else:
        injected = fault_injection.load_link(store, cluster, nodes[:-1], nodes[-1], bits, seconds)
    _print_injected(cluster, injected, as_json)


def rate_of(text: str) -> int:
    """Parse --rate; return bit/s. Raises click.BadParameter."""
    from testbed.spec.units import UnitError, parse_rate

    try:
        bits = parse_rate(text)
    except UnitError as error:
        raise click.BadParameter(str(error), param_hint="--rate") from error
    if bits == 0:
        raise click.BadParameter(f"must be more than 0, got {text}", param_hint="--rate")
    return bits


def share_of(text: str) -> float:
    """Parse --cpu; return the share of one processor. Raises click.BadParameter."""
    number = text.removesuffix("%")
    try:
        value = float(number)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a share such as 50%", param_hint="--cpu") from error
    return value / 100 if text.endswith("%") else value


@click.command("heal")
@click.argument("words", nargs=-1, metavar="[CLUSTER] [NUMBER...]")
@name_option
@json_option
def heal_command(words: Sequence[str], name: str | None, as_json: bool) -> None:
    """Lift all injections, or those with these numbers; 'testbed status' shows them.

    \b
    testbed heal             all injections of the only cluster that is up
    testbed heal star-4      all injections of star-4
    testbed heal star-4 2 3  injections 2 and 3 of star-4

    Declared impairments stay.
    """
    from testbed.cluster.faults import fault_injection
    from testbed.cluster.services import relay_client

    named = words[0] if words and not words[0].isdecimal() else None
    numbers = [_number(word) for word in words[named is not None :]]
    store, cluster = _running(cluster_named(named, name))
    idle_rules = relay_client.idle_rules(store, store.choose(cluster), numbers)
    print_healed(cluster, fault_injection.heal(store, cluster, numbers), as_json, idle_rules)


def _number(word: str) -> int:
    if not word.isdecimal():
        raise click.BadParameter(f"{word!r} is not the number of an injection", param_hint="NUMBER")
    return int(word)


def _print_injected(cluster: str, injected: Injected, as_json: bool, trip: RoundTrip | None = None) -> None:
    datapaths = {link: injected.state.datapaths.get(link, "direct") for link in sorted(injected.injection.links)}
    print_injection(cluster, injected.injection, datapaths, injected.took, as_json, trip)


def print_injection(
    cluster: str,
    injection: Injection,
    datapaths: Mapping[str, str],
    seconds: float,
    as_json: bool,
    trip: RoundTrip | None = None,
) -> None:
    """Print an injection. datapaths: datapath by link. seconds: duration of the command. trip: a round trip over one of the
    links, to be printed with it."""
    if as_json:
        print_json(
            "inject",
            {
                "cluster": cluster,
                "number": injection.number,
                "what": injection.what,
                "links": [{"name": link, "datapath": datapath} for link, datapath in datapaths.items()],
                "round_trip": _trip_document(trip),
                "seconds": seconds,
            },
        )
        return
    counts = ", ".join(f"{count} by {datapath}" for datapath, count in Counter(datapaths.values()).items())
    links = f"{len(datapaths)} link" + ("s" if len(datapaths) != 1 else "")
    where = f" ({links}: {counts})" if datapaths and not injection.down else ""
    echo(f"{injection.number}: {injection.what}{where}, in {seconds * 1000:.0f} ms")
    if trip is not None:
        echo(_trip_line(trip))


def _trip_document(trip: RoundTrip | None) -> dict[str, object] | None:
    if trip is None:
        return None
    return {
        "nodes": [trip.source, trip.destination],
        "delay": trip.delay,
        "jitter": trip.jitter,
        "loss": trip.loss,
        "rate": trip.rate,
        "rules": trip.rules,
        "down": trip.down,
    }


def _trip_line(trip: RoundTrip) -> str:
    from testbed.spec.units import format_duration, format_rate

    if trip.down:
        return f"a round trip {trip.source} - {trip.destination}: none, a link of the path is down"
    parts = [f"delay {format_duration(trip.delay)}" + (f" ± {format_duration(trip.jitter)}" if trip.jitter else "")]
    parts.append(f"loss {100 * trip.loss:.3g}%")
    if trip.rate:
        parts.append(f"at most {format_rate(trip.rate)} from {trip.source}")
    if trip.rules:
        parts.append(f"{trip.rules} fault rule" + ("s" if trip.rules > 1 else "") + " on the path")
    return f"a round trip {trip.source} - {trip.destination} now sees: {', '.join(parts)}"


def print_healed(cluster: str, lifted: Sequence[Injection], as_json: bool, idle_rules: Sequence[str] = ()) -> None:
    """Print the lifted injections. idle_rules: a sentence for each rule that never decided a frame's fate."""
    if as_json:
        healed = [{"number": injection.number, "what": injection.what} for injection in lifted]
        print_json("heal", {"cluster": cluster, "healed": healed, "idle_rules": list(idle_rules)})
        return
    for injection in lifted:
        echo(f"healed {injection.number}: {injection.what}")
    if not lifted:
        echo("nothing was injected")
    print_warnings(idle_rules)
