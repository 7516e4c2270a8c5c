"""Trains layouts over real ranks, each request in processes forked from one that has everything imported.

A program of its own: `python layout_runs.py`. It reads requests as lines of JSON, {"run": RUN_DIR, "steps": N,
"fault": NAME or null}, and answers each with one, {"losses": [...], "norms": [...], "errors": "..."}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CASE_TIMEOUT_S = 120


def main() -> None:
    """Imports once, then answers until the input ends."""
    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    import pipeline.training.megatron  # noqa: F401 - here once, not in each rank

    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), backend)), flush=True)


def answer(request: dict[str, Any], backend: Any) -> dict[str, Any]:
    """What rank 0 measured, or what any rank said of its failure."""
    from pipeline.rundir import RunDir

    plan = RunDir(Path(request["run"])).read_plan()
    with TemporaryDirectory() as folder:
        children = [fork(request, rank, Path(folder), backend) for rank in range(plan.layout.ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        errors = [file.read_text() for file in sorted(Path(folder).glob("error-*"))]
        if any(codes):
            return {"losses": [], "norms": [], "errors": "\n".join(errors) or f"exit codes {codes}"}
        measured: dict[str, Any] = json.loads(Path(folder, "result").read_text())
        return {**measured, "errors": ""}


def fork(request: dict[str, Any], rank: int, folder: Path, backend: Any) -> int:
    """Starts one rank; the child never comes back from here."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(CASE_TIMEOUT_S)
        FAULTS[request.get("fault")]()
        result = train(request, rank, folder, backend)
        if rank == 0:
            Path(folder, "result").write_text(json.dumps(result))
    except BaseException:
        Path(folder, f"error-{rank}").write_text(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
    os._exit(0)


def train(request: dict[str, Any], rank: int, folder: Path, backend: Any) -> dict[str, Any]:
    """Loss and gradient norm of each step, equal on all ranks."""
    import datetime

    import torch
    import torch.distributed as dist

    from pipeline.rundir import RunDir
    from pipeline.training import megatron

    torch.set_num_threads(1)
    run = RunDir(Path(request["run"]))
    experiment, plan = run.read_experiment(), run.read_plan()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), plan.layout.ranks),
        rank=rank,
        world_size=plan.layout.ranks,
        timeout=datetime.timedelta(seconds=CASE_TIMEOUT_S),
    )
    position = megatron.initialize_ranks(plan.layout, backend, seed=experiment.seed, timeout_min=2)
    model = megatron.build_model(experiment, plan, backend)
    optimizer = megatron.build_optimizer(model, experiment)
    schedule = megatron.build_schedule(optimizer, experiment.optimizer, request["steps"])
    losses, norms = [], []
    for step in range(request["steps"]):
        megatron.clear_gradients(model, optimizer)
        batches = step_batches(experiment, plan.layout, position, step)
        found = megatron.forward_backward(model, batches, plan.layout, experiment.recipe.sequence_length)
        norms.append(megatron.optimizer_step(optimizer))
        megatron.advance_schedule(schedule)
        totals = torch.stack([torch.zeros(2, dtype=torch.float64), *found]).sum(0)
        dist.all_reduce(totals)
        losses.append(float(totals[0] / totals[1]))
    return {"losses": losses, "norms": norms}


def step_batches(experiment: Any, layout: Any, position: Any, step: int) -> Iterator[Any]:
    """A rank's micro-batches: arithmetic progressions, so that there is something to learn."""
    import numpy as np
    import torch

    from pipeline.training.data import Batch

    length, vocabulary = experiment.recipe.sequence_length, experiment.model.vocab_size
    for micro in range(layout.num_microbatches):
        first = step * layout.global_batch + (micro * layout.dp + position.dp_rank) * layout.micro_batch
        rows = []
        for sample in range(first, first + layout.micro_batch):
            start, stride = np.random.RandomState([experiment.seed, sample]).randint([vocabulary, 7])
            rows.append((start + (stride + 1) * np.arange(length + 1)) % vocabulary)
        text = np.stack(rows)
        whole = [text[:, :-1], text[:, 1:], np.tile(np.arange(length), (len(rows), 1))]
        tokens, labels, positions = (torch.from_numpy(local(part, layout.cp, position.cp_rank)) for part in whole)
        yield Batch(tokens=tokens, labels=labels, positions=positions)


def local(whole: Any, cp: int, rank: int) -> Any:
    """Chunks r and 2n-1-r of the sequence's 2n."""
    import numpy as np

    chunks = np.split(whole, 2 * cp, axis=1)
    return np.ascontiguousarray(np.concatenate([chunks[rank], chunks[2 * cp - 1 - rank]], axis=1)) if cp > 1 else whole


# --------------------------------------------------------------------------- faults


def keep_partial_sums() -> None:
    """Tensor-parallel ranks no longer add up what each computed of a layer's output."""
    from megatron.core.tensor_parallel import mappings

    mappings._ReduceFromModelParallelRegion.forward = staticmethod(lambda _context, part, _group: part)


def keep_own_gradients() -> None:
    """Data-parallel ranks no longer add up their gradients."""
    from megatron.core.distributed import param_and_grad_buffer

    param_and_grad_buffer._ParamAndGradBucketGroup.start_grad_sync = lambda *_, **__: None
    param_and_grad_buffer._ParamAndGradBucketGroup.finish_grad_sync = lambda *_, **__: None


def take_first_positions() -> None:
    """Each context-parallel rank turns its tokens as if they stood at the start of the sequence."""
    from megatron.core.models.common.embeddings import rotary_pos_embedding

    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = lambda positions, dimension, group: positions.narrow(
        dimension, 0, positions.size(dimension) // group.size()
    )


FAULTS: dict[str | None, Callable[[], None]] = {
    None: lambda: None,
    "keep_partial_sums": keep_partial_sums,
    "keep_own_gradients": keep_own_gradients,
    "take_first_positions": take_first_positions,
}


if __name__ == "__main__":
    main()
