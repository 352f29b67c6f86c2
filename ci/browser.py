"""A headless Chromium, controlled with the DevTools protocol over two pipes: no port, no driver, no network.

with Browser(Path("/tmp/profile")) as browser:
    browser.open(Path("report.html"))  # or a server on this machine, "http://127.0.0.1:8080/"
    browser.evaluate("document.title")
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = "chromium"
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class BrowserError(Exception):
    """Chromium refused a command or did not answer in time."""


class Browser:
    """A running Chromium with one page. messages: the page's console output, uncaught exceptions, and requests to other
    servers."""

    def __init__(self, directory: Path, seconds: float = 60.0) -> None:
        """Start Chromium. directory: new directory for its profile. seconds: time-out of each command."""
        self.messages: list[str] = []
        self._seconds = seconds
        self._number = 0
        self._received = b""
        self._origin = "file:"  # requests of the page to other origins are reported
        self._events: list[dict[str, Any]] = []
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        commands, answers = _move_to_10_or_above(commands), _move_to_10_or_above(answers)
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        redirect = 'a=$1 b=$2; exec 3<&"$a" 4>&"$b" {a}<&- {b}>&-; shift 2; exec "$@"'
        program = [shutil.which(PROGRAM) or PROGRAM, *_OPTIONS, f"--user-data-dir={directory}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", str(commands), str(answers), *program],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End Chromium and its child processes."""
        os.close(self._commands)  # Chromium ends at the end of file
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def processor_time(self) -> float:
        """Return the processor time that all processes of Chromium have used, in seconds."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # the process has ended
                continue
            if int(fields[3]) == self._process.pid:  # in Chromium's session
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def open(
        self, page: Path | str, width: int = 1200, height: int = 900, *, dark: bool = False, zoom: float = 1.0
    ) -> None:
        """Open a file, or a URL of a server on this machine, and wait until the page is loaded. width, height: CSS pixels.
        zoom: device pixels of a CSS pixel."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=zoom, mobile=False
        )
        self.emulate(dark=dark)
        self._events.clear()
        url = page.absolute().as_uri() if isinstance(page, Path) else page
        self._origin = "file:" if isinstance(page, Path) else "/".join(page.split("/")[:3])
        self.call("Page.navigate", url=url)
        self._until("Page.loadEventFired")

    def emulate(self, *, dark: bool = False, media: str = "") -> None:
        """Emulate a colour scheme, or a medium such as "print"."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page and return its value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key, such as `press("Tab", 9)`. code: its Windows virtual-key code."""
        options = {"text": "\r"} if key == "Enter" else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown" if options else "rawKeyDown", key=key, code=key,
            windowsVirtualKeyCode=code, **options,
        )  # fmt: skip
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def until(self, expression: str, seconds: float = 30.0) -> Any:
        """Wait until a JavaScript expression is true in the page; return its value. The expression is evaluated every 20 ms.
        Raises BrowserError after `seconds`."""
        look = (
            f"const value = (() => {{ try {{ return {expression} }} catch {{ return false }} }})();"
            f"if (value) resolve(value); else if (performance.now() > end) reject('not within {seconds} s');"
            "else setTimeout(look, 20)"
        )
        wait = (
            f"new Promise((resolve, reject) => {{ const end = performance.now() + {1000 * seconds};"
            f"const look = () => {{ {look} }}; look() }})"
        )
        return self.evaluate(wait)

    def click(self, selector: str) -> None:
        """Click with the mouse on the middle of the first element that matches a CSS selector."""
        place = self.evaluate(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'nearest'}); const {x, y, width, height} = element.getBoundingClientRect();"
            "return {x: x + width / 2, y: y + height / 2} })()"
        )
        for kind, buttons in (("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)):
            count = 0 if kind == "mouseMoved" else 1
            self.call("Input.dispatchMouseEvent", type=kind, **place, button="left", buttons=buttons, clickCount=count)

    def type(self, text: str) -> None:
        """Type a text into the focused element."""
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Write a PNG of the visible part, or of the complete page, to a file."""
        options: dict[str, Any] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options = {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            command["sessionId"] = self._session
        try:
            os.write(self._commands, json.dumps(command).encode() + b"\0")
        except BrokenPipeError:
            raise BrowserError(f"{PROGRAM} has ended, code {self._process.poll()}") from None
        deadline = time.monotonic() + self._seconds
        while True:
            answer = self._next_message(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._handle(answer)

    def _until(self, event: str) -> None:
        deadline = time.monotonic() + self._seconds
        while all(message.get("method") != event for message in self._events):
            self._handle(self._next_message(deadline))

    def _handle(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        report = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                self.messages.append(" ".join(str(argument.get("value", "")) for argument in report["args"]))
            case "Runtime.exceptionThrown":
                self.messages.append(str(report["exceptionDetails"]))
            case "Log.entryAdded":
                self.messages.append(report["entry"]["text"])
            case "Network.requestWillBeSent":
                url = report["request"]["url"]
                if not url.startswith((self._origin, self._origin.replace("http:", "ws:"), "data:", "about:")):
                    self.messages.append(f"request to another origin: {url}")

    def _next_message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BrowserError(f"{PROGRAM} has not answered within {self._seconds:g} s")
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise BrowserError(f"{PROGRAM} has ended, code {self._process.poll()}")
            self._received += data
        line, _, self._received = self._received.partition(b"\0")
        document: dict[str, Any] = json.loads(line)
        return document


def _move_to_10_or_above(descriptor: int) -> int:
    """Replace a descriptor by one of 10 or above, so that the shell can redirect 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
