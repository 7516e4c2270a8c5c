"""Magnitudes, scales and overflows are read from what Transformer Engine keeps beside its layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.training.attention_kernel import kernel_of, warning_of

torch = pytest.importorskip("torch")
from pipeline.training.fp8_health import Scaled, _of_module, metrics, summarize  # noqa: E402


def scaled(history: list[list[float]], scale: list[float]) -> Scaled:
    return Scaled(history=torch.tensor(history), scale=torch.tensor(scale))


def test_extremes_of_all_tensors_in_use() -> None:
    health = summarize([scaled([[1.0, 2.0]], [448.0, 224.0]), scaled([[8.0, 0.0]], [56.0, 1.0])])
    assert health is not None
    assert metrics(health) == {
        "fp8/amax": 8.0,
        "fp8/scale_min": 56.0,
        "fp8/scale_max": 448.0,
        "fp8/overflows": 0.0,
        "fp8/not_finite": 0.0,
    }


@pytest.mark.parametrize(
    ("history", "overflows"),
    [
        ([[1.0], [1.0], [2.0]], 1),
        ([[3.0], [1.0], [2.0]], 0),
        ([[0.0], [0.0], [2.0]], 0),  # the first step: there was no scale yet
        ([[2.0]], 0),
    ],
)
def test_a_magnitude_beyond_its_history_did_not_fit(history: list[list[float]], overflows: int) -> None:
    health = summarize([scaled(history, [1.0])])
    assert health is not None
    assert health.overflows == overflows


def test_what_is_not_finite_is_counted() -> None:
    health = summarize([scaled([[float("inf"), 1.0]], [1.0, float("nan")])])
    assert health is not None
    assert health.broken == 2


def test_nothing_in_use_has_no_health() -> None:
    assert summarize([]) is None
    assert summarize([scaled([[0.0, 0.0]], [1.0, 1.0])]) is None


def test_delayed_scaling_keeps_a_history_whose_first_row_is_still_open() -> None:
    state = SimpleNamespace(amax_history=torch.tensor([[0.0], [1.0], [2.0], [5.0]]), scale=torch.tensor([1.0]))
    module: Any = SimpleNamespace(fp8_meta={"scaling_fwd": state})
    (found,) = _of_module(module)
    assert found.history.tolist() == [[1.0], [2.0], [5.0]]


def test_current_scaling_keeps_the_last_tensor() -> None:
    quantizer = SimpleNamespace(amax=torch.tensor([3.0]), scale=torch.tensor([149.0]))
    module: Any = SimpleNamespace(
        fp8_meta={"scaling_fwd": SimpleNamespace()}, quantizers={"scaling_fwd": [quantizer], "scaling_bwd": []}
    )
    (found,) = _of_module(module)
    assert (found.history.tolist(), found.scale.tolist()) == ([[3.0]], [149.0])


def test_layers_of_blocks_keep_nothing() -> None:
    module: Any = SimpleNamespace(fp8_meta={}, quantizers={"scaling_fwd": [SimpleNamespace()]})
    assert list(_of_module(module)) == []


@pytest.mark.parametrize(
    ("state", "kernel"),
    [
        ({"use_flash_attention": True, "use_fused_attention": True}, "flash"),
        ({"use_flash_attention": False, "use_fused_attention": True, "use_unfused_attention": True}, "fused"),
        ({"use_flash_attention": False, "use_fused_attention": False, "use_unfused_attention": True}, "unfused"),
        ({"use_flash_attention": None}, None),
    ],
)
def test_the_slow_attention_alone_is_warned_of(state: dict[str, object], kernel: str | None) -> None:
    assert kernel_of(state) == kernel
    assert (warning_of(kernel) is not None) == (kernel == "unfused")
