"""Tables of the program's definitions: topologies, workloads, thresholds, licences, exit codes, fields of rules, options."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from dataclasses import MISSING
from pathlib import Path

from reference.markdown import cell, code, first_paragraph, table


def topologies() -> str:
    """Topologies that are shipped with testbed."""
    from testbed.spec.shipped import topologies as shipped

    return table(("name", "description"), [(code(name), cell(purpose)) for name, purpose in shipped()])


def workloads() -> str:
    """Workloads and their settings."""
    from testbed.registry import WORKLOADS, load, offered
    from testbed.workloads.workload_settings import settings_of

    parts = []
    for name in sorted(offered(WORKLOADS)):
        form = load(WORKLOADS, name)
        settings = [
            f"{key.name}={'' if key.default is MISSING else _setting(key.default)}" for key in settings_of(form)
        ]
        parts.append((code(name), first_paragraph(form), " ".join(code(setting) for setting in settings)))
    return table(("workload", "what it does", "settings"), parts)


def _setting(value: object) -> str:
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


def thresholds() -> str:
    """Limits of each finding of a verdict."""
    from testbed.controller.verdict.thresholds import LIMITS

    def limit(value: float, share: float, unit: str) -> str:
        if value == float("inf"):
            return "never"
        absolute = f"{value / 1e6:g} ms" if unit == "ns" else f"{value * 100:g} %" if unit == "share" else f"{value:g}"
        return f"{absolute} or {share:.0%}" if share else absolute

    rows = [
        (
            name,
            cell(row.meaning),
            limit(row.degraded, row.relative_degraded, row.unit),
            limit(row.invalid, row.relative_invalid, row.unit),
            "yes" if row.is_scaled else "",
        )
        for name, row in LIMITS.items()
    ]
    return table(("finding", "deviation", "degraded above", "invalid above", "scaled by TESTBED_SLOW"), rows)


def licences() -> str:
    """Packages of an installation, by licence, from `ci/licences.toml`."""
    record = tomllib.loads((Path(__file__).parents[1] / "licences.toml").read_text())
    packages = record["combinable"] | {name: package["licence"] for name, package in record["apart"].items()}
    by_licence: dict[str, list[str]] = {}
    for name, licence in sorted(packages.items()):
        by_licence.setdefault(licence, []).append(name)
    rows = [
        (licence, ", ".join(names), "" if names[0] in record["combinable"] else "no")
        for licence, names in sorted(by_licence.items())
    ]
    return table(("licence", "packages", "in one process with Scapy"), rows)


def exit_codes() -> str:
    """Exit codes, from `testbed --help` and from the classes of errors."""
    from testbed import errors
    from testbed.cli.main import testbed

    results = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.TestbedError)
    ]
    rows = [
        (str(error.exit_code), code(error.__name__), first_paragraph(error))
        for error in sorted(results, key=lambda error: (error.exit_code, error.__name__))
    ]
    help_text = (testbed.epilog or "").replace("\b\n", "").partition("\n")[2]
    return (
        f"```text\n{help_text}\n```\n\n## Errors\n\nThe errors of the Python API end a command with these codes:\n\n"
        + table(("code", "error", "cause"), rows)
    )


def rule_fields() -> str:
    """Fields that rules and filters can name."""
    from testbed.fields import known_fields

    by_header: dict[str, list[str]] = {}
    for name in known_fields().names():
        header, _, field = name.partition(".")
        by_header.setdefault(header, []).append(field)
    rows = [(code(header), ", ".join(code(field) for field in fields)) for header, fields in by_header.items()]
    return table(("header", "fields"), rows)


def pytest_plugin() -> str:
    """Options of the plug-in, and the arguments of its marker."""
    from testbed.pytest_plugin.marker import MarkerArguments

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider", "-c", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "100"},
    )
    (_, rest) = done.stdout.split("clusters (testbed):\n", 1)
    options = rest.partition("\n\n")[0]
    return f"```text\n{options}\n```\n\n## The marker `cluster`\n\n{inspect.getdoc(MarkerArguments)}\n"


def python_names() -> str:
    """Directives of autodoc, one for each public name."""
    import testbed

    parts = []
    for name in testbed.__all__:
        value = getattr(testbed, name)
        kind = "class" if isinstance(value, type) else "function"
        if isinstance(value, type) and issubclass(value, BaseException):
            kind = "exception"
        members = "\n   :members:" if kind == "class" else ""
        if isinstance(value, type) and value.__base__.__module__.startswith("testbed."):
            members += "\n   :inherited-members:\n   :exclude-members: model_fields" if members else ""
        parts.append(f"## {name}\n\n```{{eval-rst}}\n.. auto{kind}:: testbed.{name}{members}\n```\n")
    return "\n".join(parts)
