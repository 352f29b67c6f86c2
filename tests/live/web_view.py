"""`testbed top --web` as a subprocess."""

from __future__ import annotations

import select
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.live.testbed_command import TESTBED

TIMEOUT = 30.0  # seconds for the first line and for the end, on a shared machine


class WebView:
    """The view's process, interrupted at the end of the block if it is running. address: of its page."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """folder: working directory, where the view looks for runs."""
        command = [TESTBED, "top", "--web", "--interval", "200ms", *arguments]
        self._errors = (folder / "errors").open("w+")
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.address = ""

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT)[0], "no address was printed"
        line = self.process.stdout.readline()
        assert line.startswith("the view is at http://127.0.0.1:"), f"{line!r} {self.errors()}"
        self.address = line.split()[-1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None:
                code = self.end(signal.SIGINT)
                assert error is not None or (code, self.errors()) == (0, "")
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self._errors.close()

    @property
    def port(self) -> int:
        return int(self.address.split("/")[2].rpartition(":")[2])

    def socket(self) -> ClientConnection:
        """Connect as the page does."""
        origin = self.address.partition(f":{self.port}/")[0] + f":{self.port}"
        return connect(f"{self.address.replace('http:', 'ws:')}socket", origin=Origin(origin), open_timeout=TIMEOUT)

    def errors(self) -> str:
        """Return the text on standard error."""
        self._errors.seek(0)
        return self._errors.read()

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end and return the exit code."""
        self.process.send_signal(number)
        deadline = time.monotonic() + TIMEOUT
        return self.process.wait(deadline - time.monotonic())
