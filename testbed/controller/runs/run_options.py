"""Options of a run, their defaults and limits, which are checked before the run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from protocols.core.profile import Profile
from testbed.controller.runs.execution import Companion, ProgressCallback
from testbed.errors import DescriptionError, Problem, UnsupportedError
from testbed.fates.fate_hash import MASK
from testbed.registry import DEFAULT_PROTOCOL
from testbed.spec.names import MAX_RANKS

if TYPE_CHECKING:
    from testbed.spec.scenario import Scenario

Mode: TypeAlias = Literal["sim", "live", "dilated"]
Codec: TypeAlias = Literal["generated", "scapy"]
Nics: TypeAlias = Literal["inline", "shared"]

DILATE: Final = 200
"""Default factor by which time is slowed in mode dilated."""

TIMEOUT: Final = 60.0
"""Default timeout of a repetition, seconds."""

MAX_REPEAT: Final = 1_000_000
"""Maximum number of repetitions, each of which has a folder."""

MAX_SECONDS: Final = 1_000_000
"""Maximum of a timeout, seconds. In milliseconds, it fits the 31 bits of the kernel's timeouts."""


class PlainOptions(TypedDict, total=False):
    """Options that the command ``run`` passes on unchanged.

    protocol: a registered protocol's name, "emp" by default.
    codec: "generated" by default; "scapy" lets Scapy build and parse the frames.
    mode: "live" by default, in namespaces; "sim", in one process on a virtual clock; "dilated", in namespaces, slowed down.
    seed: seed of the links' fates and the workload's random numbers; by default the description's. Repetition k, from 0 on,
        has seed + k. In namespaces, links keep the first repetition's seed, or that with which their cluster was brought up
        before the run.
    repeat: number of repetitions, 1 by default.
    timeout: seconds for each repetition, 60 by default; in a simulation, for virtual time and for real time.
    patience: seconds without progress after which a run in namespaces fails.
    history: whether each application's sends, receives and notifications are written.
    check: whether checkers examine the history; by default if the workload, a scenario or a companion requires it.
    capture: whether a simulation writes every frame.
    fates: whether a run in namespaces logs every fate that is not a pass, as a simulation does: the relay then carries all
        impaired links. Otherwise the log in the folder lacks fates that the kernel decides.
    scenario: faults to inject during the run, or the file that describes them.
    profile: costs of NICs and hosts in simulated and dilated runs: the name of a profile, as `testbed protocol list`
        lists them, a TOML file, a `Profile` or its values. By default "ideal", with zero cost.
    profiles: by node, for nodes with another profile; overrides the description.
    ranks_per_node: programs per node, unless the description sets them; 1 by default, each with its own function of the
        NIC. In mode live, a NIC with several ranks is shared; in a dilated run, a node's ranks are in one process.
    nics: "inline" by default; "shared", in mode live, runs the firmware of every node in a process of its own.
    queues: receive queues of each NIC, 1 by default: in mode live, processes of its shared NIC; otherwise, queues of a
        profile whose firmware runs on the host's cores.
    steering: the hash that distributes frames over the queues, by its name in the protocol, or "round-robin"; by default
        the protocol's first hash.
    bind: whether, in mode live, each queue and its programs are pinned to a processor of their own; True by default.
    dilate: the factor by which time is slowed in mode dilated, 200 by default.
    """

    protocol: str
    codec: Codec
    mode: Mode
    seed: int | None
    repeat: int
    timeout: float
    patience: float | None
    history: bool
    check: bool | None
    capture: bool
    fates: bool
    scenario: Scenario | str | Path | None
    profile: str | Path | Profile | Mapping[str, Any]
    profiles: Mapping[str, str | Path | Profile | Mapping[str, Any]]
    ranks_per_node: int
    nics: Nics
    queues: int
    steering: str
    bind: bool
    dilate: int | None


