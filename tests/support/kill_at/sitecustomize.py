"""Kills a `himori submit` right before its n-th effect: on PYTHONPATH, with KILL_AT=n (0 only counts them).

With KILL_LATE it lives on for that many seconds, so that the effect takes place.

An effect is a rename, a new folder, a new process or a claim (a file made if nobody else has made it), as Python's own
audit events report them.
"""

import os
import signal
import sys
import threading
from pathlib import Path

EFFECTS = ("os.rename", "os.mkdir", "subprocess.Popen")
IN_SNAPSHOT = "/code/"
"""Folders of the copied code are one effect: the copy counts for nothing until it is renamed."""

if "KILL_AT" in os.environ and "submit" in sys.orig_argv and "pipeline" in sys.orig_argv:
    seen = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        """Counts effects and ends the process before the one that was asked for."""
        is_claim = event == "open" and "/points/" in str(arguments[0]) and int(str(arguments[2])) & os.O_EXCL
        if event not in EFFECTS and not is_claim:
            return
        if event == "os.mkdir" and IN_SNAPSHOT in str(arguments[0]) and any(IN_SNAPSHOT in effect for effect in seen):
            return
        seen.append(f"{event} {arguments[:2]}")
        if len(seen) == int(os.environ["KILL_AT"]):
            late = threading.Timer(float(os.environ.get("KILL_LATE", "0")), os.kill, (os.getpid(), signal.SIGKILL))
            late.start()
            if "KILL_LATE" not in os.environ:
                late.join()
        if os.environ["KILL_AT"] == "0":
            Path(os.environ["KILL_LOG"]).write_text("\n".join(seen), encoding="utf-8")

    sys.addaudithook(hook)
