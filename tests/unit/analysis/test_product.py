"""Claimed products, taken apart."""

from __future__ import annotations

import dataclasses

import pytest
from made_runs import row

from pipeline.analysis.bounds import hardware_bound
from pipeline.analysis.facts import Target
from pipeline.analysis.product import explain, parse_claim
from pipeline.analysis.public_pairs import matched_ratios
from pipeline.analysis.selection import shipped_rows
from pipeline.analysis.specs import gpu_mentioned
from pipeline.errors import UserError

CLAIM = "B200 is 20x an H100: 1/2 nodes x 2 sequence x 2 convergence x 2.5 FLOP/s"


def test_the_seminars_product_is_refused_and_what_is_left_of_it_is_said() -> None:
    """Given variables times outcomes; the rate is all that may be hardware, in one of two readings."""
    claim = parse_claim(CLAIM)
    a, b = gpu_mentioned(claim.a), gpu_mentioned(claim.b)
    assert a is not None
    assert b is not None
    measured = matched_ratios(shipped_rows(), a.name, b.name)
    found = explain(claim, bound=hardware_bound(a, b, "bf16", "bf16"), measured=measured)
    assert claim.product == pytest.approx(20)
    assert found.refused
    assert "nodes, sequence length" in found.why
    assert "convergence, FLOP/s" in found.why
    assert (found.hardware_low, found.hardware_high) == (2.5, 5.0)
    said = " ".join(found.remarks)
    assert "2.5x if it is per GPU" in said
    assert "5x per GPU if it is of the whole job" in said
    assert "about 2.75x" in said
    assert "1.34x to 2.33x" in said


def test_runs_behind_a_claim_are_held_against_it() -> None:
    """28,000 over 18,000 is 1.56, not 2."""
    a = dataclasses.replace(row("a", gpus=16, nodes=2), targets=(Target(loss=2.0, steps=28_000),))
    b = dataclasses.replace(
        row("b", gpu="B200-SXM-180GB", sequence_length=8192), targets=(Target(loss=2.0, steps=18_000),)
    )
    said = explain(parse_claim(CLAIM), arms=([a], [b])).remarks
    assert any("1.56" in line and "not the 2 that is claimed" in line for line in said)
    assert any(line.startswith("sequence length: recorded 4,096 and 8,192, a factor of 2") for line in said)
    assert not any("nodes" in line and "not the" in line for line in said)


@pytest.mark.parametrize(
    ("text", "product", "refused", "high"),
    [
        ("2.5 FLOP/s", 2.5, False, 2.5),
        ("2x sequence × 2.5x throughput", 5.0, True, 2.5),
        ("gpus=1/4, tokens/s: 1.2", 4.8, True, 4.8),
        ("2 FLOP/s x 2 tokens/s", 4.0, True, 2.0),
        ("2 throughput x 1.5 convergence", 3.0, False, 2.0),
        ("2 nodes x 2 sequence", 4.0, False, None),
        ("1.5 memory x 2 speed", 3.0, True, 2.0),
        ("2 throughput x 1/2 cost", 4.0, True, 2.0),
    ],
)
def test_claims_of_every_kind(text: str, product: float, refused: bool, high: float | None) -> None:
    """However it is written: what it makes, whether it means anything, and what may be hardware."""
    claim = parse_claim(text)
    found = explain(claim)
    assert claim.product == pytest.approx(product)
    assert found.refused is refused
    assert found.hardware_high == pytest.approx(high) if high else found.hardware_high is None


def test_factors_that_do_not_make_the_total_are_said() -> None:
    """A claim's own arithmetic is checked."""
    found = explain(parse_claim("X is 30x Y: 1/2 nodes x 2.5 FLOP/s"))
    assert "the factors make 5, not 30" in found.remarks


@pytest.mark.parametrize("text", ["", "2 bananas", "fast", "0 nodes x 2 FLOP/s", "nodes x FLOP/s"])
def test_what_cannot_be_read_is_said_on_one_line(text: str) -> None:
    """Never a traceback."""
    with pytest.raises(UserError, match="--explain-product") as raised:
        parse_claim(text)
    assert "\n" not in str(raised.value)
