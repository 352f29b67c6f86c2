"""Run a workload on all nodes of a cluster, in the simulation or in namespaces, from its description to its results.

    import testbed

    result = testbed.run("star-4", "pingpong", mode="sim", settings={"count": 100})
    result.rows                # what was measured: dicts, as in the folder's rows.jsonl
    result.results["n1"]       # what the program on n1 returned (of the last repetition)
    result.verdict.grade       # trusted, degraded or invalid
    result.folder              # its folder (see `folders`), None unless output was given

    async def hello(comm, node, *, tag: int = 7):        # a workload of one's own: see `testbed.workloads`
        if comm.rank == 0:
            await comm.send("hello", 1, tag=tag)
        elif comm.rank == 1:
            return await comm.recv(source=0, tag=tag)

    testbed.run(Cluster.star(2, loss="5%"), hello, protocol="emp", seed=3).results["n2"]

cluster: a description, the name of a shipped one or its file, or a `RunningCluster`, which is used and stays. A name
under which a cluster is up means that cluster. Any other cluster is brought up for the run under a name of its own and
taken down afterwards, however the run ends; the simulation brings nothing up.

Failures are exceptions: ProgramError (a program's traceback, with its node's name), NodeDiedError, StuckError or
StalledError (who waits for what), TimeIsUpError, UnwritableError, and the errors of bringing up. By then everything is
cleaned up, and the folder has the rows measured and a result.json that says how the run ended.

Faults beside the programs are given as `scenario`, a `Scenario` or its file: each fault is an event of the run, and one
without effect a note of the verdict. Where time is dilated, a scenario's times are the model's. Other companions of the
programs are given as `beside`: see `execution.Beside`.

With ``history=True`` each application's sends, receives and notifications are written: see `testbed.workloads.history`.
With ``check=True`` checkers examine it, however the run ends (see `testbed.controller.checkers.promises`): their
findings are in the folder, in ``result.checks``, and in the verdict, whose grade is then "failed".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.core.profile import Profile
from protocols.core.protocol import Protocol
from testbed import packages
from testbed.cluster.records.ownership import temporary_directory
from testbed.controller.runs.execution import Beside, Execution, Follow, Plan, check_layout
from testbed.controller.runs.folders import Part, RunFolder, undelivered_messages
from testbed.controller.runs.profiles import node_profiles, profile_of, profile_values
from testbed.controller.runs.queue_options import live_queues, with_queues
from testbed.controller.runs.run_options import DILATE, Codec, Mode, Nics, RunOptions, complete
from testbed.controller.runs.run_recorder import KeptFolder, open_folder
from testbed.controller.runs.run_target import RunTarget, find_target
from testbed.controller.verdict.verdicts import Finding, Verdict, verdict_of
from testbed.errors import DescriptionError, Problem, UnsupportedError
from testbed.runtime.journal import read
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.runtime.sockets.protocol import is_lossy
from testbed.spec.placement import ranks_of, with_ranks
from testbed.workloads.lookup import Chosen, Form, choose, named
from testbed.workloads.workload_settings import checked

if TYPE_CHECKING:
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.checkers.check_report import Report
    from testbed.controller.checkers.runs import Checking
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.controller.scenarios.machine_reports import SpreadScenario
    from testbed.controller.scenarios.player import ScenarioPlayer
    from testbed.controller.verdict.outages import Judge, Watched
    from testbed.spec.layout import Layout
    from testbed.spec.model import Description
    from testbed.spec.scenario import Scenario


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run. results: returned by the programs, by node; counted: the counters of their NICs' firmware; used:
    the use of the profile's parts (see `Execution`); all three of the last repetition, `repetitions` has all. verdict:
    of all repetitions together."""

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
    cluster: str | Path | Description | Layout | RunningCluster | SpreadCluster,
    workload: Form,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run a workload on all nodes of a cluster. options: see `run_options.RunOptions`, which documents each."""
    given = complete(options)
    protocol, codec, mode, nics = given["protocol"], given["codec"], given["mode"], given["nics"]
    seed, repeat, timeout, patience = given["seed"], given["repeat"], given["timeout"], given["patience"]
    output, history, firmware, follow = given["output"], given["history"], given["firmware"], given["follow"]
    chosen = choose(workload, given["settings"])
    stack_of = _configured(protocol_of(protocol, mode, codec), protocol, firmware, codec, nics)
    check = _resolve_check(given["check"], chosen, protocol, stack_of, history)
    shared = _are_shared(nics, mode, codec, protocol, stack_of)
    slow, prices = _slow(mode, given["dilate"], stack_of), _prices(given["profile"], mode, stack_of)
    count, steering = given["queues"], given["steering"]
    queues = ReceiveQueues()
    if mode == "live":
        several = shared or given["ranks_per_node"] > 1
        queues = live_queues(count, steering, given["bind"], stack_of, protocol, several)
    else:
        prices = with_queues(prices, count, steering, stack_of, protocol)
    target = find_target(cluster, mode, seed)
    if target.spread is not None:
        _refuse_on_machines(given, named(workload))
    profiles = node_profiles(target, given["profiles"], mode, stack_of, prices)
    target = _placed(target, given["ranks_per_node"], profiles, prices)
    _check_target(target, chosen, stack_of, mode, slow)
    ranks = ranks_of(target.layout)
    faults = _scenario(given["scenario"], target, mode, stack_of, slow, chosen)
    first = target.layout.seed if seed is None else seed
    asked = {
        "kind": "workload", "cluster": target.name, "origin": target.origin, "workload": chosen.name,
        "form": named(workload), "settings": chosen.settings, "protocol": protocol, "codec": codec, "mode": mode,
        "seed": first, "repeat": repeat, "timeout": timeout, "patience": patience,
        "scenario": faults.name if faults is not None else "", "profile": profile_values(prices), "dilate": slow,
        "nics": nics, "queues": count, "steering": steering, "firmware": dict(firmware or {}),
        "profiles": {name: profile_values(profile) for name, profile in profiles.items()},
        "ranks": [{"rank": rank.number, "name": rank.name, "node": rank.node, "core": rank.core} for rank in ranks],
    }  # fmt: skip
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        place = output or stack.enter_context(temporary_directory("run"))
        folder = stack.enter_context(open_folder(Path(place), asked, target))
        players = _players(faults, timeout, folder, slow, prices, target.spread is not None)
        beside = (*given["beside"], *(player for player in players if isinstance(player, Beside)))
        checking = _checking(check, chosen, folder, target, patience, (*given["beside"], *players))
        plan = Plan(
            chosen, _presuming_nothing(stack_of, faults, mode), first, timeout, patience,
            history or checking is not None, given["capture"], beside, follow, prices, slow, profiles=profiles,
            shared=shared, queues=queues, ranks=ranks, asked=asked,
        )  # fmt: skip
        series = _Series(target, folder, plan, repeat, players, checking)
        with target.ready(
            follow or _ignore, folder, fates=given["fates"], log=output is not None, slow=max(slow, 1)
        ) as running:
            executions = series.execute(running)
        seconds = time.monotonic() - begun
        verdict = series.finish(executions, seconds)
        rows = list(read(folder.path / "rows.jsonl"))
    kept_in = Path(output).absolute() if output is not None else None
    return RunResult(
        target.name, chosen.name, protocol, mode, first, chosen.settings, rows, executions, verdict, kept_in, seconds
    )


@dataclass(frozen=True, slots=True)
class _Series:
    """The repetitions of a run. plan: of the first one. players: of its scenario, also among the plan's companions."""

    target: RunTarget
    folder: KeptFolder
    plan: Plan
    repeat: int
    players: Sequence[ScenarioPlayer | SpreadScenario]
    checking: Checking | None

    def execute(self, running: RunningCluster | None) -> list[Execution]:
        """Carry out all repetitions. running: None in the simulation."""
        with contextlib.ExitStack() as around:
            for player in self.players:
                around.enter_context(player.prepared(running, self.repeat))
            watched = _watched(running, self.plan.dilate)
            return [self._repetition(number, running, watched) for number in range(1, self.repeat + 1)]

    def _repetition(self, number: int, running: RunningCluster | None, watched: Judge | None) -> Execution:
        follow, checking, folder = self.plan.follow, self.checking, self.folder
        if self.target.spread is not None:
            from testbed.controller.verdict.machine_outages import WatchedMachines

            watched = WatchedMachines()
        phase = f"{self.plan.chosen.name} on {self.target.name}"
        if self.repeat > 1:
            phase += f", {number} of {self.repeat}"
        if follow is not None:
            follow(phase)
            follow = partial(_follow_on, follow, phase)
        plan = replace(self.plan, seed=self.plan.seed + number - 1, follow=follow)
        part = folder.part(number, self.repeat)
        folder.event("repetition begins", number=number, seed=plan.seed)
        findings = checking.findings if checking is not None else list[Finding]
        with (
            watched.judging(folder, findings) if watched is not None else contextlib.nullcontext(),
            checking.check_repetition(part, watched) if checking is not None else contextlib.nullcontext(),
        ):
            try:
                for player in self.players:
                    player.seed = plan.seed
                execution = self._execute(running, plan, part, watched)
            finally:
                for player in self.players:
                    player.close()
        folder.event("repetition ends", number=number)
        return execution if checking is None else checking.add_to(execution)

    def _execute(self, running: RunningCluster | None, plan: Plan, part: Part, watched: Judge | None) -> Execution:
        """Execute a repetition; each mode is imported only when it is used."""
        if self.target.spread is not None:
            from testbed.controller.runs.spread_execution import execute
            from testbed.controller.scenarios.machine_reports import SpreadScenario
            from testbed.controller.verdict.machine_outages import WatchedMachines

            assert isinstance(watched, WatchedMachines)
            scenario = next((player for player in self.players if isinstance(player, SpreadScenario)), None)
            return execute(self.target.spread, plan, part, watched, self.folder.events, scenario)
        if running is None:
            from testbed.controller.runs.simulated_execution import simulate

            return simulate(self.target.layout, self.target.base, plan, part)
        from testbed.controller.runs.live_execution import live

        return live(running, plan, part)

    def finish(self, executions: Sequence[Execution], seconds: float) -> Verdict:
        """Write the result to the folder; return the verdict of all repetitions together."""
        findings = [finding for execution in executions for finding in execution.verdict.findings]
        warnings = [note for player in self.players for note in player.notes]
        warnings += undelivered_messages(self.folder.path)
        notes = [note for execution in executions for note in execution.verdict.notes]
        notes = [note for note in notes if all(player.heeds(note) for player in self.players)]
        verdict = verdict_of(
            findings, dict.fromkeys([*warnings, *notes]), sum(execution.verdict.seconds for execution in executions)
        )
        self.folder.done(
            seconds=seconds,
            verdict=verdict,
            results=[execution.results for execution in executions],
            counted=[execution.counted for execution in executions],
            used=[execution.used for execution in executions],
            switches=[execution.switches for execution in executions],
            lateness=[{name: asdict(late) for name, late in execution.lateness.items()} for execution in executions],
        )
        return verdict


