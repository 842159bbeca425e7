"""A headless Chromium, spoken to over a pipe, in the Chrome DevTools Protocol: no port, no package."""

import contextlib
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((path for name in NAMES if (path := shutil.which(name))), None)
# A page is there within a second; the rest is for machines that do something else as well.
TIMEOUT_SECONDS = 120


class Chromium:
    """One page of a browser that runs.

    Args:
        commands: Where messages to the browser are written.
        answers: Where its messages are read.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest, self._number = b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], TIMEOUT_SECONDS)
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, path: Path, *, width: int = 1400, dark: bool = False, script: bool = True) -> None:
        """Open a file and wait until it is loaded.

        Args:
            path: The file.
            width: Of the window, in pixels; a phone's where it is below 600.
            dark: Whether the reader prefers a dark page.
            script: Whether scripts may run.
        """
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events.clear()
        assert "errorText" not in self.call("Page.navigate", url=path.resolve().as_uri()), path
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def ask(self, expression: str, context: int | None = None) -> Any:
        """Return what an expression of JavaScript is in the page, or in another of its contexts."""
        where = {} if context is None else {"contextId": context}
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, **where)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key that the element with the focus gets."""
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def complaints(self) -> list[str]:
        """Return what the console would show since the page was opened: errors, warnings, what the policy refused."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(event) for event in self.events if event.get("method") in kinds]


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Chromium]:
    """Yield a browser without a network, which ends with the block.

    Args:
        profile: Folder for what it writes.
    """
    assert PROGRAM is not None
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    flags = ["--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe"]
    # In the frame's own process a page could not be asked for what its frame shows.
    flags += ["--disable-features=IsolateSandboxedIframes", "--proxy-server=127.0.0.1:1", f"--user-data-dir={profile}"]
    # Chromium refuses its sandbox to root, whom containers run as.
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    # It reads from stream 3 and writes to stream 4. No pipe lies in the other's way: each is the lowest free one.
    shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", PROGRAM, *flags, "about:blank"],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Chromium(commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        process.kill()
        process.wait()
