"""Shared NICs that stand for a while, for host processes that come and go: agents without a run.

They are the children of the same warm parent that a run has. It starts one again that dies, and ends with whoever has
asked for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import Final, Self

from testbed.errors import ConflictError, TestbedError
from testbed.kernel.children import in_child
from testbed.kernel.processes import wait_for_end
from testbed.runtime.nodes import warm
from testbed.runtime.nodes.channel import Channel
from testbed.runtime.nodes.places import Orders
from testbed.runtime.nodes.progress import Progress

_PATIENCE: Final = 30.0  # s for the parent of all agents to end
_SHOWN: Final = 500  # characters of a log's end


class StandingNics:
    """All of them take host processes from here on, to the end of the block."""

    def __init__(self, orders: Orders, logs: Path, told: Path) -> None:
        """orders: without programs. logs: a directory for what the agents say. told: the cluster's, for events. Raises
        ConflictError where a NIC cannot be had, KernelError."""
        self._orders = orders
        self._told = told
        self._channel, end = Channel.pair()
        try:
            progress = Progress(1)
            pid = warm.start(orders, end, {}, logs, told, progress).pid
            progress.close()
            self._parent = pid, os.pidfd_open(pid)
        except BaseException:
            self._channel.close()
            self._put_back()
            raise
        finally:
            end.close()
        said = self._channel.hear()
        silent = said[1] if said is not None else [place.name for place in orders.places]
        if silent:
            self.close()
            assert isinstance(silent, list)
            raise ConflictError("\n".join(f"{name}: its NIC cannot be shared: {_why(logs, name)}" for name in silent))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Of what can be read when the parent of all agents has ended."""
        return self._parent[1]

    def close(self) -> None:
        """End all agents, and leave the NICs as they were."""
        self._channel.close()
        pid, handle = self._parent
        if not wait_for_end(handle, _PATIENCE):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            wait_for_end(handle)
        os.close(handle)
        status = 1  # where somebody else has waited for all children of this process
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(pid, 0)
        if status:
            self._put_back()

    def _put_back(self) -> None:
        """In the place of a parent that could not."""
        with contextlib.suppress(TestbedError):
            in_child(partial(warm.put_back, self._orders, self._told))


def _why(logs: Path, name: str) -> str:
    """The last line that its agent has said."""
    with contextlib.suppress(OSError):
        said = (logs / f"{name}.nic.log").read_text(errors="replace")[-_SHOWN:].strip()
        return said.rpartition("\n")[2]
    return "it has not been started"