def _refuse_on_machines(given: RunOptions, form: str) -> None:
    """Refuse what a run on several machines does not have. Raises UnsupportedError."""
    wanted: dict[str, bool] = {
        f"mode {given['mode']}": given["mode"] != "live",
        "companions": bool(given["beside"]),
        "NICs with several receive queues": given["queues"] != 1,
        "several ranks on a node": given["ranks_per_node"] != 1,
        "frames by Scapy": given["codec"] != "generated",
        "settings of firmware": bool(given["firmware"]),
        "a log of fates": given["fates"],
        "a workload that has no name and no file": not form,
    }
    refused = [what for what, is_wanted in wanted.items() if is_wanted]
    if refused:
        raise UnsupportedError(f"a run on several machines cannot have {', '.join(refused)}")


def _ignore(_phase: str) -> None:
    pass


def _resolve_check(check: bool | None, chosen: Chosen, protocol: str, stack_of: Protocol, history: bool) -> bool | None:
    """Return whether checkers examine the history; None: by default. Raises UnsupportedError where workload, protocol and
    checks do not go together."""
    if chosen.native is not None:
        return _resolve_check_of_native(chosen, protocol, stack_of, history, check)
    if is_lossy(stack_of):
        _refuse_losses(chosen, protocol, check)
        return False
    return check


