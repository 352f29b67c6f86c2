"""Build backend: setuptools, and with NETNS_TESTBED_COMPILE=1 the modules listed in `pyproject.toml` compiled by mypyc, and
the modules written in C.

Without the variable nothing is compiled and no compiler is needed; the same files then run interpreted.
NETNS_TESTBED_OPTIMIZE is the compiler's level of optimization, 0 to 3; 2 by default.

    python ci/build_backend.py      compile beside the sources of this checkout (ci/compiled); only C files that changed are
                                    compiled again
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import calcsize
from typing import Any, Final

from setuptools import Distribution, Extension, build_meta, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

WANTED: Final = os.environ.get("NETNS_TESTBED_COMPILE") == "1"
_LEVEL: Final = os.environ.get("NETNS_TESTBED_OPTIMIZE", "2")
_MYPYC: Final = "mypy>=2.0"
_OPTIONS: Final = ("-fvisibility=hidden", "-fno-plt")  # no stubs for calls within the shared object, and of Python
_GENERATED: Final = Path("build/compiled/generated")  # C files as mypyc has written them
_C_FILES: Final = Path("build/compiled/c")  # C files as they are compiled, see `separate_literals`
_LITERAL: Final = re.compile(r"(?<== )CPyStatics\[(\d+)\]")
_INCLUDES: Final = re.compile(r"(?:#include .*\n)+")
_SIZE: Final = re.compile(r"(?<=^extern PyObject \*CPyStatics)\[\d+\];", re.MULTILINE)
_OBJECTS: Final = f"build/compiled/objects-O{_LEVEL}"
_LINKED: Final = Path("build/compiled/linked")  # holds the level of the modules that were linked last
_NATIVE: Final = ("testbed/fabric/native_heap.c", "testbed/fates/native_hash.c", "testbed/kernel/native_frames.c")


def modules() -> list[str]:
    """Return the paths of the modules to compile, relative to the root of the sources."""
    rooms = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["netns-testbed"]["compiled"]
    return [f"{room}/{name}.py" for room, names in rooms.items() for name in names]


def extensions() -> list[Extension]:
    """Translate the modules to C; return their extensions, and those of the modules written in C. Raises SystemExit without
    a compiler or Python's headers."""
    compiler = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))[0]
    if shutil.which(compiler) is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        sys.exit(f"NETNS_TESTBED_COMPILE=1 needs a C compiler, {compiler}, and Python's headers, Python.h")
    from mypyc.build import mypycify

    print(f"translating {len(modules())} modules to C", flush=True)
    # Types are checked where all packages are installed, which a build environment does not have.
    options = ["--config-file=", "--ignore-missing-imports", "--no-error-summary", *modules()]
    result = mypycify(
        options,
        opt_level=_LEVEL,
        debug_level="0",
        multi_file=True,
        target_dir=str(_GENERATED),
        group_name="protocols.compiled",
    )
    separate_literals()
    for extension in result:
        extension.sources = [path.replace(str(_GENERATED), str(_C_FILES)) for path in extension.sources]
        extension.depends = [path.replace(str(_GENERATED), str(_C_FILES)) for path in extension.depends]
        extension.extra_compile_args += _OPTIONS
        extension.include_dirs += [str(_C_FILES), f"{_C_FILES}/protocols"]  # the headers of a group with that name
    stable_abi = [("Py_LIMITED_API", "0x030B0000")]
    native = [
        Extension(path.removesuffix(".c").replace("/", "."), [path], define_macros=stable_abi, py_limited_api=True)
        for path in _NATIVE
    ]
    return [*result, *native]


def separate_literals() -> None:
    """Write mypyc's C files so that each has its own names for its literals. Only files that have changed are written.

    mypyc numbers the literals of all modules together, so a new one would change nearly all files. Here each file numbers
    its own, and the file with the table of literals defines their names as symbols in the table. The linker resolves
    these, so the machine code is the same.
    """
    symbols: list[str] = []
    tables: list[Path] = []
    for path in sorted(_GENERATED.rglob("*.[ch]")):
        text, target = path.read_text(), _C_FILES / path.relative_to(_GENERATED)
        if re.search(r"^PyObject \*CPyStatics\[", text, re.MULTILINE):
            tables.append(path)
            continue
        stem = "_".join(path.relative_to(_GENERATED).with_suffix("").parts)
        names = {
            number: f"CPyLiteral_{stem}_{order}" for order, number in enumerate(dict.fromkeys(_LITERAL.findall(text)))
        }
        for number, name in names.items():
            place = f"CPyStatics + {int(number) * calcsize('P')}"
            symbols.append(f'asm(".globl {name}\\n.hidden {name}\\n.set {name}, {place}");\n')
        text = _LITERAL.sub(lambda literal, names=names: names[literal[1]], text)
        declared = [f'extern PyObject *{name} __attribute__((visibility("hidden")));\n' for name in names.values()]
        text = _INCLUDES.sub(lambda lines, declared=declared: lines[0] + "".join(declared), text, count=1)
        _write_changed(target, _SIZE.sub("[];", text))
    for path in tables:
        _write_changed(_C_FILES / path.relative_to(_GENERATED), path.read_text() + "".join(symbols))


