"""Writes a checkpoint of any layout as a Hugging Face folder: `python -P -m pipeline.training.export RUN STEP DIR`.

The whole model is put together in the memory of this one process, on the CPU.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checkpoints import checkpoint_path, digest, read_manifest
from pipeline.errors import DataError, HimoriError
from pipeline.rundir import RunDir
from pipeline.training.worker import ignore_foreign_warnings
from pipeline.types import Experiment, Layout, Precision, Techniques

if TYPE_CHECKING:
    import torch

_BESIDE_WEIGHTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")

_ONE_RANK = Layout(
    nodes=1,
    ranks_per_node=1,
    tp=1,
    pp=1,
    cp=1,
    dp=1,
    sequence_parallel=False,
    micro_batch=1,
    global_batch=1,
    num_microbatches=1,
)


def export(run: RunDir, step: int, output: Path) -> None:
    """Reads the checkpoint of a step and writes it; the folder appears whole or not at all.

    Raises DataError when a file is damaged, or when no Hugging Face model has this shape.
    """
    from pipeline.training.huggingface import config_of, merge_adapters, to_hugging_face
    from pipeline.training.weights_folder import write_weights

    experiment = run.read_experiment()
    config = config_of(experiment.model)  # a shape that nobody else knows is refused before anything is read
    _require_whole(run, step)
    tensors = _read_model(experiment, run, step)
    if (lora := experiment.recipe.lora).rank:
        tensors = merge_adapters(tensors, scale=lora.alpha / lora.rank)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    kind = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    write_weights(temporary, to_hugging_face(tensors, experiment.model), {**config, "torch_dtype": kind})
    for folder in (experiment.recipe.init_from, experiment.data.tokenizer):
        _copy_beside(Path(folder) if folder else None, temporary)
    temporary.rename(output)
    size = sum(file.stat().st_size for file in output.iterdir())
    print(f"step {step} of {run.run_id} in {output}, {size / 1e9:.2f} GB")


def _read_model(experiment: Experiment, run: RunDir, step: int) -> dict[str, torch.Tensor]:
    import torch.distributed as dist
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    from pipeline.training import megatron, megatron_checkpoint
    from pipeline.training.megatron.loading import whole_weights
    from pipeline.training.megatron.model import build_whole

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    megatron.initialize_ranks(_ONE_RANK, backend, seed=experiment.seed, timeout_min=10)
    plan = replace(run.read_plan(), layout=_ONE_RANK)
    model = build_whole(_bare(experiment), plan, backend)
    megatron_checkpoint.load_model(model, checkpoint_path(run, step))
    return whole_weights(model)


def _bare(experiment: Experiment) -> Experiment:
    """The experiment without what only training it needs."""
    precision = experiment.precision
    return replace(
        experiment,
        precision=Precision(name=precision.name, dtype=precision.dtype),
        techniques=Techniques(),
        recipe=replace(experiment.recipe, init_from=None),
    )


def _require_whole(run: RunDir, step: int) -> None:
    folder = checkpoint_path(run, step)
    for file in read_manifest(run, step).files:
        if digest(folder / file.name) != file:
            raise DataError(f"{folder / file.name}: is damaged (its digest differs); export another --step")


def _copy_beside(source: Path | None, target: Path) -> None:
    for name in _BESIDE_WEIGHTS:
        if source is not None and (source / name).is_file() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)


def main() -> int:
    """Runs one export; the exit code."""
    run, step, output = sys.argv[1:]
    ignore_foreign_warnings()
    try:
        export(RunDir(Path(run)), int(step), Path(output))
    except HimoriError as error:
        print(f"himori: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
