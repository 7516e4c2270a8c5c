"""The loss of an exported model on the held-out samples of a run: `python exported_loss.py FOLDER PREFIX`."""

from __future__ import annotations

import json
import sys
import warnings

import torch

from pipeline.datasets.opening import Shape, open_data
from pipeline.datasets.order import shuffled
from pipeline.types import DataKind, DataSpec

SEED, LENGTH, SAMPLES = 1234, 16, 8


def main() -> None:
    """Prints the mean loss over the first global batch of held-out samples."""
    warnings.simplefilter("ignore")
    folder, prefix = sys.argv[1:]
    import numpy as np
    from transformers import AutoModelForCausalLM

    spec = DataSpec(name="indexed", kind=DataKind.indexed, path=prefix, validation_fraction=0.2)
    (held_out,) = open_data(spec, Shape(length=LENGTH, vocab_size=256, seed=SEED)).held_out
    chosen = shuffled(np.arange(SAMPLES), size=held_out.samples, seed=SEED)
    text = torch.from_numpy(np.stack([held_out.read(int(sample)).tokens for sample in chosen]))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(text[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    json.dump(float(loss), sys.stdout)


if __name__ == "__main__":
    main()