def _prices(profile: str | Path | Profile | Mapping[str, Any], mode: Mode, protocol: Protocol) -> Profile:
    """Return the profile of NICs and hosts. Raises UnsupportedError for one that mode live cannot have."""
    prices = profile_of(profile, protocol)
    if mode == "live" and not prices.is_free:
        raise UnsupportedError(
            f"profile {prices.name}: in namespaces NICs take what this machine takes; sim and dilated price"
        )
    return prices


def _placed(target: RunTarget, per_node: int, profiles: Mapping[str, Profile], usual: Profile) -> RunTarget:
    """Return the target with the ranks of its nodes decided."""
    cores = {node.name: node.cores or profiles.get(node.name, usual).cores for node in target.layout.nodes}
    for node in target.layout.nodes:
        if node.ranks and max(node.ranks) >= cores[node.name]:
            raise UnsupportedError(
                f"node {node.name} has a rank on core {max(node.ranks)}: its cores are 0 to {cores[node.name] - 1}"
            )
    return replace(target, layout=with_ranks(target.layout, per_node, cores))


def _check_target(target: RunTarget, chosen: Chosen, protocol: Protocol, mode: Mode, slow: int) -> None:
    """Refuse a target that the workload cannot run on, before anything starts. Raises UnsupportedError."""
    layout = target.layout
    check_layout(layout, chosen, protocol)
    several = len(ranks_of(layout)) > len(layout.nodes)
    if mode == "live" and several and protocol.split_driver is None:
        raise UnsupportedError("several ranks on a node share its NIC, and this protocol has none that could be shared")
    if slow and target.up is not None:
        raise UnsupportedError(f"{target.name} is up already: a dilated run brings up its own, whose links are slowed")


