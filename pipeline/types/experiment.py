"""The whole request."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.types.cluster import Cluster
from pipeline.types.hardware import HardwareProfile
from pipeline.types.model import ModelSpec
from pipeline.types.profile import Guard, Profile
from pipeline.types.recipe import DataSpec, LayoutRequest, OptimizerSpec, Precision, Recipe, Techniques, Tracking


@dataclass(kw_only=True, slots=True)
class Experiment:
    """The whole request: one option of each config group, and the keys that belong to none."""

    name: str
    hardware: HardwareProfile
    cluster: Cluster
    model: ModelSpec
    precision: Precision
    optimizer: OptimizerSpec
    recipe: Recipe
    data: DataSpec
    tracking: Tracking
    layout: LayoutRequest = field(default_factory=LayoutRequest)
    techniques: Techniques = field(default_factory=Techniques)
    profile: Profile = field(default_factory=Profile)
    guard: Guard = field(default_factory=Guard)
    nodes: int | None = None
    """Nodes; None: as many as `ranks` needs, else 1."""
    ranks: int | None = None
    """Ranks of the whole run; None: all that `nodes` hold."""
    rehearsal: bool = False
    """Every rank is put in its place, looks at itself and ends: nothing is trained, torch isn't needed."""
    seed: int = 1234
    calibration: str = "public"
    """Which measured runs the plan's speed rests on: a name that `himori calibrate` gave, a file, or public."""
    run_root: str = "runs"
    """Folder of run directories; on a cluster every node has to see it."""
