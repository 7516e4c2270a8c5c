"""The data types of the chain: what each stage takes and what it hands on (standard library only).

Config-born types are read from YAML and so are mutable; derived types are frozen. Units stand in field names.
"""

from pipeline.types.cluster import Cluster, CpuPolicy, GpuDialect, LauncherKind
from pipeline.types.experiment import Experiment
from pipeline.types.hardware import Confidence, Evidence, GpuSpec, HardwareProfile, NodeSpec
from pipeline.types.model import Activation, MlaSpec, ModelSpec, MoeSpec, Normalization
from pipeline.types.plan import (
    Cost,
    Fit,
    Interval,
    Layout,
    MemoryEstimate,
    Plan,
    Reason,
    StageMemory,
    StepTime,
    ThroughputEstimate,
)
from pipeline.types.profile import Guard, Profile, ProfileKind, SpikeAction
from pipeline.types.recipe import (
    CpComm,
    CrossEntropy,
    DataSpec,
    Decay,
    DType,
    LayoutRequest,
    LowPrecision,
    OptimizerSpec,
    Precision,
    Recipe,
    Recompute,
    RecomputeMethod,
    Sharding,
    Techniques,
    Tracking,
)
from pipeline.types.run import Cause, End, Handle, RankExit, RunState, Submission, WorkerCode

__all__ = [
    "Activation",
    "Cause",
    "Cluster",
    "Confidence",
    "Cost",
    "CpComm",
    "CpuPolicy",
    "CrossEntropy",
    "DType",
    "DataSpec",
    "Decay",
    "End",
    "Evidence",
    "Experiment",
    "Fit",
    "GpuDialect",
    "GpuSpec",
    "Guard",
    "Handle",
    "HardwareProfile",
    "Interval",
    "LauncherKind",
    "Layout",
    "LayoutRequest",
    "LowPrecision",
    "MemoryEstimate",
    "MlaSpec",
    "ModelSpec",
    "MoeSpec",
    "NodeSpec",
    "Normalization",
    "OptimizerSpec",
    "Plan",
    "Precision",
    "Profile",
    "ProfileKind",
    "RankExit",
    "Reason",
    "Recipe",
    "Recompute",
    "RecomputeMethod",
    "RunState",
    "Sharding",
    "SpikeAction",
    "StageMemory",
    "StepTime",
    "Submission",
    "Techniques",
    "ThroughputEstimate",
    "Tracking",
    "WorkerCode",
]
