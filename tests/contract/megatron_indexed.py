"""Reads one indexed dataset with Megatron's own code and writes another: `python megatron_indexed.py READ WRITE`."""

from __future__ import annotations

import json
import sys

from pipeline.training import cpu_backend


def main() -> None:
    """Prints the documents read, as JSON; writes them again in reverse."""
    cpu_backend.install()
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    source, target = sys.argv[1:]
    data = IndexedDataset(source)
    documents = [
        [int(token) for sequence in range(begin, end) for token in data[sequence]]
        for begin, end in zip(data.document_indices, data.document_indices[1:], strict=False)
    ]
    builder = IndexedDatasetBuilder(f"{target}.bin", dtype=np.int32)
    for document in reversed(documents):
        # Two sequences a document, which our own files never have.
        half = len(document) // 2
        builder.add_document(torch.tensor(document, dtype=torch.int64), [half, len(document) - half])
    builder.finalize(f"{target}.idx")
    json.dump(documents, sys.stdout)


if __name__ == "__main__":
    main()
