"""Loads each family's folder into Megatron-Core, compares logits, and writes it back: `python hf_probe.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import build_probe
from hf_models import SPECS, TOKENS
from training_workers import plan_for, tiny_experiment


def main() -> None:
    """Prints by family the largest difference of a logit, and the names of tensors that didn't come back equal."""
    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    import torch

    from pipeline.training import megatron
    from pipeline.training.huggingface import config_of, to_hugging_face
    from pipeline.training.megatron.loading import whole_weights
    from pipeline.training.weights_folder import WeightsFolder, write_weights

    folder, found = Path(sys.argv[1]), {}
    for name, spec in SPECS.items():
        experiment = tiny_experiment()
        experiment.model, experiment.recipe.init_from = spec, str(folder / name)
        plan = plan_for(experiment)
        with build_probe.ranks(plan.layout, 1, backend):
            (chunk,) = megatron.build_model(experiment, plan, backend)
            gpt = chunk.module
            tokens = torch.tensor(TOKENS)
            gpt.eval()
            with torch.no_grad():
                logits = gpt(tokens, torch.arange(tokens.size(1)).expand_as(tokens), None)
            tensors = to_hugging_face(whole_weights(gpt), spec)
        write_weights(folder / f"{name}-back", tensors, config_of(spec))
        reference = torch.load(folder / f"{name}.pt")
        with WeightsFolder(folder / name) as original:
            differ = [one for one, tensor in tensors.items() if not torch.equal(tensor, original.read(one))]
            missing = sorted(set(original.names()) - set(tensors))
        found[name] = {
            "largest_difference": float((logits - reference).abs().max()),
            "largest_logit": float(reference.abs().max()),
            "differ": differ,
            "missing": missing,
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
