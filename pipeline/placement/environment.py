"""The environment a binding implies, and what of an inherited one has to go (rule R11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.hardware.topology import Ids, TopologyError, format_ids, parse_ids
from pipeline.placement.binding import Binding

ALLOWED_CPUS = "HIMORI_ALLOWED_CPUS"
"""Marks a bound process: the CPUs it was allowed before."""


COMPARED = ("CUDA_DEVICE_ORDER", "NCCL_IB_HCA", "NVSHMEM_HCA_LIST", "OMP_NUM_THREADS", "UCX_NET_DEVICES")
"""Variables of a binding that libraries act on: a worker reports what became of them."""


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One variable to set, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrub:
    """One inherited variable to remove, and why."""

    name: str
    reason: str


def binding_environment(binding: Binding) -> tuple[EnvVar, ...]:
    """What to set for the worker of this binding, in order of name.

    All GPUs of the job stay visible, so CUDA_VISIBLE_DEVICES is not among them; NIC choices that belong to a
    cloud's own plugin, GID indices and the like are left alone.
    """
    variables = (*_of_cores(binding), *_of_gpu(binding), *_of_nics(binding))
    return tuple(sorted(variables, key=lambda variable: variable.name))


def scrubbed_variables(names: Iterable[str]) -> tuple[Scrub, ...]:
    """Which of these inherited variables must not reach a worker, in order of name."""
    found = ((name, prefix) for name in sorted(set(names)) for prefix in _SCRUBBED if name.startswith(prefix))
    return tuple(Scrub(name=name, reason=_SCRUBBED[prefix]) for name, prefix in found)


def allowed_before_binding(environment: Mapping[str, str]) -> Ids | None:
    """CPUs this process was allowed before it was bound, so that binding it again doesn't halve its share.

    None: it isn't bound. Raises TopologyError when the marker is damaged.
    """
    if ALLOWED_CPUS not in environment:
        return None
    try:
        return parse_ids(environment[ALLOWED_CPUS])
    except TopologyError as error:
        raise TopologyError(f"{ALLOWED_CPUS}: {error}") from error


_SLURM_BINDS = "an outer srun's wish; a nested srun would obey it instead of the binding"
_NVSHMEM = "the same NICs without `=`; read only with NVSHMEM_ENABLE_NIC_PE_MAPPING=1, which would deal them by PE"
_OPENMP = "threads would pin themselves, on top of the binding"

_SCRUBBED: Mapping[str, str] = {
    "GOMP_CPU_AFFINITY": _OPENMP,
    "KMP_AFFINITY": _OPENMP,
    "KMP_HW_SUBSET": _OPENMP,
    "OMP_": "thread counts and places follow from the cores of the binding",
    "SLURM_CPU_BIND": _SLURM_BINDS,
    "SLURM_MEM_BIND": _SLURM_BINDS,
}
"""Beginnings of names."""


def _of_cores(binding: Binding) -> Iterable[EnvVar]:
    yield EnvVar(
        name=ALLOWED_CPUS,
        value=format_ids(binding.allowed),
        reason="marks the process as bound and keeps what it was allowed before",
    )
    yield EnvVar(name="OMP_NUM_THREADS", value=str(binding.cores), reason="one thread for each core of the rank")


def _of_gpu(binding: Binding) -> Iterable[EnvVar]:
    if binding.gpu is not None:
        yield EnvVar(name="CUDA_DEVICE_ORDER", value="PCI_BUS_ID", reason="ranks are given GPUs in order of bus id")


def _of_nics(binding: Binding) -> Iterable[EnvVar]:
    compute = binding.compute_nics
    if binding.gpu is None or not compute:
        return
    yield EnvVar(
        name="NCCL_IB_HCA",
        value="=" + ",".join(compute),
        reason="all compute NICs, the same on every rank; `=` because mlx5_1 would match mlx5_10 too",
    )
    yield EnvVar(name="NVSHMEM_HCA_LIST", value=_ports(compute), reason=_NVSHMEM)
    if binding.nics:
        yield EnvVar(name="UCX_NET_DEVICES", value=_ports(binding.nics), reason="the NICs nearest to this rank's GPU")
        yield EnvVar(name="HIMORI_NIC", value=binding.nics[0], reason="for people: the main NIC of this rank")


def _ports(names: Iterable[str]) -> str:
    return ",".join(f"{name}:1" for name in names)
