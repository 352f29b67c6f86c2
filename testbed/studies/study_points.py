"""Points of a study: each is one run, or some cases of a swarm. Requests and results are JSON, so that any process with this
package can compute points."""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from testbed.controller.conformance.candidate import candidate
from testbed.controller.conformance.case_checks import failed_cases
from testbed.controller.runs.runner import run
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import TestbedError, UnsupportedError
from testbed.spec.loader import load, parse
from testbed.spec.model import Description
from testbed.spec.toml_writer import to_toml
from testbed.studies.designs import Parameters, Value
from testbed.studies.study_file import CASES, FIRST_SEED, RESOURCES, SWARM

DONE, FAILED = "done", "failed"

_MAX_REDUCED: Final = 3
"""Maximum number of failed cases of a point that are reduced: reducing one takes as long as a hundred cases."""

_IN_NAMESPACES: Final = ("live", "dilated")


def is_live(parameters: Parameters) -> bool:
    """Whether the run is in namespaces, where other processes of the machine disturb it."""
    return SWARM not in parameters and parameters.get("mode", "live") in _IN_NAMESPACES


def compute(request: str) -> str:
    """Compute a point. request: as `format_request` returns it. Return JSON with the keys of `study_folder.Outcome` other
    than point and attempt. An error of the run becomes its outcome."""
    _freeze_imports()
    point = json.loads(request)
    start_time = time.monotonic()
    try:
        parameters = point["parameters"]
        result = _run_cases(parameters) if SWARM in parameters else _run(parameters, Path(point["base"]))
    except TestbedError as error:
        result = {"outcome": FAILED, "error": str(error), "rows": [], "verdict": ""}
    gc.collect()  # hosts and NICs of a run form reference cycles, which hold the memory of their endpoints
    return json.dumps({**result, "seconds": round(time.monotonic() - start_time, 6)}, default=repr)


@cache
def _freeze_imports() -> None:
    """In a worker process, exclude the objects that exist before the first run from garbage collection."""
    if multiprocessing.parent_process() is not None:
        gc.freeze()


def format_request(parameters: Parameters, base: Path) -> str:
    """Format the request for a point, without the parameters that reserve processors. base: directory of relative files."""
    run_parameters = {name: value for name, value in parameters.items() if name not in RESOURCES}
    return json.dumps({"parameters": run_parameters, "base": str(base)})


def _run(parameters: Mapping[str, Value], base: Path) -> dict[str, Any]:
    if parameters.get("codec") == "scapy" and "distributed" in sys.modules:
        raise UnsupportedError(
            "codec scapy on Dask: the licences of Scapy and of Dask's dependencies cannot be combined in a process"
        )
    options: dict[str, Any] = {name: value for name, value in parameters.items() if "." not in name}
    del options["cluster"]
    workload = str(options.pop("workload"))
    if "scenario" in options:
        options["scenario"] = base / options["scenario"]
    if "profile" in options:
        options["profile"] = in_base(options["profile"], base)
    result = run(
        cluster_of(parameters, base), in_base(workload, base), settings=group(parameters, "settings"),
        firmware=group(parameters, "firmware"), **options,
    )  # fmt: skip
    return {"outcome": DONE, "error": "", "rows": list(result.rows), "verdict": result.verdict.grade.value}


def _run_cases(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Run cases of a swarm. Rows: the number of cases, and each case that failed."""
    cases = parameters[CASES]
    failed = failed_cases(candidate(parameters[SWARM]), parameters[FIRST_SEED], cases, _MAX_REDUCED)
    rows = [{"cases": cases, "failed": len(failed)}, *(case._asdict() for case in failed)]
    return {"outcome": DONE, "error": "", "rows": rows, "verdict": (Grade.FAILED if failed else Grade.TRUSTED).value}


def cluster_of(parameters: Parameters, base: Path) -> Description | str | Path:
    """Return the cluster: its description if the point impairs links, else its name, which may be that of a running
    cluster."""
    source = in_base(str(parameters["cluster"]), base)
    impairments = group(parameters, "link")
    if not impairments:
        return source
    description = load(source).description
    defaults = description.defaults
    link = type(defaults.link).model_validate(
        {**defaults.link.model_dump(by_alias=True, exclude_defaults=True), **impairments}
    )
    changed = description.model_copy(update={"defaults": defaults.model_copy(update={"link": link})})
    # Parsed again, so that the impairments are checked against the other elements.
    return parse(to_toml(changed), f"{source} with {', '.join(f'link.{key}' for key in impairments)}")


def group(parameters: Parameters, name: str) -> dict[str, Value]:
    """Return the parameters ``name.KEY`` by key."""
    return {
        key.partition(".")[2]: value
        for key, value in parameters.items()
        if key.partition(".")[0] == name and "." in key
    }


def in_base(name: str, base: Path) -> str:
    """Make the path of a file absolute; return a name of a shipped or registered item unchanged."""
    path, colon, form = name.rpartition(":")
    if path.endswith(".py"):
        return f"{base / path}{colon}{form}"
    return str(base / name) if "/" in name or name.endswith((".toml", ".py")) else name