def _checking(
    check: bool | None,
    chosen: Chosen,
    folder: KeptFolder,
    target: RunTarget,
    patience: float | None,
    beside: Sequence[object],
) -> Checking | None:
    """Return the checker of each repetition, where checks are asked for or, by default, make sense."""
    if not check and (check is not None or not (chosen.checked or beside)):
        return None
    from testbed.controller.checkers.runs import Checking

    return Checking(folder, [rank.name for rank in ranks_of(target.layout)], patience, beside)


def _resolve_check_of_native(
    chosen: Chosen, protocol: str, stack_of: Protocol, history: bool, check: bool | None
) -> bool | None:
    """Return whether checkers examine the history of a native workload; None: by default. Raises UnsupportedError for
    a protocol that it does not run on, and for a history where the host library reports none."""
    if chosen.protocol and chosen.protocol != protocol:
        raise UnsupportedError(
            f"workload {chosen.name} speaks to the host library of {chosen.protocol} itself: "
            f"it runs over that, not over {protocol}"
        )
    if stack_of.active_messages:
        return check
    if not chosen.protocol:
        raise UnsupportedError(
            f"workload {chosen.name} sends active messages, which {protocol} does not have: choose one of "
            f"{', '.join(packages.with_active_messages())} (--protocol)"
        )
    if history or check:
        raise UnsupportedError(
            f"workload {chosen.name} has no history: the host library of {protocol} does not report its messages"
        )
    return False


def _configured(
    protocol: Protocol, name: str, settings: Mapping[str, object] | None, codec: Codec, nics: Nics
) -> Protocol:
    """Return the protocol with configured firmware. Raises UnsupportedError, and DescriptionError for the settings."""
    if not settings:
        return protocol
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


def _refuse_losses(chosen: Chosen, protocol: str, check: bool | None) -> None:
    """Refuse workloads and checks that a protocol that loses messages cannot support. Raises UnsupportedError."""
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
    given: Scenario | str | Path | None,
    target: RunTarget,
    mode: Mode,
    protocol: Protocol,
    slow: int,
    chosen: Chosen,
) -> Scenario | None:
    """Load a scenario and check that it is feasible there."""
    if given is None:
        return None
    from testbed.controller.scenarios.feasibility import check, texts_of
    from testbed.controller.scenarios.player import scenario_of

    scenario = scenario_of(given)
    if target.spread is not None and (files := texts_of(scenario.faults)):
        raise UnsupportedError(
            f"{scenario.name}: a jitter or a rate in a file ({next(iter(files))}) does not reach other machines"
        )
    asked = target.up.state.asked if target.up is not None else "auto"
    lasting = chosen.name if chosen.bears_restarts is False else ""
    check(
        scenario, target.layout, mode, over_kernel=protocol.is_kernels, asked=asked, slow=slow, lasting=lasting
    )  # fmt: skip
    return scenario


