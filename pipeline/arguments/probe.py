"""The verb that looks at nodes: probe."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.arguments.verbs import Verbs, add_verb

ON_A_CLUSTER = """nodes of a cluster are probed in a job of theirs, asked for as runs are, and compared with each other
  himori probe cluster=slurm nodelist=n[1-4,7]
  himori probe cluster=slurm nodes=2 hardware=dgx_h200 cluster.partition=gpu -o FOLDER"""


def add(verbs: Verbs) -> None:
    probe = add_verb(
        verbs,
        "probe",
        ("pipeline.commands.probe", "probe"),
        "show this node and where ranks would be put, or compare nodes of a cluster",
        formatter=argparse.RawDescriptionHelpFormatter,
        epilog=ON_A_CLUSTER,
    )
    probe.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="look at nodes of a cluster instead")
    probe.add_argument(
        "--ranks", type=int, metavar="N", help="ranks on the node (default: one a GPU, else one a NUMA node)"
    )
    probe.add_argument(
        "--policy", default="strict", choices=("strict", "spread", "equalize", "none"), help="how cores are given out"
    )
    probe.add_argument(
        "--read",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="instead of this node: a recording, hwloc or NCCL XML, or nvidia-smi topo -m, lscpu and numactl -H text, "
        "in one file or several; - is standard input",
    )
    probe.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="also save a recording, without names or addresses",
    )
    probe.add_argument(
        "--draw",
        nargs="?",
        const=Path("-"),
        type=Path,
        metavar="FILE.svg|.png",
        help="draw the node and who sits where; without a file, or with -, in the terminal",
    )
    probe.add_argument(
        "--theme", default="light", choices=("light", "dark"), help="background of the picture (default: %(default)s)"
    )
    probe.add_argument("--json", action="store_true", help="for machines")
