"""Sets up the buffers through which Transformer Engine overlaps tensor-parallel exchanges with matrix products."""

from __future__ import annotations

from pipeline.types import Experiment, Layout


def start_tp_overlap(experiment: Experiment, layout: Layout) -> None:
    """Has to be called by all ranks, once, after they are divided and before the model is built."""
    from transformer_engine.pytorch.module import base

    precision, recipe = experiment.precision, experiment.recipe
    quantized, plain = base.UserBufferQuantizationMode.FP8, base.UserBufferQuantizationMode.NONE
    modes = [plain] if precision.low_precision is None else [quantized]
    if precision.low_precision is not None and precision.first_layers + precision.last_layers:
        modes.append(plain)
    base.initialize_ub(
        shape=[recipe.sequence_length * layout.micro_batch // layout.cp, experiment.model.hidden_size],
        tp_size=layout.tp,
        quantization_modes=modes,
        bootstrap_backend="nccl",
    )
