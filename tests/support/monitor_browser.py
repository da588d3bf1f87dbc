"""Drives Debian's Chromium through DevTools over a websocket: opens pages, runs JavaScript, takes screenshots, listens.

Name resolution is blocked, so a page that requests anything from outside this machine fails, and says so.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from processes import until

FLAGS = """
--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage --mute-audio
--remote-debugging-port=0 --remote-allow-origins=*
"""
RESOLVE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
DEADLINE_S = 120.0


def chromium() -> str | None:
    """The path of the browser, None if it is not installed."""
    return shutil.which("chromium")


class Browser:
    """One headless browser with one page; keeps every request, console error and uncaught exception of the page."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        program = chromium()
        assert program is not None
        self._process = subprocess.Popen(
            [program, *FLAGS.split(), RESOLVE, f"--user-data-dir={self._profile.name}", "about:blank"],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._number = 0
        self._page: Any = None
        try:
            self._loop.run_until_complete(self._attach(until(self._port, "the browser has started", DEADLINE_S)))
        except BaseException:
            self.close()
            raise

    def open(self, url: str, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        """Load a page as on a screen of this size, in light or dark mode."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        phone = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **phone)
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, code: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait for a JavaScript expression to be true."""
        return until(lambda: self.run(code), lambda: f"{code}; errors: {self.errors}", deadline_s)

    def shot(self, path: Path, *, whole: bool = False) -> None:
        """Save a screenshot of the visible part, or of the whole page."""
        picture = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """End the browser and all its processes; may be called twice."""
        if self._page is not None:
            self._loop.run_until_complete(asyncio.wait_for(self._detach(), DEADLINE_S))
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
        self._profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _port(self) -> str | None:
        assert self._process.poll() is None, "the browser ended at once"
        told = Path(self._profile.name) / "DevToolsActivePort"
        return told.read_text().split()[0] if told.exists() and "\n" in told.read_text() else None

    async def _attach(self, port: str) -> None:
        from tornado.websocket import websocket_connect

        with urlopen(Request(f"http://127.0.0.1:{port}/json"), timeout=DEADLINE_S) as answer:
            pages = [entry for entry in json.load(answer) if entry["type"] == "page"]
        self._page = await websocket_connect(pages[0]["webSocketDebuggerUrl"], max_message_size=1 << 28)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self._ask(f"{domain}.enable", {})

    async def _detach(self) -> None:
        page, self._page = self._page, None
        page.close()
        while await page.read_message() is not None:
            pass

    def _call(self, method: str, **parameters: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(self._ask(method, parameters), DEADLINE_S))

    async def _ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        number = self._number
        await self._page.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            text = await self._page.read_message()
            assert text is not None, "the browser has gone"
            message = json.loads(text)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requests.append(told["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"]))[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.errors.append(str(told["args"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
