"""Lookup of workloads by name, file and entry point."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from testbed import registry
from testbed.errors import DescriptionError, NotFoundError, TestbedError
from testbed.workloads.lookup import choose
from testbed.workloads.pingpong import PingPong

BUILTIN = {
    "pingpong",
    "bandwidth",
    "rate",
    "random",
    "churn",
    "logp",
    "permutation",
    "contention",
    "comb",
    "sort",
    "service",
}


def test_builtin_entries_are_registered_like_external_ones() -> None:
    assert set(registry.offered(registry.WORKLOADS)) >= BUILTIN
    assert set(registry.offered(registry.PROTOCOLS)) >= {"emp", "tcp"}
    assert registry.load(registry.WORKLOADS, "pingpong") is PingPong


def test_an_unknown_name_is_rejected_with_the_nearest_and_all_names() -> None:
    with pytest.raises(
        NotFoundError, match=r"no workload is called 'pingpnog' — did you mean 'pingpong'\?; there are .*comb"
    ):
        choose("pingpnog")
    with pytest.raises(NotFoundError, match="no protocol is called 'sctp'"):
        registry.load(registry.PROTOCOLS, "sctp")


def test_the_first_package_on_the_path_is_used_and_damaged_files_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "one-1.dist-info": "[console_scripts]\na = b:c\n\n[testbed.workloads]\n# a comment\npingpong = json:dumps\n",
        "two-1.dist-info": "[testbed.workloads]\nbroken = no_such_module:X\nno line of any kind\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "entry_points.txt").write_text(text)
    (tmp_path / "three-1.dist-info").mkdir()
    (tmp_path / "three-1.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    monkeypatch.syspath_prepend(tmp_path)
    assert str(registry.offered(registry.WORKLOADS)["pingpong"]) == "json:dumps"
    with pytest.raises(TestbedError, match="No module named 'no_such_module'"):
        choose("broken")
    with pytest.raises(DescriptionError, match="a subclass of Workload"):
        choose("pingpong")


def test_a_users_file_is_found_by_class_by_function_and_without_a_name(tmp_path: Path) -> None:
    file = tmp_path / "workload.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from testbed.workloads.form import Workload\n"
        "class Sample(Workload):\n    count: int = 2\n    async def rank(self, comm, node): ...\n"
    )
    assert choose(f"{file}:Sample", {"count": "5"}).settings == {"count": 5}
    assert choose(str(file)).name == str(file)
    file.write_text(file.read_text() + "async def other(comm, node): ...\n")
    assert choose(f"{file}:other").name == "other"
    with pytest.raises(NotFoundError, match=r"has 2 workloads \(Sample, other\)"):
        choose(str(file))
    with pytest.raises(NotFoundError, match="has no workload 'Sampel'; it has Sample, other"):
        choose(f"{file}:Sampel")


def test_a_file_that_is_missing_or_raises_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        choose(f"{tmp_path}/none.py:X")
    (tmp_path / "raises.py").write_text("raise RuntimeError('at import')\n")
    with pytest.raises(TestbedError, match=r"raises.py cannot be imported:(.|\n)*RuntimeError: at import"):
        choose(f"{tmp_path}/raises.py")
    (tmp_path / "wrong.py").write_text("class Wrong:\n    pass\n")
    with pytest.raises(DescriptionError, match="found type, expected a subclass of Workload"):
        choose(f"{tmp_path}/wrong.py:Wrong")


SCRIPT_IMPORT = "from testbed.mpi import MPI\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import sys\nsys.exit(3)\n",
            r"exits when it is imported \(code 3\): a script, which may exit, needs the line",
        ),
        (
            "def (:\n",
            r'cannot be imported:\nFile ".*/workload.py", line 1\n    def \(:\n(.|\n)*SyntaxError: invalid syntax$',
        ),
        (
            "number = 1 / 0\n",
            r'cannot be imported:\nTraceback .*:\n  File ".*/workload.py", line 1(.|\n)*division by zero$',
        ),
        (SCRIPT_IMPORT + "return 3\n", r'cannot be imported:\nFile ".*/workload.py", line 2\n(.|\n)*outside function$'),
        (SCRIPT_IMPORT + "number = " + "-" * 20_000 + "1\n", r"cannot be imported:\n(.|\n)*(Memory|Recursion)Error"),
        (SCRIPT_IMPORT + "\0", r"cannot be imported:\n(.|\n)*null bytes$"),
    ],
    ids=["exits", "syntax", "raises", "script: syntax", "script: nested", "script: no text"],
)
def test_a_file_that_cannot_be_imported_is_reported_without_internal_frames(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "workload.py").write_text(text)
    with pytest.raises(TestbedError, match=message) as raised:
        choose(str(tmp_path / "workload.py"), {})
    assert "lookup.py" not in str(raised.value)


def test_an_mpi4py_script_and_a_file_of_neither_kind_are_reported(tmp_path: Path) -> None:
    (tmp_path / "mpi4py_script.py").write_text("import sys\n\nfrom mpi4py import MPI\nprint(MPI.COMM_WORLD.rank)\n")
    with pytest.raises(
        TestbedError, match=r"mpi4py_script.py imports mpi4py, .*: change line 3 to 'from testbed.mpi import MPI', "
    ):
        choose(str(tmp_path / "mpi4py_script.py"), {})
    (tmp_path / "plain.py").write_text("number = 3\n")
    with pytest.raises(NotFoundError, match=r"not a script: add the line 'from testbed.mpi import MPI' if"):
        choose(str(tmp_path / "plain.py"), {})


def test_versions_are_those_of_the_installed_packages() -> None:
    names = ("click", "netns-testbed", "no-such-package")
    assert registry.versions(names) == {name: version(name) for name in names[:2]}
