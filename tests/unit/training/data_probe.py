"""As build_probe, for the keys that choose what is read: `python data_probe.py` in an empty folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import build_probe
import numpy as np
from training_workers import plan_for, tiny_experiment

from pipeline.datasets.indexed import write_indexed
from pipeline.types import DataKind, Experiment, LoraSpec

STEPS = 3

Changes = dict[str, object]

INDEXED: Changes = {"data.kind": DataKind.indexed, "data.path": "one"}
EVALUATED: Changes = {**INDEXED, "data.validation_path": "two", "recipe.eval_every": 2, "recipe.eval_batches": 1}
CHAT: Changes = {"data.kind": DataKind.chat, "data.path": "chat.jsonl", "data.tokenizer": "bytes"}

CASES: dict[str, tuple[Changes, Changes]] = {
    "data.kind": ({}, {"data.kind": DataKind.mock}),
    "data.blend": (INDEXED, {"data.path": None, "data.blend": {"one": 1.0, "two": 1.0}}),
    "data.stage_dir": (INDEXED, {"data.stage_dir": "local"}),
    "data.validation_fraction": (INDEXED, {"data.validation_fraction": 0.5}),
    "data.validation_path": (EVALUATED, {"data.validation_path": "one"}),
    "data.reset_positions": ({**INDEXED, "model.learned_positions": True}, {"data.reset_positions": True}),
    "data.reset_attention": (INDEXED, {"data.reset_attention": True}),
    "data.tokenizer": (CHAT, {"data.tokenizer": "reversed"}),
    "recipe.init_from": ({}, {"recipe.init_from": "weights"}),
    "recipe.lora": ({}, {"recipe.lora": LoraSpec(rank=4)}),
    "recipe.eval_every": (EVALUATED, {"recipe.eval_every": 1}),
    "recipe.eval_batches": (EVALUATED, {"recipe.eval_batches": 2}),
}
"""By key: what it shows its effect beside, and the change."""


def main() -> None:
    """Prints one JSON object: two fingerprints by key, without its change and with it."""
    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    write_files(Path.cwd())
    write_folder(Path("weights"), backend)
    prints = {
        key: [trained(experiment_of(*parts), backend) for parts in ([beside], [beside, change])]
        for key, (beside, change) in CASES.items()
    }
    json.dump(prints, sys.stdout)


def trained(experiment: Experiment, backend: Any) -> dict[str, object]:
    """Losses of a few steps of a single rank, and what a look at held-out data says."""
    from pipeline.datasets.opening import open_data
    from pipeline.training import loop, megatron
    from pipeline.training.data import samplers, shape_of

    plan, recipe = plan_for(experiment), experiment.recipe
    with build_probe.ranks(plan.layout, experiment.seed, backend):
        model = megatron.build_model(experiment, plan, backend)
        optimizer = megatron.build_optimizer(model, experiment)
        opened = open_data(experiment.data, shape_of(experiment))
        data = samplers(opened, experiment, plan.layout, dp_rank=0, cp_rank=0, device=backend.device)
        losses = []
        for step in range(1, recipe.steps + 1):
            megatron.clear_gradients(model, optimizer)
            losses += megatron.forward_backward(model, data.train.batches(step), plan.layout, recipe.sequence_length)
            megatron.optimizer_step(optimizer)
        looking = loop.Validation.of(data.validation, recipe)
        return {
            "staged": [copy.prefix for copy in opened.staged],
            "losses": [loss.tolist() for loss in losses],
            "validation": loop.validate(model, looking) if looking else None,
            "looks": [step for step in range(1, STEPS + 1) if looking and looking.is_due(step, last=STEPS)],
        }


def experiment_of(*changes: Changes) -> Experiment:
    """The tiny experiment with all these keys changed."""
    experiment = tiny_experiment(steps=STEPS)
    for key, value in (item for part in changes for item in part.items()):
        build_probe.changed(experiment, key, value)
    return experiment


def write_folder(folder: Path, backend: Any) -> None:
    """A Hugging Face folder of the tiny model as another seed draws it."""
    from pipeline.training import megatron
    from pipeline.training.huggingface import config_of, to_hugging_face
    from pipeline.training.megatron.loading import whole_weights
    from pipeline.training.weights_folder import write_weights

    experiment = experiment_of({"seed": 99})
    plan = plan_for(experiment)
    with build_probe.ranks(plan.layout, 1, backend):
        (chunk,) = megatron.build_model(experiment, plan, backend)
        tensors = to_hugging_face(whole_weights(chunk.module), experiment.model)
    write_weights(folder, tensors, config_of(experiment.model))


def write_files(folder: Path) -> None:
    """Two indexed datasets of short documents, conversations, and two tokenizers of one letter a token."""
    random = np.random.RandomState(1)
    for name in ("one", "two"):
        documents = [random.randint(0, 256, size=random.randint(1, 40)) for _ in range(200)]
        write_indexed(str(folder / name), documents, np.uint16)
    turns = [("user", "add one to {}"), ("assistant", "that is {}")]
    lines = [
        json.dumps({"messages": [{"role": role, "content": said.format(number)} for role, said in turns]})
        for number in range(60)
    ]
    (folder / "chat.jsonl").write_text("\n".join(lines))
    for name, letters in (("bytes", range(256)), ("reversed", reversed(range(256)))):
        write_letters(folder / name, list(letters))


def write_letters(folder: Path, letters: list[int]) -> None:
    """A tokenizer.json that turns each character below 256 into one token, numbered in this order."""
    from tokenizers import Tokenizer, models

    folder.mkdir(exist_ok=True)
    vocabulary = {chr(letter): number for number, letter in enumerate(letters)}
    Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main()
