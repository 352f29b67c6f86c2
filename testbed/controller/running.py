"""Runs: a workload on all nodes of a cluster, in the simulation or in namespaces, from its description to its results.

    import testbed

    result = testbed.run("star-4", "pingpong", mode="sim", settings={"count": 100})
    result.rows                # what was measured: dicts, as in the folder's rows.jsonl
    result.results["n1"]       # what the program on n1 returned (of the last repetition)
    result.verdict.grade       # trusted, degraded or invalid
    result.folder              # where all of it is (see `folders`), None unless output was given

    async def hello(comm, node, *, tag: int = 7):        # a workload of one's own: see `testbed.workloads`
        if comm.rank == 0:
            await comm.send("hello", 1, tag=tag)
        elif comm.rank == 1:
            return await comm.recv(source=0, tag=tag)

    testbed.run(Cluster.star(2, loss="5%"), hello, protocol="emp", seed=3).results["n2"]

cluster: a description, the name of one that is shipped or its file, or a `RunningCluster`, which is used and stays. A name
under which a cluster is up means that one. Everything else is brought up for the run, with a name of its own, and taken down
after it, however it ends; in the simulation nothing is brought up at all.

What goes wrong is an exception: ProgramError (a program's traceback, with its node's name), NodeDiedError, StuckError or
StalledError (who waits for what), TimeIsUpError, UnwritableError, and what bringing up raises. By then all has been cleaned
up, and the folder has what was measured and a result.json that says how it ended.

What goes wrong beside the programs is given as `scenario`, a `Scenario` or its file: each fault is an event of the run, and
one that had no effect a note of the verdict. Where time is dilated, a scenario's times are the model's. Anything else that
happens beside them is `beside`: see `executing.Beside`.

With ``history=True`` what each application sent, received and was told is written: see `testbed.workloads.history`. With
``check=True`` checkers look through it, however the run ends (see `testbed.controller.checkers.promises`): what they find is
in the folder and among the verdict's findings, whose grade is then "failed", and in ``result.checks``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from protocols.core.profile import Profile
from protocols.core.protocol import Protocol
from testbed import registry
from testbed.cluster import temporary
from testbed.controller.executing import Beside, Execution, Follow, Plan, names_of
from testbed.controller.folders import Part, RunFolder
from testbed.controller.limits import problem_of_seed, problem_of_time
from testbed.controller.profiles import in_words, profile_of
from testbed.controller.recording import kept
from testbed.controller.verdicts import Verdict, verdict_of
from testbed.controller.whereabouts import Whereabouts, find
from testbed.errors import DescriptionError, Problem, TestbedError, UnsupportedError
from testbed.runtime.journal import read
from testbed.runtime.sockets.protocol import is_lossy
from testbed.workloads.finding import Chosen, Form, choose, named
from testbed.workloads.settings import checked

if TYPE_CHECKING:
    from testbed.cluster.running import RunningCluster
    from testbed.controller.checkers.report import Report
    from testbed.controller.checkers.runs import Checking
    from testbed.controller.scenarios.playing import Playing
    from testbed.spec.layout import Layout
    from testbed.spec.model import Description
    from testbed.spec.scenario import Scenario

Mode: TypeAlias = Literal["sim", "live", "dilated"]
Codec: TypeAlias = Literal["generated", "scapy"]
Nics: TypeAlias = Literal["inline", "shared"]

DILATE: Final = 200
"""How many times time is slowed if nothing is said."""

TIMEOUT: Final = 60.0
"""Seconds that a repetition may take if nothing is said."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has come to. results: what the programs returned, by node, and counted: the counters of their NICs'
    firmware, and used: how a profile's parts were (see `Execution`), of the last repetition; `repetitions` has all.
    verdict: of all repetitions together."""

    cluster: str
    workload: str
    protocol: str
    mode: Mode
    seed: int
    settings: Mapping[str, object]
    rows: Sequence[Mapping[str, Any]]
    repetitions: Sequence[Execution]
    verdict: Verdict
    folder: Path | None
    seconds: float

    @property
    def results(self) -> Mapping[str, Any]:
        return self.repetitions[-1].results

    @property
    def counted(self) -> Mapping[str, Mapping[str, int]]:
        return self.repetitions[-1].counted

    @property
    def used(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        return self.repetitions[-1].used

    @property
    def checks(self) -> Report | None:
        return self.repetitions[-1].checks


def run(
    cluster: str | Path | Description | Layout | RunningCluster,
    workload: Form,
    *,
    protocol: str = "emp",
    codec: Codec = "generated",
    mode: Mode = "live",
    settings: Mapping[str, object] | None = None,
    seed: int | None = None,
    repeat: int = 1,
    output: str | Path | None = None,
    timeout: float = TIMEOUT,
    patience: float | None = None,
    history: bool = False,
    check: bool | None = None,
    capture: bool = False,
    fates: bool = False,
    scenario: Scenario | str | Path | None = None,
    profile: str | Path | Profile | Mapping[str, Any] = "ideal",
    firmware: Mapping[str, object] | None = None,
    nics: Nics = "inline",
    dilate: int | None = None,
    beside: Sequence[Beside] = (),
    follow: Follow | None = None,
) -> RunResult:
    """Run a workload on all nodes of a cluster.

    protocol: a registered one's name. codec: "scapy" lets Scapy itself make and read the frames. settings: of the workload,
    as texts or values. seed: of the links' fates and of the workload's chance; by default the description's; repetition k,
    from 0 on, has seed + k, but a cluster that is up keeps its links' seed. output: the run's folder, which must not be
    there yet; without one nothing is kept. timeout: seconds for each repetition, in the simulation of virtual time and on
    this machine. patience: seconds for which nothing may get any further, in namespaces. check: whether checkers look
    through the history; by default where the workload wants it or something happens beside it. capture: let the simulation
    write every frame. fates: let namespaces tell every fate that is not a pass, as the simulation does: the relay carries
    what has any. Without it the log in the folder lacks what the kernel decides. profile: what NICs and hosts cost in the
    simulation and where time is dilated; a name or a file, see `profiles`. firmware: settings of the protocol's NICs, as
    texts or values, other than their usual ones. dilate: how many times time is slowed there.
    follow: is told what the run is at.
    nics: "shared" has the firmware of every node in a process of its own, in namespaces.
    """
    _check(mode, seed, repeat, timeout, patience)
    say: Follow = follow or (lambda _: None)
    if fates and mode != "sim" and repeat > 1:
        raise UnsupportedError("fates of several repetitions cannot be told apart: --fates needs --repeat 1")
    chosen, stack_of = choose(workload, settings), protocol_of(protocol, mode, codec)
    if firmware:
        stack_of = _configured(stack_of, protocol, firmware, codec, nics)
    if chosen.native is not None:
        check = _alone(chosen, protocol, history or bool(check))
    elif is_lossy(stack_of):
        _bear(chosen, protocol, check)
        check = False
    shared = _are_shared(nics, mode, codec, protocol, stack_of)
    prices = profile_of(profile, stack_of)
    slow = _slow(mode, dilate, stack_of)
    if mode == "live" and not prices.is_free:
        raise UnsupportedError(
            f"profile {prices.name}: in namespaces NICs take what this machine takes; sim and dilated price"
        )
    where = find(cluster, mode, seed)
    names_of(where.layout, chosen, stack_of)  # refuses before anything starts
    if slow and where.up is not None:
        raise UnsupportedError(f"{where.name} is up already: a dilated run brings up its own, whose links are slowed")
    faults = _scenario(scenario, where, mode, stack_of, slow)
    first = where.layout.seed if seed is None else seed
    asked = {
        "kind": "workload", "cluster": where.name, "origin": where.origin, "workload": chosen.name,
        "form": named(workload), "settings": chosen.settings, "protocol": protocol, "codec": codec, "mode": mode,
        "seed": first, "repeat": repeat, "timeout": timeout, "patience": patience,
        "scenario": faults.name if faults is not None else "", "profile": in_words(prices), "dilate": slow,
        "nics": nics, "firmware": dict(firmware or {}),
    }  # fmt: skip
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        place = output or stack.enter_context(temporary.directory("run"))
        folder = stack.enter_context(kept(Path(place), asked, where))
        playing = _playing(faults, timeout, folder, slow, prices)
        beside = (*beside, *playing)
        executions: list[Execution] = []
        checking: Checking | None = None
        if check or (check is None and (chosen.checked or beside)):
            from testbed.controller.checkers.runs import Checking

            names = [node.name for node in where.layout.nodes]
            checking, history = Checking(folder, names, patience, beside), True
        with (
            where.ready(say, folder, fates=fates, log=output is not None, slow=max(slow, 1)) as running,
            contextlib.ExitStack() as around,
        ):
            for one in playing:
                around.enter_context(one.prepared(running, repeat))
            for number in range(1, repeat + 1):
                phase = f"{chosen.name} on {where.name}" + (f", {number} of {repeat}" if repeat > 1 else "")
                say(phase)
                plan = Plan(
                    chosen, stack_of, first + number - 1, timeout, patience, history, capture, tuple(beside),
                    partial(_follow_on, follow, phase) if follow is not None else None, prices, slow,
                    shared=shared,
                )  # fmt: skip
                part = folder.part(number, repeat)
                folder.event("repetition begins", number=number, seed=plan.seed)
                with checking.of(part) if checking is not None else contextlib.nullcontext():
                    try:
                        for one in playing:
                            one.seed = plan.seed
                        execution = _execute(where, running, plan, part)
                    finally:
                        for one in playing:
                            one.close()
                executions.append(execution if checking is None else checking.joined(execution))
                folder.event("repetition ends", number=number)
        seconds = time.monotonic() - begun
        findings = [finding for one in executions for finding in one.verdict.findings]
        warnings = [note for one in playing for note in one.notes]
        told = (note for one in executions for note in one.verdict.notes)
        notes = dict.fromkeys([*warnings, *(note for note in told if all(one.heeds(note) for one in playing))])
        verdict = verdict_of(findings, notes, sum(one.verdict.seconds for one in executions))
        folder.done(
            seconds=seconds,
            verdict=verdict,
            results=[one.results for one in executions],
            counted=[one.counted for one in executions],
            used=[one.used for one in executions],
            switches=[one.switches for one in executions],
            lateness=[{name: asdict(late) for name, late in one.lateness.items()} for one in executions],
        )
        rows = list(read(folder.path / "rows.jsonl"))
    kept_in = Path(output).absolute() if output is not None else None
    return RunResult(
        where.name, chosen.name, protocol, mode, first, chosen.settings, rows, executions, verdict, kept_in, seconds
    )


def _alone(chosen: Chosen, protocol: str, history: bool) -> bool:
    """Whether its history is checked: it has none. Raises UnsupportedError where a workload without MPI cannot run so."""
    if chosen.protocol != protocol:
        raise UnsupportedError(
            f"workload {chosen.name} speaks to the host library of {chosen.protocol} itself: "
            f"it runs over that, not over {protocol}"
        )
    if history:
        raise UnsupportedError(f"workload {chosen.name} has no history of MPI's calls, at which checkers look")
    return False


def _configured(protocol: Protocol, name: str, settings: Mapping[str, object], codec: Codec, nics: Nics) -> Protocol:
    """The same with other firmware. Raises UnsupportedError, and DescriptionError for the settings."""
    if protocol.configurable is None or codec != "generated" or nics != "inline":
        why = "no settings that could be chosen"
        if protocol.configurable is not None:
            why = "its usual settings where NICs are shared or Scapy makes the frames: leave --firmware out"
        raise UnsupportedError(f"the firmware of {name} has {why}")
    form, whose = protocol.configurable.form, f"the firmware of {name}"
    try:
        values = form(**checked(form, settings, whose))
    except ValueError as error:
        what, _, allowed = str(error).rpartition(": ")
        raise DescriptionError(f"the settings of {whose}", [Problem("", what, allowed)]) from error
    return replace(protocol, plug=protocol.configurable.plug(values))


def _bear(chosen: Chosen, protocol: str, check: bool | None) -> None:
    """A protocol that loses messages is none for every workload. Raises UnsupportedError."""
    if not chosen.bears_loss:
        raise UnsupportedError(
            f"workload {chosen.name} needs every message, once and in order, and {protocol} promises none of that: "
            f"run it over tcp, or a protocol on NICs"
        )
    if check:
        raise UnsupportedError(f"{protocol} promises nothing that a checker could look for: leave --check out")


def _follow_on(follow: Follow, phase: str, what: str) -> None:
    follow(f"{phase}, {what}")


def _scenario(
    given: Scenario | str | Path | None, where: Whereabouts, mode: Mode, protocol: Protocol, slow: int
) -> Scenario | None:
    """After a look at whether it can be carried out there."""
    if given is None:
        return None
    from testbed.controller.scenarios.checking import check
    from testbed.controller.scenarios.playing import scenario_of

    scenario = scenario_of(given)
    asked = where.up.state.asked if where.up is not None else "auto"
    check(scenario, where.layout, mode, over_kernel=not protocol.ethertype, asked=asked, slow=slow)
    return scenario


def _slow(mode: Mode, dilate: int | None, protocol: Protocol) -> int:
    """How many times time is slowed; 0 where it is not dilated."""
    if mode != "dilated":
        if dilate is not None:
            raise UnsupportedError(f"time in {mode} cannot be slowed: dilate goes with mode dilated")
        return 0
    if not protocol.ethertype:
        raise UnsupportedError("the kernel's own protocols know this machine's time only: they run in live")
    if dilate is not None and dilate < 1:
        raise DescriptionError("the run", [Problem("dilate", str(dilate), "1 or more")])
    return DILATE if dilate is None else dilate


def _are_shared(nics: Nics, mode: Mode, codec: Codec, name: str, protocol: Protocol) -> bool:
    """Whether NICs are. Raises UnsupportedError where they cannot be."""
    if nics not in ("inline", "shared"):
        raise DescriptionError("the run", [Problem("nics", repr(nics), "inline or shared")])
    if nics == "inline":
        return False
    if mode != "live":
        raise UnsupportedError(
            f"NICs are shared in namespaces, on this machine's clock: --nics shared is not for {mode}"
        )
    if protocol.apart is None:
        raise UnsupportedError(f"protocol {name} has no NICs that could be shared")
    if codec != "generated":
        raise UnsupportedError("the agents of shared NICs have the generated codec")
    return True


def _playing(
    scenario: Scenario | None, timeout: float, folder: RunFolder, slow: int, prices: Profile
) -> tuple[Playing, ...]:
    """What carries it out beside each repetition."""
    if scenario is None:
        return ()
    from testbed.controller.scenarios.playing import Dilated, Playing

    folder.scenario(scenario.to_toml())
    dilated = Dilated(slow, not prices.is_free) if slow else None
    return (Playing(scenario, seconds=timeout, tell=folder.event, dilated=dilated),)


def protocol_of(name: str, mode: Mode, codec: Codec = "generated") -> Protocol:
    """A registered protocol. Raises NotFoundError, UnsupportedError where it does not run in this mode, or so."""
    found = registry.load(registry.PROTOCOLS, name)
    if not isinstance(found, Protocol):
        raise TestbedError(f"what is registered as protocol {name!r} is a {type(found).__name__}, no Protocol")
    if mode == "sim" and not found.ethertype:
        raise UnsupportedError(f"{name} is the kernel's own: it runs in live; in sim, only protocols on NICs do")
    if codec == "scapy":
        if found.by_scapy is None:
            raise UnsupportedError(f"{name} has no frames that Scapy could make: leave --codec out")
        return replace(found, plug=found.by_scapy())
    return found


def _check(mode: str, seed: int | None, repeat: int, timeout: float, patience: float | None) -> None:
    problems = []
    if mode not in ("sim", "live", "dilated"):
        problems.append(Problem("mode", repr(mode), "sim, live or dilated"))
    if repeat < 1:
        problems.append(Problem("repeat", str(repeat), "1 or more"))
    problems += problem_of_seed(seed, max(repeat, 1))
    problems += problem_of_time("timeout", timeout) + problem_of_time("patience", patience)
    if problems:
        raise DescriptionError("the run", problems)


def _execute(where: Whereabouts, running: RunningCluster | None, plan: Plan, part: Part) -> Execution:
    """Each mode is imported only when it is used."""
    if running is None:
        from testbed.controller.simulating import simulate

        return simulate(where.layout, where.base, plan, part)
    from testbed.controller.living import live

    return live(running, plan, part)
