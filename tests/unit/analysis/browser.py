"""A headless Chromium that opens a file with the network off and tells what its console said."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What came of opening a page."""

    dom: str
    console: list[str]


def open_page(page: Path, profile: Path, *, width: int = 390, dark: bool = False) -> Opened:
    """Opens a page without a network; the console's lines are those at any level."""
    assert CHROMIUM is not None
    cut_off = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [*cut_off, CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
         "--enable-logging=stderr", f"--window-size={width},2000", "--proxy-server=127.0.0.1:9", *scheme,
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return Opened(dom=done.stdout, console=re.findall(r"CONSOLE.*", done.stderr))
