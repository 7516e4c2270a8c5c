"""The worker with a fault: tensor-parallel ranks no longer add up what each computed of a layer's output.

A program in the worker's place: `python identity_all_reduce.py RUN_DIR`.
"""

import os
import sys
from typing import Any

import torch


def main() -> None:
    """Breaks the forward all-reduce of row-parallel layers on this rank and runs the worker."""
    # As on every CPU run: no compiler while Megatron-Core is imported.
    torch.compile = lambda function: function
    from megatron.core.tensor_parallel import mappings

    mappings._ReduceFromModelParallelRegion.forward = staticmethod(_keep)
    from pipeline.training.worker import main as work

    work(sys.argv[1:], os.environ)


def _keep(_context: Any, part: torch.Tensor, _group: Any) -> torch.Tensor:
    return part


if __name__ == "__main__":
    main()
