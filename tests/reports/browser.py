"""One headless Chromium, spoken to in the DevTools protocol over a pipe: what a reader would see and do.

Pages are opened from disk, as they are, at real viewport sizes. No host can be resolved, so nothing leaves;
what a page asks for and what its console says is kept.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
KEY_CODES = {"ArrowLeft": 37, "ArrowRight": 39, "Escape": 27, "Enter": 13, "+": 187, "-": 189}

# What sticks out sideways, which texts of a figure overlap, which figures stand there.
_PROBE = """(() => {
  const wide = document.documentElement.clientWidth;
  const outside = [...document.querySelectorAll("body *")].filter(
    e => !e.closest(".scroll, pre, svg") && e.getBoundingClientRect().right > wide + 0.5);
  const overlaps = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const texts = [...svg.querySelectorAll("text")].filter(t => getComputedStyle(t).visibility !== "hidden")
      .map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
    texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 1 && y > 2) overlaps.push(svg.closest("figure").id + ": " + a + " / " + b);
    }));
  }
  return {
    scroll_width: document.documentElement.scrollWidth, client_width: wide,
    height: document.documentElement.scrollHeight,
    outside: outside.map(e => e.tagName + "." + e.className), overlaps,
    figures: [...document.querySelectorAll("figure")].filter(
      f => f.querySelector("svg").getBoundingClientRect().height > 100).map(f => f.id),
  };
})()"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What the browser saw at one width, in CSS pixels."""

    scroll_width: int
    client_width: int
    height: int
    outside: list[str]
    overlaps: list[str]
    figures: list[str]
    fetched: list[str]
    console: list[str]


class Browser:
    """A running Chromium with one tab."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._folder = TemporaryDirectory()
        theirs_in, ours_out = _pipe()
        ours_in, theirs_out = _pipe()
        null = ((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (1, 2))
        ends = ((os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4))
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._folder.name}/profile"]
        self._pid = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=[*null, *ends])
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._pending = b""
        self._num_sent = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def close(self) -> None:
        """End Chromium and take its profile away."""
        self._out.close()
        self._in.close()
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder.name, ignore_errors=True)
        self._folder.cleanup()

    def open(
        self,
        page: str | Path,
        width: int,
        *,
        height: int = 900,
        is_dark: bool = False,
        has_script: bool = True,
    ) -> None:
        """Open a page, given as text or as a file, in a window of this size."""
        if isinstance(page, str):
            path = Path(self._folder.name) / "page.html"
            path.write_text(page, encoding="utf-8")
        else:
            path = page.resolve()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("Emulation.setScriptExecutionDisabled", value=not has_script)
        self._events.clear()
        self._ask("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def resize(self, width: int, height: int) -> None:
        """Give the window another size."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression, awaited."""
        answer = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        pressed: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": KEY_CODES[key]}
        if key == "Enter":
            pressed["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, **pressed)

    def drag(self, start: tuple[float, float], *stops: tuple[float, float]) -> None:
        """Press the mouse at a point, move it along others and let it go; without others, only move there."""
        self._mouse("mouseMoved", start, 0)
        if stops:
            self._mouse("mousePressed", start, 1)
            for stop in stops:
                self._mouse("mouseMoved", stop, 1)
            self._mouse("mouseReleased", stops[-1], 0)

    def _mouse(self, kind: str, point: tuple[float, float], buttons: int) -> None:
        button = "none" if kind == "mouseMoved" and not buttons else "left"
        self._ask(
            "Input.dispatchMouseEvent",
            type=kind,
            x=point[0],
            y=point[1],
            button=button,
            buttons=buttons,
            clickCount=1,
        )

    def fetched(self) -> list[str]:
        """What the page asked for besides itself."""
        asked = [e["params"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return [
            asking["request"]["url"]
            for asking in asked
            if asking["type"] != "Document" and not asking["request"]["url"].startswith("data:")
        ]

    def console(self) -> list[str]:
        """What the console holds: errors, warnings, what the security policy refused, and messages."""
        said = []
        for event in self._events:
            params = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    said.append(json.dumps(params["exceptionDetails"]))
                case "Runtime.consoleAPICalled":
                    said.append(json.dumps(params["args"]))
                case "Log.entryAdded":
                    said.append(params["entry"]["text"])
        return said

    def look(self) -> Sighting:
        """Say what stands in the window."""
        seen = self.evaluate(_PROBE)
        return Sighting(**seen, fetched=self.fetched(), console=self.console())

    def save_screenshot(self, target: Path) -> None:
        """Draw the window as a PNG."""
        target.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._num_sent += 1
        message: dict[str, Any] = {"id": self._num_sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._receive()).get("id") != self._num_sent:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            content = os.read(self._in.fileno(), 1 << 20)
            assert content, "Chromium ended"
            self._pending += content
        line, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
        return message


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not those that Chromium expects: those are made for it when it starts."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@cache
def shared_browser() -> Browser:
    """The browser that all tests share; it ends with them."""
    browser = Browser()
    atexit.register(browser.close)
    return browser


def look_at(page: str | Path, widths: Sequence[int]) -> list[Sighting]:
    """Open a page at several window widths and say what stands there."""
    browser = shared_browser()
    seen = []
    for width in widths:
        browser.open(page, width)
        seen.append(browser.look())
    return seen


def take_screenshot(
    page: str | Path, width: int, target: Path, *, height: int = 1200, is_dark: bool = False
) -> None:
    """Draw a page as a PNG, light or dark; `height` 0 stands for all of it."""
    browser = shared_browser()
    browser.open(page, width, height=height or 900, is_dark=is_dark)
    if not height:
        browser.resize(width, browser.look().height)
    browser.save_screenshot(target)
