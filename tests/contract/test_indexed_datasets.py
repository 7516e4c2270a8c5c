"""Our indexed datasets are Megatron's, both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import megatron_indexed
import numpy as np

from pipeline.datasets.indexed import check_indexed, open_indexed, write_indexed


def test_megatron_reads_ours_and_we_read_megatrons(tmp_path: Path) -> None:
    random = np.random.RandomState(5)
    documents = [random.randint(0, 60_000, size=random.randint(2, 50)).tolist() for _ in range(40)]
    write_indexed(str(tmp_path / "ours"), documents, np.uint16)
    program = Path(megatron_indexed.__file__)
    command = [sys.executable, str(program), str(tmp_path / "ours"), str(tmp_path / "theirs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == documents
    theirs = open_indexed(str(tmp_path / "theirs"))
    check_indexed(theirs)
    found = [theirs.document(number).tolist() for number in range(theirs.document_count)]
    assert found == documents[::-1]
    assert theirs.tokens.dtype == np.int32
