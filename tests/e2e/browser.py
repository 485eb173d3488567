"""Headless Chromium over a pipe, with the devtools protocol: no driver program, no port, no network.

``python -m tests.e2e.browser report.html -o docs/pictures --height 1600`` makes the pictures of docs/report.md. It
needs Chromium (Debian: ``apt-get install chromium``). Exit codes: 0 fine; 2 bad input, or no browser.

Messages are JSON objects, each ended by a zero byte; with ``--remote-debugging-pipe`` Chromium reads them on file
descriptor 3 and answers on 4 (https://chromedevtools.github.io/devtools-protocol/).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CLOSE_WITHIN_S = 10.0
KINDS = {"light": (1280, False), "dark": (1280, True), "narrow": (390, False)}
"""Width of the screen in CSS pixels, and whether the reader prefers dark colours."""
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--proxy-server=127.0.0.1:9",
    "--remote-debugging-pipe",
)  # fmt: skip
"""No sandbox, since containers seldom allow one; the pages are our own, and their policy refuses scripts. The proxy is
a port of this machine that nobody listens on: what is not a file cannot be reached.
"""

_MOVE = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])  # out of the way of 3 and 4
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Runs in the child: moves the two ends to the numbers that Chromium asks for, and becomes Chromium."""


def find_chromium() -> str | None:
    """Return the browser's path; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a browser that can reach nothing outside.

    Args:
        executable: see ``find_chromium``.
        profile: an empty folder for what a browser writes down.
    """

    def __init__(self, executable: str, profile: Path) -> None:
        self._number = 0
        self.events: list[dict[str, Any]] = []
        to_browser, from_browser = os.pipe(), os.pipe()
        ends = (to_browser[0], from_browser[1])
        command = [sys.executable, "-ISc", _MOVE, *map(str, ends), executable, *_OPTIONS]
        command += [f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in ends:
            os.close(end)
        self._out, self._in = os.fdopen(to_browser[1], "wb", 0), os.fdopen(from_browser[0], "rb")
        try:
            self._session = self._attach()
        except BaseException:
            self.close()
            raise
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and its helpers, which write into the profile until then."""
        with suppress(OSError, RuntimeError, subprocess.TimeoutExpired):
            self._send("Browser.close")
            self._process.wait(CLOSE_WITHIN_S)
        self._process.terminate()
        self._process.wait()
        self._out.close()
        self._in.close()

    def _attach(self) -> str:
        """Return the session of the page that the browser starts with."""
        target = next(item for item in self._send("Target.getTargets")["targetInfos"] if item["type"] == "page")
        attached = self._send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        return str(attached["sessionId"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the page; events that come meanwhile are kept in ``events``.

        Raises:
            RuntimeError: the browser refuses, or has gone.
        """
        return self._send(method, self._session, **parameters)

    def screen(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the screen in CSS pixels, and the colours that the reader prefers."""
        size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a page's security policy does not bind the debugger."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"the browser cannot evaluate {expression!r}: {found['exceptionDetails'].get('text')}")
        return found["result"].get("value")

    def picture(self, height: int | None = None) -> bytes:
        """Return a PNG of the top of the page, ``height`` pixels high; by default of the whole page."""
        tall = self.value("document.documentElement.scrollHeight") if height is None else height
        width = self.value("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": tall, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def press(self, key: str, code: int) -> None:
        """Press a key, such as Tab (9)."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != self._number:
            self.events.append(reply)
        if "error" in reply:
            raise RuntimeError(f"the browser refuses {method}: {reply['error'].get('message')}")
        return dict(reply["result"])

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has gone")
            data += byte
        return dict(json.loads(data))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write ``report_light.png``, ``report_dark.png`` and ``report_narrow.png``."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.browser", description="Take pictures of a report in headless Chromium."
    )
    parser.add_argument("report", metavar="FILE", type=Path, help="a file that python -m harness report wrote")
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, default=Path(), help="default: the current folder")
    parser.add_argument("--height", metavar="PIXELS", type=int, help="of the pictures; default: the whole page")
    options = parser.parse_args(arguments)
    report, executable = options.report, find_chromium()
    if executable is None:
        parser.error("there is no Chromium on this machine (Debian: apt-get install chromium)")
    if not report.is_file():
        parser.error(f"{str(report)!r} is no file: name one of python -m harness report")
    options.out.mkdir(parents=True, exist_ok=True)
    written = {}
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a helper of Chromium's may end late
    with scratch as profile, Browser(executable, Path(profile)) as browser:
        for kind, (width, dark) in KINDS.items():
            browser.screen(width, dark=dark)
            browser.open(report)
            written[f"{report.stem}_{kind}.png"] = browser.picture(options.height)
    for name, content in written.items():
        (options.out / name).write_bytes(content)
        print(f"picture: {options.out / name}")


if __name__ == "__main__":
    main()
