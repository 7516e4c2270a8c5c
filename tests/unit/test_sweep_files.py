"""What names points and sweeps, the claims, the code snapshot and the index."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.code_snapshot import keep_code, kept_code, read_code
from pipeline.config import load
from pipeline.errors import UserError
from pipeline.identity import VOLATILE, point_digest, sweep_digest
from pipeline.run_index import Ended, RunIndex, attempts_mtime_ns
from pipeline.rundir import to_jsonable
from pipeline.sweepdir import Claims, own_claim
from pipeline.types import Cluster, Experiment, HardwareProfile, RunState


def digest(*overrides: str) -> str:
    """The name of a point."""
    return point_digest(to_jsonable(load(["experiment=demo", *overrides]).experiment), "code")


@pytest.mark.parametrize(
    "overrides",
    [("seed=7",), ("optimizer.lr=1e-2",), ("name=other",), ("layout.tp=1",), ("cluster.binding=none",), ("nodes=2",)],
)
def test_what_changes_a_result_changes_the_name(overrides: tuple[str, ...]) -> None:
    assert digest(*overrides) != digest()


@pytest.mark.parametrize(
    "overrides",
    [("run_root=/elsewhere",), ("cluster.partition=gpu",), ("cluster.sbatch.constraint=x",), ("tracking.uri=null",),
     ("cluster.time_limit_min=3",), ("hardware.description=x",)],
)  # fmt: skip
def test_where_and_when_it_runs_does_not(overrides: tuple[str, ...]) -> None:
    assert digest(*overrides) == digest()


def test_the_code_is_part_of_the_name_and_what_is_left_out_exists() -> None:
    configuration = to_jsonable(load([]).experiment)
    assert point_digest(configuration, "a") != point_digest(configuration, "b")
    for kind, group in ((Experiment, ""), (Cluster, "cluster"), (HardwareProfile, "hardware")):
        assert set(VOLATILE[group]) <= set(kind.__dataclass_fields__)


def test_a_sweep_is_named_by_its_points_in_any_order() -> None:
    assert sweep_digest(["a", "b"]) == sweep_digest(["b", "a", "a"]) != sweep_digest(["a"])


def test_a_try_of_a_point_is_claimed_once_however_many_want_it(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "points")
    wanted = [own_claim(f"run-{number}", "sweep", boot_id="b", start_ticks=1) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda claim: claims.take("d", 1, claim), wanted))
    won = [claim for claim, first in zip(wanted, taken, strict=True) if first]
    assert len(won) == 1
    assert claims.read("d", 1) == won[0]
    assert claims.take("d", 2, wanted[3])
    assert claims.tries(["d", "e"]) == {"d": 2}


def checkout(path: Path) -> Path:
    """A repository with the three packages, one file ignored, one untracked."""
    for package in ("pipeline", "launchers", "conf"):
        (path / package).mkdir(parents=True)
        (path / package / "__init__.py").write_text(package, encoding="utf-8")
    (path / "pipeline" / "code_snapshot.py").write_text("", encoding="utf-8")
    (path / ".gitignore").write_text("*.log\n__pycache__\n", encoding="utf-8")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"]):
        subprocess.run(["git", "-C", path, *command], check=True)
    (path / "pipeline" / "noise.log").write_text("x", encoding="utf-8")
    (path / "pipeline" / "untracked.py").write_text("y", encoding="utf-8")
    return path


def test_changed_and_untracked_files_are_part_of_the_code_ignored_ones_are_not(tmp_path: Path) -> None:
    root = checkout(tmp_path / "repo")
    before = read_code(root)
    assert "pipeline/untracked.py" in before.files
    assert "pipeline/noise.log" not in before.files
    (root / "README").write_text("not code", encoding="utf-8")
    assert read_code(root).digest == before.digest
    (root / "conf" / "__init__.py").write_text("changed", encoding="utf-8")
    assert read_code(root).digest != before.digest


def test_a_snapshot_is_kept_once_and_stays_when_the_checkout_changes(tmp_path: Path) -> None:
    root, run_root = checkout(tmp_path / "repo"), tmp_path / "runs"
    code = read_code(root)
    folder = keep_code(code, run_root)
    assert keep_code(code, run_root) == folder
    (root / "conf" / "__init__.py").write_text("changed", encoding="utf-8")
    assert (folder / "conf" / "__init__.py").read_text(encoding="utf-8") == "conf"
    # Outside of a repository the same files have the same name, bytecode or not.
    (folder / "conf" / "__pycache__").mkdir()
    (folder / "conf" / "__pycache__" / "x.pyc").write_bytes(b"")
    assert kept_code(code.digest, run_root).digest == code.digest
    (folder / "conf" / "__init__.py").write_text("changed", encoding="utf-8")
    with pytest.raises(UserError, match="gone or was changed"):
        kept_code(code.digest, run_root)
    assert [path.name for path in (run_root / "code").iterdir()] == [code.digest]


def test_what_is_too_large_to_be_code_is_named(tmp_path: Path) -> None:
    root = checkout(tmp_path / "repo")
    with (root / "conf" / "weights.bin").open("wb") as stream:
        stream.truncate(65 << 20)
    with pytest.raises(UserError, match=r"conf/weights\.bin"):
        read_code(root)


def test_the_index_keeps_ends_forgets_runs_that_go_on_and_survives_damage(tmp_path: Path) -> None:
    (tmp_path / "run" / "attempts" / "1").mkdir(parents=True)
    index = RunIndex(tmp_path)
    ended = Ended(RunState.failed, "why", "7", 1.5, attempts_mtime_ns(tmp_path, "run"))
    index.put("run", ended)
    index.save()
    assert RunIndex(tmp_path).get("run") == ended
    (tmp_path / "run" / "attempts" / "2").mkdir()
    assert RunIndex(tmp_path).get("run") is None
    (tmp_path / "index.json").write_text('{"schema": 1, "ended": {"run": ["NONSENSE"]}}', encoding="utf-8")
    assert len(RunIndex(tmp_path)) == 0
