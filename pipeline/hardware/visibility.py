"""Which GPUs of a node are this job's, by the variables of Slurm and CUDA in all their forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.hardware.topology import Gpu, TopologyError, device_order, parse_ids

_NO_DEVICES = ("", "-1", "NoDevFiles")


def visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str], *, ranks: int = 0) -> tuple[str, ...] | None:
    """Bus ids of the job's GPUs in bus order; None: these variables don't tell.

    Slurm's list comes first: it numbers the GPUs of the node and has all of them, while CUDA_VISIBLE_DEVICES may
    only have this task's. CUDA numbers the GPUs that the driver shows to the process. Without either all that it
    shows are the job's; where that are fewer than its `ranks` here and the node has more, the others may just be hidden
    from this task: not known. Raises TopologyError when a variable names a GPU that isn't here.
    """
    in_order = sorted(gpus, key=lambda gpu: device_order(gpu.bdf))
    reachable = [gpu for gpu in in_order if gpu.is_reachable is not False]
    found = _allocated(in_order, environment)
    if not found:
        found = _visible(reachable, environment)
        if found and len(found) < ranks and len(reachable) < len(in_order):
            return None
    return None if found is None else tuple(gpu.bdf for gpu in in_order if gpu in found)


def _allocated(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu] | None:
    """By Slurm, of the step rather than of the job; none outside of Slurm or without GPUs asked for."""
    name = next((name for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS") if environment.get(name)), None)
    if name is None:
        return []
    numbers = _parse(name, environment[name])
    by_number = (
        {gpu.minor: gpu for gpu in gpus} if all(gpu.minor is not None for gpu in gpus) else dict(enumerate(gpus))
    )
    if missing := set(numbers) - set(by_number):
        raise TopologyError(f"{name}={environment[name]}: GPU {min(missing)} isn't here, the node has {len(gpus)}")
    return [by_number[number] for number in numbers]


def _parse(name: str, value: str) -> tuple[int, ...]:
    try:
        return parse_ids(value)
    except TopologyError as error:
        raise TopologyError(f"{name}: {error}") from error


def _visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu] | None:
    """As CUDA reads its list: up to the first entry that is no device."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return list(gpus)
    names = [name.strip() for name in value.split(",")]
    stop = next((i for i, name in enumerate(names) if name in _NO_DEVICES), len(names))
    found = [_by_name(name, gpus, environment) for name in names[:stop]]
    return None if None in found else [gpu for gpu in found if gpu is not None]


def _by_name(name: str, gpus: Sequence[Gpu], environment: Mapping[str, str]) -> Gpu | None:
    if name.startswith("MIG-"):
        return _by_mig_name(name, gpus)
    if not name.isdigit():
        return _by_uuid(name, gpus)
    in_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    if not in_bus_order:
        return None
    if int(name) >= len(gpus):
        raise TopologyError(f"CUDA_VISIBLE_DEVICES: there is no GPU {name}, {len(gpus)} can be reached here")
    return gpus[int(name)]


def _by_uuid(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """A GPU by the beginning of its UUID."""
    if not name.startswith("GPU-") or any(gpu.uuid is None for gpu in gpus):
        return None
    return _only(name, [gpu for gpu in gpus if (gpu.uuid or "").startswith(name)])


def _by_mig_name(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU of a MIG device: by the device's own UUID, which only NVML knows, or as drivers before 470 named them."""
    if name.startswith("MIG-GPU-"):
        return _by_uuid(name.removeprefix("MIG-").partition("/")[0], gpus)
    if not any(gpu.mig for gpu in gpus):
        return None
    return _only(name, [gpu for gpu in gpus for one in gpu.mig if (one.uuid or "").startswith(name)])


def _only(name: str, found: Sequence[Gpu]) -> Gpu:
    if len(found) != 1:
        raise TopologyError(f"CUDA_VISIBLE_DEVICES: {name} is {len(found)} of the devices here, must be one")
    return found[0]
