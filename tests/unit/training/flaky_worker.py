"""A worker on a machine that computes one loss wrong, once: its third step gives not a number the first time it is run.

`python flaky_worker.py RUN_DIR`, in place of `-m pipeline.training`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

WRONG_CALL = 9
"""Of the loss, counted from 1: a step has four micro-batches."""

if __name__ == "__main__":
    from pipeline.training import cpu_backend
    from pipeline.training.worker import main

    install, calls = cpu_backend.install, 0

    def faulty_install() -> Any:
        backend = install()
        # Only now can Megatron-Core be imported.
        from pipeline.training.megatron import step

        sound = step._sum_of_losses

        def faulty(*arguments: Any) -> Any:
            global calls
            calls += 1
            total, count, told = sound(*arguments)
            wrong = torch.nan if calls == WRONG_CALL else 1.0
            return total * wrong, count, told * wrong

        step._sum_of_losses = faulty
        return backend

    cpu_backend.install = faulty_install
    main(sys.argv[1:], os.environ)
