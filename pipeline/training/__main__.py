"""The program of one rank: `python -P -m pipeline.training RUN_DIR`.

Kept free of heavy imports: processes that Megatron-Core spawns import the main module again.
"""

import os
import sys

if __name__ == "__main__":
    from pipeline.training.worker import main

    main(sys.argv[1:], os.environ)