class RunOptions(PlainOptions, total=False):
    """Keyword arguments of `testbed.run`: those of `PlainOptions`, and these. Each can be left out (see `DEFAULTS`).

    settings: settings of the workload, as texts or values.
    firmware: settings of the protocol's NICs, as texts or values; others keep their defaults.
    link_seed: seed of the links' fates, if it differs from `seed`, as in the replay of a run on a cluster that was up.
    output: the run's folder, which must be empty if it exists; without one, nothing is kept.
    companions: code that acts on the run, see `execution.Companion`.
    on_progress: called with a phrase that describes the current step.
    """

    settings: Mapping[str, object] | None
    firmware: Mapping[str, object] | None
    link_seed: int | None
    output: str | Path | None
    companions: Sequence[Companion]
    on_progress: ProgressCallback | None


DEFAULTS: Final[RunOptions] = {
    "protocol": DEFAULT_PROTOCOL, "codec": "generated", "mode": "live", "settings": None, "seed": None, "repeat": 1,
    "link_seed": None,
    "output": None, "timeout": TIMEOUT, "patience": None, "history": False, "check": None, "capture": False,
    "fates": False, "scenario": None, "profile": "ideal", "profiles": {}, "ranks_per_node": 1,
    "firmware": None, "nics": "inline", "queues": 1, "steering": "", "bind": True, "dilate": None,
    "companions": (), "on_progress": None,
}  # fmt: skip


def complete(options: RunOptions) -> RunOptions:
    """Return the options with defaults for missing ones. Raises TypeError for an unknown option, DescriptionError for a
    value out of range, UnsupportedError for `fates` with several repetitions in namespaces."""
    if unknown := [name for name in options if name not in DEFAULTS]:
        raise TypeError(f"run() got an unexpected keyword argument {unknown[0]!r}; known are: {', '.join(DEFAULTS)}")
    given: RunOptions = {**DEFAULTS, **options}
    mode, repeat = given["mode"], given["repeat"]
    problems = []
    if mode not in ("sim", "live", "dilated"):
        problems.append(Problem("mode", repr(mode), "sim, live or dilated"))
    if given["codec"] not in ("generated", "scapy"):
        problems.append(Problem("codec", repr(given["codec"]), "generated or scapy"))
    if given["nics"] not in ("inline", "shared"):
        problems.append(Problem("nics", repr(given["nics"]), "inline or shared"))
    if not 1 <= repeat <= MAX_REPEAT:
        problems.append(Problem("repeat", str(repeat), f"1 to {MAX_REPEAT:,}"))
    if not 1 <= given["ranks_per_node"] <= MAX_RANKS:
        problems.append(Problem("ranks_per_node", str(given["ranks_per_node"]), f"1 to {MAX_RANKS}"))
    if given["dilate"] is not None and given["dilate"] < 1:
        problems.append(Problem("dilate", str(given["dilate"]), "1 or more"))
    problems += check_seed(given["seed"], max(repeat, 1))
    problems += check_seed(given["link_seed"], max(repeat, 1), "link_seed")
    problems += check_seconds("timeout", given["timeout"]) + check_seconds("patience", given["patience"])
    if problems:
        raise DescriptionError("the run", problems)
    if given["fates"] and mode != "sim" and repeat > 1:
        raise UnsupportedError(f"--fates needs --repeat 1, got {repeat}: the log does not distinguish repetitions")
    return given


def check_seed(seed: int | None, repeat: int = 1, name: str = "seed") -> list[Problem]:
    """Check a seed; return at most one problem. seed: None for the description's. repeat: number of repetitions, whose
    seeds are consecutive. name: name of the option."""
    if seed is None or 0 <= seed <= MASK - (repeat - 1):
        return []
    limit = f": the last of {repeat} repetitions has {name} + {repeat - 1}" if repeat > 1 else ""
    return [Problem(name, str(seed), f"0 to {MASK - (repeat - 1)}{limit}")]


def check_seconds(name: str, seconds: float | None) -> list[Problem]:
    """Check a number of seconds; return at most one problem. name: name of the option. seconds: None if not given."""
    if seconds is None or 0 < seconds <= MAX_SECONDS:
        return []
    return [Problem(name, str(seconds), f"seconds, above 0 and up to {MAX_SECONDS}")]
