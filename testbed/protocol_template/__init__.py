"""The template of a new protocol's package, and `write_package`, which copies it under another name.

The folder `postcard` beside this file is a working protocol with messages of up to 16 MiB, self-sends, restarts and shared
NICs; the folder `tests` has its tests. In a copy, the new name replaces `postcard`, `Postcard` and `POSTCARD`, another
EtherType replaces the template's, and the codec is generated from the copy's layers.
"""

from __future__ import annotations

import keyword
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from testbed import registry
from testbed.errors import ConflictError, DescriptionError, Problem, TestbedError, errors_naming, reason_of

TEMPLATE: Final = "postcard"
ETHERTYPES: Final = range(0x88B6, 0x8900)
"""Candidates for a new protocol: IEEE 802's second EtherType for local experiments, and the numbers above it."""
_TEMPLATE_ETHERTYPE: Final = "0x88B7"  # as spelled in frames.py
_CODEC: Final = "codec.py"
_MIN_ETHERTYPE: Final = 0x0600  # smaller numbers are lengths (IEEE 802.3)
_SUFFIXES: Final = (".py", ".toml")


def write_package(name: str, folder: Path, ethertype: int | None = None) -> list[Path]:
    """Write the package of a new protocol to a folder that does not exist; return its files.

    ethertype: EtherType of its frames; None: the first of ETHERTYPES that no installed package uses. Raises DescriptionError
    for a name or EtherType that is invalid, ConflictError for a name, EtherType or folder that is in use, TestbedError if a
    file cannot be written or the codec cannot be generated.
    """
    _check_name(name)
    taken = _taken_ethertypes()
    if ethertype is None:
        ethertype = next(number for number in ETHERTYPES if number not in taken)
    elif not _MIN_ETHERTYPE <= ethertype <= 0xFFFF:
        raise DescriptionError("the protocol", [Problem("ethertype", f"0x{ethertype:04X}", "0x0600 to 0xFFFF")])
    elif ethertype in taken:
        raise ConflictError(f"EtherType 0x{ethertype:04X} is that of {taken[ethertype]}: choose another one")
    template = Path(__file__).parent
    sources = [
        path
        for directory in (template / TEMPLATE, template / "tests")
        for path in sorted(directory.iterdir())
        if path.suffix in _SUFFIXES and path.name != _CODEC
    ]
    files = {
        Path(_rename(str(path.relative_to(template)), name)): _rename(path.read_text(), name, ethertype)
        for path in [template / "pyproject.toml", *sources]
    }
    files |= _metadata(name, files[Path("pyproject.toml")])
    if folder.exists():
        raise ConflictError(f"{folder} exists: choose another folder")
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with errors_naming(folder / path):
                (folder / path).write_text(text)
    except OSError as error:
        raise TestbedError(f"{folder} cannot be written: {reason_of(error)}") from error
    _generate_codec(name, folder)
    return [folder / path for path in (*files, Path(name, _CODEC))]


def _generate_codec(name: str, folder: Path) -> None:
    """Generate the codec of a written package, in a process that imports the package from its folder."""
    command = [sys.executable, "-m", "protocols.core.codegen", name]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        raise TestbedError(f"the codec of {folder} cannot be generated:\n{process.stderr.strip()}")


def _rename(text: str, name: str, ethertype: int | None = None) -> str:
    """Replace the template's name, and its EtherType unless the new one is None."""
    if ethertype is not None:
        text = text.replace(_TEMPLATE_ETHERTYPE, f"0x{ethertype:04X}")
    for spelling in (str.lower, str.capitalize, str.upper):
        text = text.replace(spelling(TEMPLATE), spelling(name))
    return text


def _metadata(name: str, project: str) -> dict[Path, str]:
    """The metadata as setuptools writes it, so that the package is found on Python's path without an installation."""
    project_table = tomllib.loads(project)["project"]
    sections = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())])
        for group, entries in project_table["entry-points"].items()
    ]
    directory = Path(f"{name}.egg-info")
    package_info = f"Metadata-Version: 2.1\nName: {project_table['name']}\nVersion: {project_table['version']}\n"
    return {directory / "entry_points.txt": "\n\n".join(sections) + "\n", directory / "PKG-INFO": package_info}


def _check_name(name: str) -> None:
    if (
        not (name.isidentifier() and name.isascii() and name == name.lower())
        or keyword.iskeyword(name)
        or name[0] == "_"
    ):
        expected = "a name that a Python package can have: lower case letters, digits and _, beginning with a letter"
        raise DescriptionError("the protocol", [Problem("name", repr(name), expected)])
    for group in (registry.PROTOCOLS, registry.FIELDS, registry.FABRICS):
        if name in registry.offered(group):
            raise ConflictError(
                f"there is a {group.rpartition('.')[2].removesuffix('s')} {name!r}: choose another name"
            )
    if name in sys.stdlib_module_names or find_spec(name) is not None:
        raise ConflictError(f"there is a Python module {name!r}, which would hide the package's: choose another name")


def _taken_ethertypes() -> dict[int, str]:
    """The EtherTypes of installed protocols and codecs, with the name of the first that uses each. Packages that cannot
    be imported are left out."""
    taken: dict[int, str] = {}
    for group, attribute in ((registry.PROTOCOLS, "ethertype"), (registry.FIELDS, "ETHERTYPE")):
        for name, entry in registry.offered(group).items():
            try:
                number = getattr(registry.import_entry(group, name, entry), attribute, 0)
            except TestbedError:
                continue
            taken.setdefault(number, name)
    return taken
