"""Lookup of workloads: by a registered name, by file and name (``./my_workload.py:PingPong``), or as a class, object or
function."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed import registry
from testbed.errors import DescriptionError, NotFoundError, Problem
from testbed.spec.problems import format_value
from testbed.workloads.form import Comm, Native, Node, Workload
from testbed.workloads.script import MPI_LINE, import_failure, is_script, make_script
from testbed.workloads.workload_settings import parse_settings

Rank = Callable[..., Coroutine[Any, Any, object]]
"""An ``async def rank(comm, node)``, with further keyword parameters."""

Form = str | type[Workload] | Workload | Rank


@dataclass(frozen=True, slots=True)
class Chosen:
    """A workload with its settings. name: name in results. settings: values by name. rank: coroutine function of every rank.
    least: minimum number of nodes. checked: whether its history is checked by default. supports_loss: whether messages may
    be lost. supports_restarts: whether nodes may crash and restart; None: unknown. native: replaces `rank`, and is called
    with the host library of `protocol`, or, if that is empty, of any protocol of active messages; None: the workload uses
    MPI."""

    name: str
    settings: Mapping[str, object]
    rank: Callable[[Comm, Node], Coroutine[Any, Any, object]]
    least: int = 1
    checked: bool = False
    supports_loss: bool = False
    supports_restarts: bool | None = None
    native: Callable[[Any, Node], Coroutine[Any, Any, object]] | None = None
    protocol: str = ""


def choose(form: Form, settings: Mapping[str, object] | None = None) -> Chosen:
    """Find a workload and check its settings. settings: a user's texts, or values, by name. Raises NotFoundError;
    DescriptionError for settings, and for an object that is no workload; TestbedError, with a traceback, for a file whose
    import fails."""
    name = form if isinstance(form, str) else _name(form)
    loaded: object = _load(form) if isinstance(form, str) else form
    if isinstance(form, str):
        name = _split_name(form)[1] or form
    settings_by_name = dict(settings or {})
    if isinstance(loaded, Workload):
        if settings_by_name:
            raise DescriptionError(name, [Problem("", "settings", "none: this workload already has its settings")])
        return _from_workload(name, loaded)
    if inspect.isclass(loaded) and issubclass(loaded, Workload):
        try:
            workload = loaded(**parse_settings(loaded, settings_by_name, name))
        except ValueError as error:
            given = ", ".join(f"{key} = {format_value(value)}" for key, value in settings_by_name.items())
            raise DescriptionError(f"the settings of {name}", [Problem("", given, str(error))]) from error
        return _from_workload(name, workload)
    if inspect.iscoroutinefunction(loaded):
        return _from_function(name, loaded, parse_settings(loaded, settings_by_name, name))
    raise DescriptionError(
        name, [Problem("", type(loaded).__name__, "a subclass of Workload, or an 'async def' function of (comm, node)")]
    )


def lookup_text(form: Form) -> str:
    """Return a text with which `choose` finds the workload from any directory; empty if there is none."""
    if not isinstance(form, str):
        return ""
    path, (_, name) = file_of(form), _split_name(form)
    return form if path is None else f"{path.absolute()}:{name}" if name else str(path.absolute())


def file_of(form: str) -> Path | None:
    """Return the file of a workload given as text; None for a registered name."""
    path, _ = _split_name(form)
    return Path(path) if path.endswith(".py") or "/" in path else None


def _split_name(form: str) -> tuple[str, str]:
    """Split FILE:NAME into file and name; the name of any other text is empty. Directories may contain colons."""
    path, colon, name = form.rpartition(":")
    return (path, name) if colon and "/" not in name else (form, "")


def _from_workload(name: str, workload: Workload) -> Chosen:
    native, protocol = (workload.program, workload.protocol) if isinstance(workload, Native) else (None, "")
    return Chosen(
        name, asdict(workload), workload.rank, workload.least, workload.checked, workload.supports_loss,
        workload.supports_restarts, native, protocol,
    )  # fmt: skip


def _from_function(name: str, function: Rank, values: dict[str, Any]) -> Chosen:
    async def rank(comm: Comm, node: Node) -> object:
        return await function(comm, node, **values)

    supports_restarts = getattr(function, "supports_restarts", None)
    return Chosen(
        name, values, rank, supports_loss=getattr(function, "supports_loss", False) is True,
        supports_restarts=bool(supports_restarts) if supports_restarts is not None else None,
    )  # fmt: skip


def _name(form: object) -> str:
    owner = form if inspect.isclass(form) or inspect.isfunction(form) else type(form)
    return str(getattr(owner, "__name__", "workload"))


def _load(text: str) -> object:
    """Load a workload by its registered name, or by FILE:NAME. The name may be omitted if the file has a single workload, or
    is a script."""
    path, name = _split_name(text)
    if not (path.endswith(".py") or "/" in path):
        return registry.load(registry.WORKLOADS, text)
    if not name and is_script(Path(path)):
        return make_script(Path(path))
    module = _import(Path(path))
    workloads = {
        key: value
        for key, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
        and ((inspect.isclass(value) and issubclass(value, Workload)) or inspect.iscoroutinefunction(value))
    }
    if not name:
        if not workloads:
            raise NotFoundError(
                f"{path} has no workload (a subclass of Workload or an async function), and is not a script: add the line "
                f"'{MPI_LINE}' if every node shall run it from its first line"
            )
        if len(workloads) != 1:
            raise NotFoundError(f"{path} has {len(workloads)} workloads ({', '.join(workloads)}): write {path}:NAME")
        return next(iter(workloads.values()))
    if not hasattr(module, name):
        raise NotFoundError(f"{path} has no workload {name!r}; it has {', '.join(workloads) or 'none'}")
    value: object = getattr(module, name)
    return value


def _import(path: Path) -> Any:
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"workload_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise NotFoundError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # needed by dataclasses and pickle
    sys.path.insert(
        0, str(path.parent.absolute())
    )  # so that the file can import modules of its directory, like a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise import_failure(path, error) from error
    return module