def _presuming_nothing(protocol: Protocol, faults: Scenario | None, mode: Mode) -> Protocol:
    """Return the protocol, where NICs count their restarts and some restart, with NICs none of which is in the incarnation
    that a protocol may presume: so peers introduce themselves, as on the wall clock, where incarnations are times."""
    if faults is None or mode == "live":
        return protocol
    from testbed.controller.scenarios.feasibility import restarts_nics

    return replace(protocol, plug=partial(_plug_later, protocol.plug)) if restarts_nics(faults) else protocol


def _plug_later(plug: Plug, adapter: Adapter, nic: Nic) -> Agent:
    return plug(adapter.of_incarnation(adapter.incarnation + 1), nic)


def _slow(mode: Mode, dilate: int | None, protocol: Protocol) -> int:
    """Return the factor by which time is slowed; 0 where it is not dilated."""
    if mode != "dilated":
        if dilate is not None:
            raise UnsupportedError(f"time in {mode} cannot be slowed: dilate goes with mode dilated")
        return 0
    if protocol.is_kernels:
        raise UnsupportedError("the kernel's own protocols know this machine's time only: they run in live")
    if dilate is not None and dilate < 1:
        raise DescriptionError("the run", [Problem("dilate", str(dilate), "1 or more")])
    return DILATE if dilate is None else dilate


def _are_shared(nics: Nics, mode: Mode, codec: Codec, name: str, protocol: Protocol) -> bool:
    """Whether NICs are shared. Raises UnsupportedError where they cannot be."""
    if nics not in ("inline", "shared"):
        raise DescriptionError("the run", [Problem("nics", repr(nics), "inline or shared")])
    if nics == "inline":
        return False
    if mode != "live":
        raise UnsupportedError(
            f"NICs are shared in namespaces, on this machine's clock: --nics shared is not for {mode}"
        )
    if protocol.split_driver is None:
        raise UnsupportedError(f"protocol {name} has no NICs that could be shared")
    if codec != "generated":
        raise UnsupportedError("the agents of shared NICs have the generated codec")
    return True


def _players(
    scenario: Scenario | None, timeout: float, folder: RunFolder, slow: int, prices: Profile, on_machines: bool
) -> tuple[ScenarioPlayer | SpreadScenario, ...]:
    """Return the player of a scenario, if there is one."""
    if scenario is None:
        return ()
    from testbed.controller.scenarios.player import Dilated, ScenarioPlayer

    folder.scenario(scenario.to_toml())
    if on_machines:
        from testbed.controller.scenarios.machine_reports import SpreadScenario

        return (SpreadScenario(scenario, timeout, folder.events),)
    dilated = Dilated(slow, not prices.is_free) if slow else None
    return (ScenarioPlayer(scenario, seconds=timeout, tell=folder.event, dilated=dilated),)


def protocol_of(name: str, mode: Mode, codec: Codec = "generated") -> Protocol:
    """Return a registered protocol. Raises the errors of `packages.protocol`, and UnsupportedError where it cannot run
    so."""
    found = packages.protocol(name)
    if mode == "sim" and found.is_kernels:
        raise UnsupportedError(f"{name} is the kernel's own: it runs in live; in sim, only protocols on NICs do")
    if codec == "scapy":
        if found.by_scapy is None:
            raise UnsupportedError(f"{name} has no frames that Scapy could make: leave --codec out")
        return replace(found, plug=found.by_scapy())
    return found


def _watched(running: RunningCluster | None, slow: int) -> Watched | None:
    """Watch for outages of the tool's own processes, where there is a cluster."""
    if running is None:
        return None
    from testbed.controller.verdict.outages import Watched

    return Watched(running.name, time.monotonic_ns(), dilated=bool(slow))
