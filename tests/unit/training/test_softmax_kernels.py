"""The Triton kernels of cross entropy against float64, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

CHECK = """
import itertools, torch
from pipeline.training import softmax_kernels as kernels

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
for kind, columns, first in itertools.product((torch.float32, torch.bfloat16), (1, 150, 8192, 8200), (0, 150)):
    rows = 3
    logits = (4 * torch.randn(rows, columns, device=device)).to(kind)
    labels = torch.randint(0, columns + 300, (rows,), device=device)
    weights = torch.rand(rows, device=device)
    exact = logits.double()
    here = (labels >= first) & (labels < first + columns)
    column = (labels - first).clamp(0, columns - 1)
    one_hot = torch.zeros_like(exact).scatter_(1, column[:, None], here[:, None].double())
    maximum, total, chosen = kernels.softmax_statistics(logits, labels, first)
    assert torch.equal(maximum.double(), exact.max(1).values)
    summed = (exact - exact.max(1, keepdim=True).values).exp().sum(1)
    torch.testing.assert_close(total.double(), summed, rtol=1e-5, atol=0)
    torch.testing.assert_close(chosen.double(), (one_hot * exact).sum(1), rtol=1e-6, atol=1e-6)
    log_sum = maximum + total.log()
    chance = (exact - log_sum.double()[:, None]).exp() * (1 + 2 * 0.01 * log_sum.double()[:, None])
    expected = (chance - one_hot) * weights.double()[:, None]
    found = kernels.softmax_gradient_(logits, labels, first, log_sum, weights, 0.01)
    assert found is logits
    tolerance = 1e-5 if kind is torch.float32 else 8e-3  # the interpreter cuts bf16 off instead of rounding
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=1e-6)
"""


def test_statistics_and_gradient_equal_float64_for_all_types_sizes_and_parts_of_a_vocabulary() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
