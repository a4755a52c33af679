"""Open a page in headless Chromium and ask it what a reader would see."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Runs in the page: what sticks out sideways, which texts of a figure overlap, what was fetched.
_PROBE = """
<script>
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth;
  const outside = [...document.querySelectorAll("body *")].filter(
    e => !e.closest(".scroll, pre, svg") && e.getBoundingClientRect().right > wide + 0.5);
  const overlaps = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const texts = [...svg.querySelectorAll("text")].map(
      t => [t.textContent.trim(), t.getBoundingClientRect()]);
    texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 1 && y > 2) overlaps.push(svg.parentElement.id + ": " + a + " / " + b);
    }));
  }
  const seen = parent.document.createElement("pre");
  seen.className = "probe";
  seen.textContent = JSON.stringify({
    scroll_width: document.documentElement.scrollWidth, client_width: wide,
    height: document.documentElement.scrollHeight,
    outside: outside.map(e => e.tagName + "." + e.className), overlaps,
    figures: [...document.querySelectorAll("figure")].filter(
      f => f.querySelector("svg").getBoundingClientRect().height > 100).map(f => f.id),
  });
  parent.document.body.append(seen);
});
</script>
"""


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


def look_at(page: str, widths: Sequence[int]) -> list[Sighting]:
    """Load a page at several window widths, measure it, and note what it asks of any host."""
    # The page forbids scripts; the probe is ours and comes into a copy without that rule. The copy stands in
    # frames, because a headless window is never narrower than 500 pixels.
    probed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    probed = html.escape(probed.replace("</body>", _PROBE + "</body>"))
    frames = [
        f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{probed}"></iframe>'
        for width in widths
    ]
    with _OnePage(f"<!doctype html><body>{''.join(frames)}</body>") as server:
        everywhere = f"--host-resolver-rules=MAP * 127.0.0.1:{server.server_port}"
        address = f"http://page.test:{server.server_port}/page"
        dom, errors = _run_chromium(address, 1400, everywhere, "--dump-dom", "--hide-scrollbars")
    seen = [
        json.loads(html.unescape(text))
        for text in re.findall(r'<pre class="probe">(.*?)</pre>', dom, re.DOTALL)
    ]
    assert len(seen) == len(widths), f"Chromium did not load the page: {errors[-500:]}"
    fetched = [path for path in server.paths if path not in ("/page", "/favicon.ico")]
    console = [line for line in errors.splitlines() if "CONSOLE" in line]
    ordered = sorted(seen, key=lambda facts: widths.index(facts["client_width"]))
    return [Sighting(**facts, fetched=fetched, console=console) for facts in ordered]


class _OnePage(ThreadingHTTPServer):
    """Serves one page, answers 404 to all else, and keeps what was asked for."""

    def __init__(self, page: str) -> None:
        super().__init__(("127.0.0.1", 0), _PageHandler)
        self.page = page.encode()
        self.paths: list[str] = []

    def __enter__(self) -> Self:
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _PageHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _OnePage)
        self.server.paths.append(self.path)
        is_page = self.path == "/page"
        body = self.server.page if is_page else b""
        self.send_response(200 if is_page else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent: `paths` is the log."""


def take_screenshot(
    page: str, width: int, target: Path, *, height: int = 1200, is_dark: bool = False
) -> None:
    """Draw a page as a PNG, light or dark."""
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    shot = ("--hide-scrollbars", f"--screenshot={target}")
    with _OnePage(page) as server:
        address = f"http://127.0.0.1:{server.server_port}/page"
        _run_chromium(address, width, scheme, *shot, height=height)


def _run_chromium(address: str, width: int, *flags: str, height: int = 1200) -> tuple[str, str]:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--disable-features=NetworkTimeServiceQuerying", "--enable-logging=stderr"]
    with TemporaryDirectory() as profile:
        command += [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        done = subprocess.run(
            [*command, *flags, address], capture_output=True, text=True, timeout=60, check=True
        )
    return done.stdout, done.stderr
