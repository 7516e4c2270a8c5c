"""Container images: what srun or the worker's command line needs so that ranks run inside one (pure).

Installing himori into an image never changes what the vendor put there: it comes with the code snapshot, and what it
needs beyond is installed with `--no-deps` or under the image's own constraints (docs/operators.md, Containerfile).
"""

from __future__ import annotations

import re

from pipeline.errors import UserError
from pipeline.planning.data_paths import input_paths
from pipeline.types import Cluster, Container, ContainerRuntime, Experiment, LauncherKind


def refuse_container(cluster: Cluster) -> None:
    """Raises UserError for an image that would be taken for another one, or that this launcher can't start."""
    container = cluster.container
    if container.runtime is ContainerRuntime.none:
        if container.image:
            raise UserError("cluster.container.image: has no effect without cluster.container.runtime=pyxis|apptainer")
        return
    if not container.image:
        raise UserError("cluster.container.image: names no image; give a file or what the runtime pulls from")
    if container.runtime is ContainerRuntime.pyxis and cluster.launcher is not LauncherKind.slurm:
        raise UserError("cluster.container.runtime: pyxis is a plugin of Slurm; this cluster is local, use apptainer")
    # Pyxis takes a relative path for the name of an image in a registry.
    if re.search(r"\.(sqsh|sif|img)$", container.image) and not container.image.startswith("/"):
        raise UserError(
            f"cluster.container.image: {container.image} is relative, and nodes start elsewhere; begin it with /"
        )
    for text in (container.image, *container.mounts):
        if re.search(r"[\n\r\0,]", text):
            raise UserError(f"cluster.container: {text!r} holds a comma or a line end, which separate mounts")


def srun_options(experiment: Experiment, *, run_dir: str) -> tuple[str, ...]:
    """What srun is told of the image: Pyxis starts whole tasks inside it."""
    container = experiment.cluster.container
    if container.runtime is not ContainerRuntime.pyxis:
        return ()
    return (
        f"--container-image={container.image}",
        f"--container-mounts={','.join(_mounts(experiment, container, run_dir))}",
        # The entrypoint of an image may print, check licences or change the environment.
        "--no-container-entrypoint",
        "--no-container-mount-home",
    )


def worker_python(experiment: Experiment, *, run_dir: str, own: str) -> tuple[str, ...]:
    """The command that is a worker's interpreter: `own`, or one in an image that its supervisor starts."""
    container = experiment.cluster.container
    if container.runtime is not ContainerRuntime.apptainer:
        return (own,)
    binds = [option for mount in _mounts(experiment, container, run_dir) for option in ("--bind", mount)]
    gpus = ("--nv",) if experiment.hardware.gpus_per_node else ()
    return ("apptainer", "exec", "--no-home", *gpus, *binds, str(container.image), container.python)


def _mounts(experiment: Experiment, container: Container, run_dir: str) -> list[str]:
    """Run root and data under their own names, then what the site adds."""
    own = [run_dir.rstrip("/").rsplit("/", 1)[0]]
    for read in input_paths(experiment):
        # Beside an index lie the tokens it is of.
        own.append(read.path.rsplit("/", 1)[0] if read.path.endswith(".idx") else read.path)
    return [mount if ":" in mount else f"{mount}:{mount}" for mount in [*own, *container.mounts]]
