"""What `transformers` says: `python hf_reference.py make|ask FOLDER`, in a process without any of our replacements.

make: writes each family's model with random weights to FOLDER/NAME, and its logits to FOLDER/NAME.pt.
ask: reads FOLDER/NAME-back and writes its logits to FOLDER/NAME-back.pt.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from hf_models import SPECS, TOKENS

from pipeline.training.huggingface import config_of


def main() -> None:
    """Runs one of the two for all families."""
    warnings.simplefilter("ignore")
    what, folder = sys.argv[1], Path(sys.argv[2])
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, spec in SPECS.items():
        if what == "make":
            torch.manual_seed(7)
            options = config_of(spec)
            kind = options.pop("model_type")
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).float()
            for parameter in model.parameters():  # norms too: ones would hide a mistake
                torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.2)
            model.save_pretrained(folder / name)
        else:
            name = f"{name}-back"
            model = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
        with torch.no_grad():
            torch.save(model(torch.tensor(TOKENS)).logits, folder / f"{name}.pt")


if __name__ == "__main__":
    main()
