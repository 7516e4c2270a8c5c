"""What hardware alone can explain: the largest ratio that the data sheets of two GPUs allow (pure arithmetic)."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.types import GpuSpec

SLACK = 1.15
"""How far software may use one GPU better than the other before somebody has to explain it."""
_RATE_OF_PRECISION = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Largest throughput ratio, B over A, that peak rate and memory bandwidth explain."""

    peak_ratio: float | None
    rate: str
    """Rate class the peaks are of."""
    memory_ratio: float | None
    power_ratio: float | None

    @property
    def limit(self) -> float:
        """The larger of both, with some slack."""
        return SLACK * max(one for one in (self.peak_ratio, self.memory_ratio) if one is not None)

    def __str__(self) -> str:
        parts = [
            f"{self.rate} peak {self.peak_ratio:.2f}x" if self.peak_ratio else "",
            f"memory bandwidth {self.memory_ratio:.2f}x" if self.memory_ratio else "",
            f"board power {self.power_ratio:.2f}x" if self.power_ratio else "",
        ]
        return ", ".join(part for part in parts if part)


def hardware_bound(a: GpuSpec | None, b: GpuSpec | None, precision_a: str, precision_b: str) -> Bound | None:
    """The bound for two GPUs computing in these precisions; None where the specifications don't say."""
    if a is None or b is None:
        return None
    rate_a, rate_b = (_RATE_OF_PRECISION.get(one, one) for one in (precision_a, precision_b))
    peak_a, peak_b = a.peak_tflops.get(rate_a), b.peak_tflops.get(rate_b)
    peak = peak_b / peak_a if peak_a and peak_b else None
    memory = b.hbm_tb_per_s / a.hbm_tb_per_s if a.hbm_tb_per_s and b.hbm_tb_per_s else None
    if peak is None and memory is None:
        return None
    power = b.power_watts / a.power_watts if a.power_watts and b.power_watts else None
    rate = rate_a if rate_a == rate_b else f"{rate_a} to {rate_b}"
    return Bound(peak_ratio=peak, rate=rate, memory_ratio=memory, power_ratio=power)
