"""Trains small models on real GPUs with Transformer Engine, as one rank: `gpu_runs.py RANK RANKS FOLDER`.

Each case is trained in this one process, one after the other; what they measured is written to FOLDER/RANK.json.
Needs PYTHONPATH to name the repository and tests/unit/training.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_cases import CASES, SEQUENCE, Case

from pipeline.planning.layout import derive_layout
from pipeline.training.backend import Backend
from pipeline.types import Experiment, Layout, Plan

GIB = 2**30


def main() -> None:
    """Trains all cases that take this many ranks."""
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    from pipeline.training.backend import gpu_backend

    torch.cuda.set_device(rank)
    results: dict[str, Any] = {}
    for number, (name, case) in enumerate(CASES.items()):
        if case.ranks != ranks:
            continue
        store = dist.FileStore(str(folder / f"store-{number}"), ranks)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
        start = time.perf_counter()
        try:
            results[name] = train(case, gpu_backend(rank, case.experiment()))
        except Exception:
            results[name] = {"error": traceback.format_exc()[-3000:]}
        finally:
            clean_up()
        print(f"rank {rank} {name}: {time.perf_counter() - start:.1f} s {summary(results[name])}", flush=True)
        Path(folder, f"{rank}.json").write_text(json.dumps(results))


def summary(result: dict[str, Any]) -> str:
    """One line for people."""
    if "error" in result:
        return str(result["error"])
    first, last = result["losses"][0], result["losses"][-1]
    return f"loss {first:.4f} -> {last:.4f}, peak {result['peak_gib']:.3f} GiB, attention {result['attention']}"


def train(case: Case, backend: Backend) -> dict[str, Any]:
    """Losses and norms of each step, the peak of memory, and what Transformer Engine says of itself."""
    from pipeline.training import attention_kernel, fp8_health, megatron

    experiment = case.experiment()
    plan = plan_of(experiment, case)
    megatron.initialize_ranks(plan.layout, backend, seed=experiment.seed, timeout_min=5)
    model = megatron.build_model(experiment, plan, backend)
    optimizer = megatron.build_optimizer(model, experiment)
    schedule = megatron.build_schedule(optimizer, experiment.optimizer, case.steps)
    losses, norms = [], []
    for step in range(case.steps):
        megatron.clear_gradients(model, optimizer)
        found = megatron.forward_backward(model, batches(experiment, plan.layout, step), plan.layout, SEQUENCE)
        norms.append(megatron.optimizer_step(optimizer))
        megatron.advance_schedule(schedule)
        totals = torch.stack([torch.zeros(2, dtype=torch.float64, device=backend.device), *found]).sum(0)
        dist.all_reduce(totals)
        losses.append(float(totals[0] / totals[1]))
        if step == 0:  # the optimizer's state is there from now on
            torch.cuda.reset_peak_memory_stats()
    health = fp8_health.read_health((part for chunk in model for part in chunk.modules()), backend.device)
    return {
        "losses": losses,
        "norms": norms,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "attention": attention_kernel.chosen_kernel(),
        "health": fp8_health.metrics(health) if health else None,
        "parameters": sum(parameter.numel() for chunk in model for parameter in chunk.parameters()),
        "types": sorted({type(parameter).__name__ for chunk in model for parameter in chunk.parameters()}),
    }


def plan_of(experiment: Experiment, case: Case) -> Plan:
    """The plan of this layout; what workers don't read is left at zero."""
    layout, _ = derive_layout(experiment)
    return Plan(
        experiment=case.model,
        layout=layout,
        gpus_per_node=case.ranks,
        cpus_per_rank=None,
        parameters=0,
        padded_vocab_size=experiment.model.vocab_size,
        tokens_per_step=0,
        total_tokens=0,
        reasons=(),
    )


def batches(experiment: Experiment, layout: Layout, step: int) -> Iterator[Any]:
    """This rank's micro-batches, as the comparison of layouts on CPUs makes them."""
    from dataclasses import fields, replace

    from layout_runs import step_batches
    from megatron.core import parallel_state

    from pipeline.training import megatron

    position = megatron.Position(
        dp_rank=parallel_state.get_data_parallel_rank(), cp_rank=parallel_state.get_context_parallel_rank()
    )
    for batch in step_batches(experiment, layout, position, step):
        tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
        yield replace(batch, **{name: value.cuda() for name, value in tensors.items() if value is not None})


def clean_up() -> None:
    """Forgets the groups and frees the memory of a case."""
    from megatron.core import parallel_state
    from megatron.core.num_microbatches_calculator import destroy_num_microbatches_calculator

    parallel_state.destroy_model_parallel()
    destroy_num_microbatches_calculator()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