def _write_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class CompileChanged(build_ext):
    """Compiles C files in parallel, and only those whose object files are older than they, a header or this file."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_temp = _OBJECTS

    def build_extensions(self) -> None:
        compiler = self.compiler
        compile_all = compiler.compile

        def compile_changed(sources: list[str], output_dir: str, depends: list[str], **options: Any) -> list[str]:
            objects: list[str] = compiler.object_filenames(sources, output_dir=output_dir)
            headers = [path for path in depends if path.endswith(".h")]
            newest = max(
                os.stat(path).st_mtime for path in [__file__, *headers]
            )  # this file has the compiler's options
            outdated = [
                source
                for source, object_file in zip(sources, objects, strict=True)
                if not os.path.exists(object_file)
                or os.stat(object_file).st_mtime < max(newest, os.stat(source).st_mtime)
            ]
            if outdated:
                print(f"compiling {len(outdated)} of {len(sources)} C files", flush=True)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda source: compile_all([source], output_dir=output_dir, **options), outdated))
            return objects

        compiler.compile = compile_changed
        self.force = self.force or not _LINKED.exists() or _LINKED.read_text() != _LEVEL
        compiler.force = self.force  # otherwise older object files of another level would not be linked
        super().build_extensions()
        _LINKED.write_text(_LEVEL)


class SdistWithBackend(sdist):
    """Makes a source distribution that includes this build backend and the sources of the modules written in C."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, [*files, "ci/build_backend.py", *_NATIVE])


class _Backend(build_meta._BuildMetaBackend):
    """Setuptools' own backend, without a setup.py."""

    def run_setup(self, setup_script: str = "setup.py") -> None:
        del setup_script
        wanted = WANTED and "dist_info" not in sys.argv  # metadata does not depend on extensions
        setup(
            ext_modules=extensions() if wanted else [],
            cmdclass={"build_ext": CompileChanged, "sdist": SdistWithBackend},
        )

    def get_requires_for_build_wheel(self, config_settings: object = None) -> list[str]:
        del config_settings
        return [_MYPYC] if WANTED else []

    get_requires_for_build_editable = get_requires_for_build_wheel

    def get_requires_for_build_sdist(self, config_settings: object = None) -> list[str]:
        del config_settings
        return []

    def build_editable(self, *arguments: Any, **named: Any) -> str:
        if not WANTED:
            remove_compiled()
        return super().build_editable(*arguments, **named)


_BACKEND: Final = _Backend()
build_editable = _BACKEND.build_editable
build_sdist = _BACKEND.build_sdist
build_wheel = _BACKEND.build_wheel
get_requires_for_build_editable = _BACKEND.get_requires_for_build_editable
get_requires_for_build_sdist = _BACKEND.get_requires_for_build_sdist
get_requires_for_build_wheel = _BACKEND.get_requires_for_build_wheel
prepare_metadata_for_build_editable = _BACKEND.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = _BACKEND.prepare_metadata_for_build_wheel


def remove_compiled(kept: Collection[Path] = ()) -> None:
    """Remove compiled modules beside the sources, except those in `kept`: they are left by an earlier build."""
    for room in ("protocols", "testbed"):
        for path in Path(room).rglob("*.so"):
            if path.resolve() not in kept:
                path.unlink()


def compile_in_place() -> None:
    """Compile the modules beside their sources."""
    result = extensions()
    command = CompileChanged(Distribution({"ext_modules": result}))
    command.inplace = True
    command.ensure_finalized()
    command.run()
    remove_compiled({Path(command.get_ext_fullpath(extension.name)).resolve() for extension in result})


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(compile_in_place())
