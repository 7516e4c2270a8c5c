"""compare, diff and gap as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.__main__ import main

SEMINAR = """\
# as reported by notes.yuuk.io of the Sakura/Fixstars seminar of 2025-08-20; rates made up to give its 2.5
name,source,gpu,gpus,platform,nodes,model,task,sequence_length,global_batch,precision,optimizer,data,\
tokens_per_s_per_gpu,target_loss,steps_to_target,seed
h100,seminar,H100-SXM5-80GB,16,sakura_phy_h100,2,llama3_70b,pretrain,4096,128,bf16,adamw,web,850,2.0,28000,1
b200,seminar,B200-SXM-180GB,8,sakura_phy_b200,1,llama3_70b,pretrain,8192,128,bf16,muon,web,2000,2.0,18000,1
"""
CLAIM = "B200 is 20x an H100: 1/2 nodes x 2 sequence x 2 convergence x 2.5 FLOP/s"


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The seminar's claim as two rows."""
    path = tmp_path / "seminar.csv"
    path.write_text(SEMINAR, encoding="utf-8")
    return str(path)


def test_the_seminars_claim_on_the_command_line(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 8; refused, with the job that would be fair."""
    assert main(["compare", f"{table}:h100", f"{table}:b200", "--explain-product", CLAIM]) == 8
    said = capsys.readouterr().out
    assert said.startswith("NOT A HARDWARE COMPARISON")
    assert "REFUSED PRODUCT" in said
    assert "not the 2 that is claimed" in said
    assert "himori submit hardware=sakura_phy_" in said


def test_json_for_machines(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it as one document."""
    assert main(["compare", f"{table}:h100", f"{table}:b200", "--explain-product", CLAIM, "--json"]) == 8
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "NOT_COMPARABLE"
    assert document["product"]["refused"] is True
    assert document["fair_job"]["command"].startswith("himori submit ")
    assert document["answers"]["flops"]["verdict"] == "BOUNDED"


def test_a_claim_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Without runs the data sheets and public pairs of the named GPUs still bound it."""
    assert main(["compare", "--explain-product", CLAIM]) == 0
    assert "the data sheets allow about 2.75x" in capsys.readouterr().out


def test_prices_typed_make_a_cost_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """Both, with their basis, or none."""
    pair = ["published:llama3-8b-fp8-h100-25.11", "published:llama3-8b-fp8-b200-25.11"]
    prices = ["--price-a", "3", "--price-b", "6", "--price-basis", "USD on demand 2026-04"]
    assert main(["compare", *pair, *prices, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["answers"]["cost"]["ratio"] == pytest.approx(2 / 2.119, rel=1e-3)
    assert main(["compare", *pair, *prices[:2]]) == 2
    assert "belong together" in capsys.readouterr().err


def test_gap_of_a_published_row_is_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Distance 0, its own rate."""
    assert main(["gap", "published:llama3-8b-fp8-h100-25.11", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["distance_doublings"] == 0
    assert document["rate_ratio"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare"], "give two arms"),
        (["compare", "last"], "give two arms"),
        (["compare", "published:none", "last"], "no row matches"),
        (["compare", "nothing", "last"], "no run"),
        (["diff", "published:*", "published:*"], "names 31 runs; name one"),
        (["gap", "nothing"], "no run"),
        (["compare", "--explain-product", "2 bananas"], "nothing we know"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, what was wrong and what there is."""
    assert main([*arguments, "--run-root", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
