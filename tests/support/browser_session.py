"""A headless Chromium that is driven page by page over its debugging pipe, and tells what went wrong in each."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
ANSWER_S = 120.0


class Browser:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        """Exceptions nobody caught and answers of 5xx, of all pages so far."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol; what happens meanwhile is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_S
        while True:
            got = self._read(until)
            if got.get("id") == self._number:
                assert "error" not in got, got
                found: dict[str, Any] = got["result"]
                return found
            self._note(got)

    def open(self, url: str, *texts: str, seconds: float = 90) -> str:
        """Opens a page and waits until all of `texts` stand in it; its text."""
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=url)
        until, text = time.monotonic() + seconds, ""
        while not text or not all(wanted in text for wanted in texts):
            assert time.monotonic() < until, f"{url}: no {texts} in {text[:2000]!r}; {self.errors}"
            time.sleep(0.5)
            seen = self.ask("Runtime.evaluate", expression="document.body ? document.body.innerText : ''")
            text = str(seen["result"].get("value", ""))
        return text

    def shoot(self, file: Path) -> None:
        """A screenshot, once what moves has come to rest."""
        time.sleep(1.0)
        file.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"]))[:500])
        if event.get("method") == "Network.responseReceived" and params["response"]["status"] >= 500:
            self.errors.append(f"{params['response']['status']} {params['response']['url']}")

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._in, 1 << 20)
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    assert CHROMIUM is not None
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4.
    script = f'exec "$@" 3<&{their_in} 4>&{their_out}'
    command = ["bash", "-c", script, "bash", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
               "--remote-debugging-pipe", f"--user-data-dir={profile}", "--window-size=1500,1100"]  # fmt: skip
    with subprocess.Popen(command, pass_fds=(their_in, their_out), stderr=subprocess.DEVNULL) as process:
        os.close(their_in)
        os.close(their_out)
        try:
            yield Browser(our_out, our_in)
        finally:
            process.kill()
            os.close(our_out)
            os.close(our_in)
