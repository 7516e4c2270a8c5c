"""The loss with its output layer: values and gradients against float64, with and without logits as a whole.

Vocabularies divided over real ranks are compared in test_training_layouts.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from pipeline.training.fused_loss import Vocabulary, linear_loss, logits_loss  # noqa: E402

TOKENS, WIDTH, ROWS = 37, 16, 101
ALONE = Vocabulary(start=0, group=None)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def inputs(dtype: Any) -> tuple[Any, Any, Any]:
    """Hidden states, weights and labels, some of which count for nothing."""
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(0, ROWS, (TOKENS,), generator=generator)
    labels[::5] = -1
    return hidden, weight, labels


def exact(hidden: Any, weight: Any, labels: Any, z_loss: float) -> Any:
    """The loss of each token in float64, by the definition."""
    logits = hidden.double() @ weight.double().t()
    log_z = logits.logsumexp(dim=-1)
    chosen = logits.gather(1, labels.clamp(min=0)[:, None]).squeeze(1)
    return (log_z - chosen + z_loss * log_z**2) * (labels >= 0)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 0.05])
@pytest.mark.parametrize("block_logits", [1, 5 * ROWS, 1 << 20], ids=["a token", "some tokens", "all"])
def test_the_linear_loss_equals_float64(dtype: Any, z_loss: float, block_logits: int) -> None:
    hidden, weight, labels = inputs(dtype)
    wanted = exact(hidden, weight, labels, z_loss)
    wanted_gradients = torch.autograd.grad(wanted.mean(), (hidden, weight))
    found = linear_loss(hidden, weight, labels, ALONE, z_loss=z_loss, block_logits=block_logits)
    gradients = torch.autograd.grad(found.mean(), (hidden, weight))
    for mine, theirs in zip((found, *gradients), (wanted, *wanted_gradients), strict=True):
        error = (mine.double() - theirs.double()).norm() / theirs.double().norm()
        assert error < TOLERANCES[dtype]


@pytest.mark.parametrize("z_loss", [0.0, 0.05])
def test_the_loss_of_logits_equals_float64_for_any_weights_of_tokens(z_loss: float) -> None:
    hidden, weight, labels = inputs(torch.float32)
    weights = torch.linspace(0, 1, TOKENS)
    wanted = exact(hidden, weight, labels, z_loss)
    wanted_gradients = torch.autograd.grad((wanted * weights).sum(), (hidden, weight))
    found = logits_loss(hidden @ weight.t(), labels, ALONE, z_loss=z_loss)
    gradients = torch.autograd.grad((found * weights).sum(), (hidden, weight))
    for mine, theirs in zip((found, *gradients), (wanted, *wanted_gradients), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-4, atol=1e-5)


def test_tokens_of_different_weight_give_no_wrong_gradient() -> None:
    hidden, weight, labels = inputs(torch.float32)
    losses = linear_loss(hidden, weight, labels, ALONE)
    (gradient,) = torch.autograd.grad((losses * torch.linspace(1, 2, TOKENS)).sum(), (weight,))
    assert torch.isnan(gradient).all()


def test_logits_never_exist_as_a_whole() -> None:
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            # All that is as wide as the vocabulary, but for the weights seen from the other side.
            if isinstance(result, torch.Tensor) and result.dim() == 2 and result.shape[1] == ROWS:
                largest = max(largest, result.size(0)) if result.size(0) != WIDTH else largest
            return result

    hidden, weight, labels = inputs(torch.float32)
    with Watch():
        linear_loss(hidden, weight, labels, ALONE, block_logits=5 * ROWS).mean().backward()
    assert 0 < largest <= 5
