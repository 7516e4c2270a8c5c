"""The verb that hands a trained model on: export."""

from __future__ import annotations

from pathlib import Path

from pipeline.arguments.verbs import Verbs, add_run_root, add_verb


def add(verbs: Verbs) -> None:
    export = add_verb(
        verbs,
        "export",
        ("pipeline.commands.export", "export"),
        "write a checkpoint as a Hugging Face folder of safetensors, adapters merged; needs host memory for the model",
    )
    export.add_argument("run", metavar="RUN", help="run id, a unique part of it, its directory, or `last`")
    export.add_argument(
        "-o", "--output", required=True, type=Path, metavar="DIR", help="a folder that is not there yet"
    )
    export.add_argument("--step", type=int, metavar="N", help="of this step (default: the newest whole checkpoint)")
    add_run_root(export)
