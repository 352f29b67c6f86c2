"""Calling a function in a forked child: what it does to its own namespaces ends with it."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")


def in_child(function: Callable[[], T]) -> T:
    """Call `function` in a child process. Its result, or its TestbedError or OSError, comes back by pickle."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, function)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    if not answer:
        raise TestbedError("a helper process died; what it said is above")
    good, value = pickle.loads(answer)  # written by our own child
    if not good:
        raise value
    result: T = value
    return result


def _answer(writer: int, function: Callable[[], T]) -> None:
    """The child's side; does not return."""
    try:
        try:
            answer = pickle.dumps((True, function()))
        except (TestbedError, OSError) as error:
            answer = pickle.dumps((False, error))
        with open(writer, "wb") as answers:
            answers.write(answer)
    except BaseException:  # noqa: BLE001  whatever it is, nothing of the parent's code may run on in the child
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
