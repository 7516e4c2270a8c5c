"""What makes two points the same: the resolved configuration without what can't change a result, and the code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

VOLATILE = {
    "": ("run_root", "tracking", "calibration"),
    "cluster": (
        "description",
        "time_limit_min",
        "partition",
        "account",
        "qos",
        "reservation",
        "constraint",
        "nodelist",
        "exclude",
        "licenses",
        "mail_type",
        "mail_user",
        "nice",
        "segment",
        "gpu_dialect",
        "gpu_type",
        "exclusive",
        "array_parallelism",
        "sbatch",
        "rendezvous_timeout_s",
        "max_attempts",
        "checkpoint_grace_s",
        "hang_least_s",
        "price_per_gpu_hour",
        "price_currency",
        "price_basis",
    ),
    "hardware": ("description", "gpu_spec", "node_spec", "software", "software_sources"),
}
"""Keys by group that say where, when or at what price a run happens, not what it computes."""

DIGITS = 16


def point_digest(configuration: dict[str, Any], code_digest: str) -> str:
    """The name of a point: 16 hexadecimal digits of a SHA-256.

    `configuration` is an Experiment as plain data.
    """
    return _digest({"configuration": _kept(configuration), "code": code_digest})


def configuration_digest(configuration: dict[str, Any]) -> str:
    """What two runs share that compute the same, whatever they are called and whatever code they ran."""
    return _digest(_without(_kept(configuration), ("name",)))


def _kept(configuration: dict[str, Any]) -> dict[str, Any]:
    kept = _without(configuration, VOLATILE[""])
    for group, keys in VOLATILE.items():
        if isinstance(kept.get(group), dict):
            kept[group] = _without(kept[group], keys)
    return kept


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def sweep_digest(point_digests: list[str]) -> str:
    """The name of a set of points, whatever their order: 12 hexadecimal digits."""
    return hashlib.sha256("\n".join(sorted(set(point_digests))).encode()).hexdigest()[:12]


def _without(mapping: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}
