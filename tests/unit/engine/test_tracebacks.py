"""Tracebacks of errors in programs: lines of the program, without internal frames."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols import mpi
from protocols.mpi.mpi_errors import MPIError
from testbed import workloads
from testbed.engine.tracebacks import complete_traceback, program_traceback
from testbed.errors import TestbedError
from testbed.mpi import MPI
from testbed.spec import units
from testbed.spec.loader import parse


def error_of(program: str, path: str) -> BaseException:
    """Run a program as if from a file; return the error that it raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  any error
        exec(compile(program, path, "exec"), {"parse": parse, "units": units, "MPI": mpi, "blocking": MPI})
    # The first frame is that of this function, which stands for the runner of programs.
    return caught.value.with_traceback(caught.value.__traceback__.tb_next if caught.value.__traceback__ else None)


def test_lines_of_the_program_and_the_functions_that_it_calls_are_shown() -> None:
    text = program_traceback(error_of("units.parse_rate('fast')", "/home/me/work.py"))
    assert text.splitlines()[1] == '  File "/home/me/work.py", line 1, in <module>'
    assert "units.py" in text
    assert text.splitlines()[-1].startswith("testbed.spec.units.UnitError: found 'fast'")


@pytest.mark.parametrize("internal_file", [units.__file__, "testbed/engine/tasks.py"], ids=["interpreted", "compiled"])
def test_internal_frames_are_omitted_except_in_the_log(internal_file: str) -> None:
    names: dict[str, Callable[[], None]] = {}
    exec(compile("def work():\n  return 1 / 0", "/home/me/work.py", "exec"), names)
    exec(compile("def run():\n  work()", internal_file, "exec"), names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["run"]()
    error = caught.value.with_traceback(caught.tb.tb_next)
    assert program_traceback(error).splitlines()[1] == '  File "/home/me/work.py", line 2, in work'
    assert internal_file in complete_traceback(error)


def test_the_traceback_of_an_mpi_error_ends_with_the_programs_line() -> None:
    text = program_traceback(error_of("def call():\n  MPI.INT.Free()\ncall()", "/home/me/work.py")).splitlines()
    assert [line for line in text if "File" in line] == [
        '  File "/home/me/work.py", line 3, in <module>',
        '  File "/home/me/work.py", line 2, in call',
    ]
    assert text[-1].endswith("the predefined datatype MPI_INT cannot be freed")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("MPI.INT.Create_contiguous('three')", "TypeError: "),
        ("MPI.INT.Create_darray", "MPI has no attribute Datatype.Create_darray (testbed implements a subset of mpi4py"),
        ("blocking.Win", "MPI has no attribute Win (testbed implements a subset of mpi4py"),
    ],
)
def test_the_traceback_of_a_wrong_argument_or_a_missing_name_ends_with_the_programs_line(
    call: str, message: str
) -> None:
    text = program_traceback(error_of(call, "/home/me/work.py")).splitlines()
    assert [line for line in text if "File" in line] == ['  File "/home/me/work.py", line 1, in <module>']
    assert message in text[-1]


def test_an_mpi_error_that_another_task_awaits_shows_the_programs_line_once_and_no_internal_frame() -> None:
    script = """
def detect_loss():
  try:
    1 / 0
  except ZeroDivisionError:
    raise MPIError("a message was lost")
def call(work):
  return work()
"""
    names: dict[str, Callable[..., None]] = {"MPIError": MPIError}
    exec(compile(script, units.__file__, "exec"), names)
    exec(compile("def wait(what):\n  what()\ndef work(): wait(detect_loss)", "/home/me/work.py", "exec"), names)
    with pytest.raises(MPIError) as caught:
        names["wait"](lambda: names["call"](names["work"]))
    text = program_traceback(caught.value.with_traceback(caught.tb.tb_next))
    assert [line for line in text.splitlines() if "File" in line and __file__ not in line] == [
        '  File "/home/me/work.py", line 2, in wait',
        '  File "/home/me/work.py", line 3, in work',
        '  File "/home/me/work.py", line 2, in wait',
    ]
    assert "ZeroDivisionError" not in text


def test_a_shipped_workload_is_a_program() -> None:
    path = f"{workloads.__file__.rpartition('/')[0]}/sort.py"
    assert f'  File "{path}", line 1, in <module>' in program_traceback(error_of("1 / 0", path))


def test_an_error_of_the_project_outside_a_program_is_its_message() -> None:
    error = error_of("units.parse_rate('fast')", units.__file__)
    assert isinstance(error, TestbedError)
    assert program_traceback(error) == str(error)


def test_an_internal_error_is_shown_with_its_complete_traceback() -> None:
    text = program_traceback(error_of("1 / 0", units.__file__))
    assert text.startswith("Traceback (most recent call last):\n")
    assert units.__file__ in text
