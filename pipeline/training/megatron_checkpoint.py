"""Megatron-Core's distributed checkpoints: what a rank saves and how it takes it back (0.16 to 0.19).

Read by the same contract test as `megatron.py`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer
from megatron.core.tensor_parallel import get_cuda_rng_tracker

Tree = dict[str, Any]


def sharded_state(model: Any, optimizer: MegatronOptimizer, *, loading: bool, with_rng: bool) -> Tree:
    """All of a rank's state as Megatron stores it: parameters and optimizer by global shape, RNG by rank.

    `model` is a DistributedDataParallel or a list of them, one a chunk. `with_rng` only fits ranks of one layout.
    """
    metadata, chunks = _metadata(), _chunks(model)
    models = {f"model{number}": chunk.module.sharded_state_dict(metadata=metadata) for number, chunk in chunks}
    if loading:
        _fill_torch_states(optimizer)
    model_state = models if len(models) > 1 else models["model0"]
    state = {
        **models,
        "optimizer": optimizer.sharded_state_dict(model_state, is_loading=loading, metadata=metadata),
    }
    if with_rng:
        place = (dist.get_world_size(),), (dist.get_rank(),)
        state["rng"] = ShardedObject("rng", rng_state(), *place, replica_id=0)
    return state


def can_be_saved(model: Any) -> bool:
    """Whether the model is kept in a way that Megatron-Core stores by global shape; Megatron-FSDP's isn't."""
    return not any(chunk.ddp_config.use_megatron_fsdp for _, chunk in _chunks(model))


def _metadata() -> Tree:
    return {
        # The only format of 0.16 to 0.19 that lets optimizer state move to any tp, pp and dp.
        "distrib_optim_sharding_type": "fully_reshardable",
        "singleton_local_shards": False,
        # Without it, optimizer state of experts can't change its parallel size.
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }


def load_model(model: Any, folder: Path) -> None:
    """Reads the weights of a checkpoint, whatever layout wrote it, into a model that this rank holds whole."""
    state = {"model0": model.sharded_state_dict(metadata=_metadata())}
    model.load_state_dict(load(state, folder)["model0"])


def save(state: Tree, folder: Path) -> None:
    """Writes a checkpoint; all ranks have to call it."""
    dist_checkpointing.save(state, str(folder))


class BackgroundSave:
    """A save whose files are written by a forked process while training goes on; all ranks act together."""

    def __init__(self) -> None:
        self._queue = AsyncCallsQueue(persistent=False)

    def start(self, state: Tree, folder: Path) -> None:
        """Copies the state to host memory and starts to write it."""
        request = dist_checkpointing.save(state, str(folder), async_sharded_save=True, **_own_writer())
        self._queue.schedule_async_request(request)

    def is_done(self, *, wait: bool) -> bool:
        """Whether the files of all ranks are written; True exactly once."""
        return bool(self._queue.maybe_finalize_async_calls(blocking=wait))


def _own_writer() -> dict[str, str]:
    """Megatron's own writer: from 0.18 on another package's is its default, which need not be installed."""
    known = inspect.signature(dist_checkpointing.save).parameters
    return {"async_strategy": "mcore"} if "async_strategy" in known else {}


def load(state: Tree, folder: Path) -> Tree:
    """Reads a checkpoint into the shape that `sharded_state` gave; all ranks have to call it."""
    loaded: Tree = dist_checkpointing.load(state, str(folder))
    return loaded


def restore(model: Any, optimizer: MegatronOptimizer, loaded: Tree) -> None:
    """Puts what `load` read into the model, the optimizer and, where it was asked for, the random generators."""
    for number, chunk in _chunks(model):
        chunk.module.load_state_dict(loaded[f"model{number}"])
    # Megatron copies into shards that are views of leaves when parameters are fp32.
    with torch.no_grad(), _TorchSteps(optimizer):
        optimizer.load_state_dict(loaded["optimizer"])
    if "rng" in loaded:
        set_rng_state(loaded["rng"])


def rng_state() -> Tree:
    """States of all random generators that training may draw from."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state: Tree = {
        "torch": torch.get_rng_state(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "python": random.getstate(),
        "tracker": get_cuda_rng_tracker().get_states(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Tree) -> None:
    """The inverse of `rng_state`."""
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def state_bytes(model: Any, optimizer: MegatronOptimizer) -> int:
    """About how much this rank's part of a checkpoint takes, were nothing replicated, bytes.

    Parameters as they are, and of each that the optimizer has here a master copy and two moments, 12 bytes.
    """
    weights: int = sum(p.numel() * p.element_size() for _, chunk in _chunks(model) for p in chunk.parameters())
    owned: int = sum(p.numel() for inner in _inner(optimizer) for group in inner.param_groups for p in group["params"])
    return weights + 12 * owned


def _chunks(model: Any) -> list[tuple[int, Any]]:
    return list(enumerate(model if isinstance(model, list) else [model]))


# --------------------------------------------------------------------------- torch's Adam under Megatron


def _parts(optimizer: MegatronOptimizer) -> list[Any]:
    if not isinstance(optimizer, ChainedOptimizer):
        return [optimizer]
    chained: ChainedOptimizer = optimizer
    return list(chained.chained_optimizers)


def _inner(optimizer: MegatronOptimizer) -> Iterator[torch.optim.Optimizer]:
    for part in _parts(optimizer):
        if part.optimizer is not None:
            yield part.optimizer


def _is_torch_adam(part: Any) -> bool:
    """Fused optimizers keep one step a group; torch's keep one a parameter, which Megatron's loading gets wrong."""
    return isinstance(part.optimizer, torch.optim.Adam | torch.optim.AdamW)


def _fill_torch_states(optimizer: MegatronOptimizer) -> None:
    """Megatron asks a distributed optimizer for its step before it has made one."""
    for part in _parts(optimizer):
        if not _is_torch_adam(part):
            continue
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                if not part.optimizer.state[parameter]:
                    part.optimizer.state[parameter] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(parameter.data),
                        "exp_avg_sq": torch.zeros_like(parameter.data),
                    }


class _TorchSteps:
    """While it is entered, a distributed optimizer over torch's Adam can be loaded; after it, each parameter has a
    step of its own: Megatron hands all of them one tensor, which Adam would count up once a parameter."""

    def __init__(self, optimizer: MegatronOptimizer) -> None:
        self._parts = [part for part in _parts(optimizer) if _is_torch_adam(part)]

    def __enter__(self) -> None:
        for part in self._parts:
            if hasattr(part, "_set_main_param_and_optimizer_states"):
                part._set_main_param_and_optimizer_states = _with_step(part)

    def __exit__(self, *_: object) -> None:
        for part in self._parts:
            vars(part).pop("_set_main_param_and_optimizer_states", None)
            for state in part.optimizer.state.values():
                if torch.is_tensor(state.get("step")):
                    state["step"] = state["step"].clone()


def _with_step(part: Any) -> Callable[[Any, Tree], None]:
    """Megatron's setter wants a step for each parameter, which its own format doesn't hold."""
    setter = part._set_main_param_and_optimizer_states

    def set_states(model_param: Any, tensors: Tree) -> None:
        group, order = part.model_param_group_index_map[model_param]
        state = part.optimizer.state[part.optimizer.param_groups[group]["params"][order]]
        setter(model_param, {**tensors, "step": state["step"]} if "step" in state else tensors)

    return set_states
