"""What only a run on this machine can show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.cli import HIMORI, Site, wait_until

LONG = "recipe.steps=100000"


def test_run_shows_progress_and_a_summary(local_site: Site) -> None:
    done = local_site.himori("run", "experiment=demo", "recipe.steps=8", f"run_root={local_site.run_root}")
    assert "step 8/8" in done.stdout
    assert "tokens/s" in done.stdout
    for shown in ("FINISHED", "loss", "directory", "MLflow run", f"himori ui --run-root {local_site.run_root}"):
        assert shown in done.stdout


def test_ctrl_c_leaves_the_run_alone(local_site: Site) -> None:
    command = [*HIMORI, "run", "experiment=demo", LONG, f"run_root={local_site.run_root}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        assert shell.stdout
        run_id = shell.stdout.readline().split()[1]
        try:
            journal = local_site.run_root / run_id / "attempts" / "1" / "journal" / "local.jsonl"
            wait_until(lambda: journal.exists() and '"metrics"' in journal.read_text(), 120, "the first step")
            os.killpg(shell.pid, signal.SIGINT)
            assert shell.wait(60) == 130
            assert "the run goes on" in shell.stdout.read()
            assert json.loads(local_site.himori("status", "--json", run_id).stdout)[0]["state"] == "RUNNING"
        finally:
            cancelled = local_site.himori("cancel", run_id).stdout
    assert "CANCELLED" in cancelled


def test_a_rank_that_never_reports_ends_the_run_in_time(local_site: Site, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text(
        f'#!/bin/bash\n[ "${{SUBMITIT_LOCAL_GLOBALID:-}}" != 2 ] || sleep 600\nexec {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    slow.chmod(0o755)
    began = time.monotonic()
    run = local_site.submit(
        f"cluster.python={slow}", "cluster.rendezvous_timeout_s=20", "tracking.finish_timeout_s=8", LONG
    )
    assert run.wait() == 5
    assert time.monotonic() - began < 180
    assert "ranks 2 did not report within 20 s" in run.end()["message"]
    run.assert_nothing_left(60)


def test_a_pipeline_folder_of_the_users_own_shadows_nothing(tmp_path: Path) -> None:
    for name in ("pipeline", "launchers", "conf", "submitit"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('shadowed')\n", encoding="utf-8")
    command = [*HIMORI, "run", "experiment=demo", "recipe.steps=6", f"run_root={tmp_path / 'runs'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_data_of_ones_own_is_found_from_any_directory(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question.\n" * 500, encoding="utf-8")
    command = [
        *HIMORI,
        "run",
        "experiment=demo",
        "recipe.steps=6",
        "data.path=text.txt",
        f"run_root={tmp_path / 'runs'}",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
