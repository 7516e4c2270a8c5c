"""One row of the GPU benchmark through Megatron-LM's own training loop, as the megatron-core wheel carries it (0.19).

Started by gpu_rows.py in a process of its own; prints one JSON line with the time of each iteration and peak memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from pipeline.model_math import head_dim
from pipeline.types import Experiment, LowPrecision, Plan

_ITERATION = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+)")
_FP8_RECIPES = {
    LowPrecision.fp8_delayed: "delayed",
    LowPrecision.fp8_current: "tensorwise",
    LowPrecision.fp8_blockwise: "blockwise",
}


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Uniform token ids: what a step costs doesn't depend on them."""

    def __init__(self, samples: int, sequence_length: int, vocab_size: int) -> None:
        self._samples = samples
        self._shape = (sequence_length + 1,)
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        drawn = torch.randint(self._vocab_size, self._shape, generator=torch.Generator().manual_seed(index))
        return {"tokens": drawn[:-1], "labels": drawn[1:], "position_ids": torch.arange(len(drawn) - 1)}


def arguments(experiment: Experiment, plan: Plan) -> list[str]:
    """Command line of Megatron-LM's script for the same model, batch and precision; its defaults otherwise."""
    model, layout, recipe = experiment.model, plan.layout, experiment.recipe
    options: dict[str, object] = {
        "num-layers": model.num_layers,
        "hidden-size": model.hidden_size,
        "ffn-hidden-size": model.ffn_hidden_size,
        "num-attention-heads": model.num_attention_heads,
        "num-query-groups": model.num_query_groups,
        "kv-channels": head_dim(model),
        "max-position-embeddings": recipe.sequence_length,
        "seq-length": recipe.sequence_length,
        "rotary-base": int(model.rope_base),
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": layout.global_batch,
        "train-iters": recipe.steps,
        "lr": experiment.optimizer.lr,
        "vocab-size": model.vocab_size,
        "make-vocab-size-divisible-by": 128,
        "tokenizer-type": "NullTokenizer",
        "position-embedding-type": "rope",
        "normalization": "RMSNorm",
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "cross-entropy-fusion-impl": "native",
        "log-interval": 1,
        "eval-iters": 0,
        "eval-interval": 1_000_000,
        "transformer-impl": "transformer_engine",
    }
    flags = [
        "group-query-attention",
        "swiglu",
        "disable-bias-linear",
        "bf16",
        "use-distributed-optimizer",
        "cross-entropy-loss-fusion",
        "no-create-attention-mask-in-dataloader",
        "no-check-for-nan-in-loss-and-grad",
    ]
    if not model.tied_embeddings:
        flags.append("untie-embeddings-and-output-weights")
    low = experiment.precision.low_precision
    if low is not None:
        options |= {"fp8-format": "hybrid", "fp8-recipe": _FP8_RECIPES[low]}
        if low is LowPrecision.fp8_delayed:
            options |= {"fp8-amax-history-len": 1024, "fp8-amax-compute-algo": "max"}
    spelled = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return spelled + [f"--{name}" for name in flags]


def run(experiment: Experiment, plan: Plan) -> dict[str, Any]:
    """Trains the row in this process; seconds of each iteration and peak memory, GiB."""
    from megatron.core.enums import ModelType
    from megatron.training import pretrain
    from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args

    began = time.perf_counter()
    sys.argv = ["reference", *arguments(experiment, plan)]
    parsed = parse_and_validate_args(args_defaults={"tokenizer_type": "NullTokenizer"})
    config = pretrain_cfg_container_from_args(parsed, gpt_config_from_args(parsed))
    with _captured() as output:
        pretrain(config, partial(_datasets, experiment), ModelType.encoder_or_decoder, _forward_step)
    return {
        "step_s": [float(found) / 1e3 for found in _ITERATION.findall(output.getvalue())],
        "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "total_s": time.perf_counter() - began,
    }


def _datasets(experiment: Experiment, numbers: list[int]) -> tuple[Dataset[Any], None, None]:
    length, vocabulary = experiment.recipe.sequence_length, experiment.model.vocab_size
    return RandomTokens(numbers[0], length, vocabulary), None, None


def _forward_step(batches: Iterator[dict[str, torch.Tensor]], model: Any) -> tuple[torch.Tensor, Any]:
    batch = {name: value.cuda(non_blocking=True) for name, value in next(batches).items()}
    return model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"]), _mean_loss


def _mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    total = losses.float().sum()
    count = torch.tensor(losses.numel(), dtype=torch.int, device=losses.device)
    return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    """Everything printed goes to standard error as well as into the result."""
    kept = io.StringIO()

    class Both(io.TextIOBase):
        def write(self, text: str) -> int:
            sys.stderr.write(text)
            return kept.write(text)

        def flush(self) -> None:
            sys.stderr.flush()

    with contextlib.redirect_stdout(Both()):
        yield kept


def main(run_dir: str) -> None:
    """Trains the row that a run directory describes and prints the result."""
    from pathlib import Path

    from pipeline.rundir import RunDir

    described = RunDir(Path(run_dir))
    print(json.dumps(run(described.read_experiment(), described.read_plan())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
