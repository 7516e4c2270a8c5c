"""The verb about hardware profiles: profile new, profile check."""

from __future__ import annotations

from pathlib import Path

from pipeline.arguments.verbs import Verbs, add_verb

_NODE = "a recording, or nvidia-smi topo -m, lscpu, numactl -H text of it; - is standard input (default: this node)"


def add(verbs: Verbs) -> None:
    profile = verbs.add_parser(
        "profile", help="write hardware profiles from nodes, compare nodes with them", description=_DESCRIPTION
    )
    kinds = profile.add_subparsers(title="verbs", metavar="VERB", required=True)
    module = "pipeline.commands.profile"
    new = add_verb(kinds, "new", (module, "new"), "write the profile of nodes like this one, for conf/hardware")
    new.add_argument("recording", nargs="*", type=Path, metavar="FILE", help=_NODE)
    new.add_argument("-o", "--output", type=Path, metavar="FILE", help="DIR/hardware/NAME.yaml (default: print it)")
    new.add_argument("--name", help="name of the profile (default: the file's)")
    check = add_verb(
        kinds,
        "check",
        (module, "check"),
        "compare a node with its profile; exits 0 (as expected), 4 (differs) or 8 (nothing to compare)",
    )
    check.add_argument("profile", metavar="PROFILE", help="as in hardware=PROFILE")
    check.add_argument("recording", nargs="*", type=Path, metavar="FILE", help=_NODE)
    check.add_argument("--json", action="store_true", help="for machines")
    for verb in (new, check):
        verb.add_argument("--conf-dir", type=Path, help="a further folder of config groups, searched first")


_DESCRIPTION = "A hardware profile says what nodes are expected to be; what they are comes from the nodes themselves."
