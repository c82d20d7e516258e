"""What GPUs could do at best, by NVIDIA's data sheets: an estimate of a lower bound, never a measurement.

A program takes at least the time for its bytes at the memory's peak, for its arithmetic at that of its type, and for its
instructions at the rate at which they are issued. Launches take time too, which no data sheet has, and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsl.codegen.cuda.device import Target

__all__ = ["GPUS", "Gpu", "Work"]


@dataclass(frozen=True)
class Gpu:
    """Published peaks: bytes and operations a second; `lanes` of float32 in a multiprocessor, which has four schedulers."""

    name: str
    target: Target
    bandwidth: float
    float32: float
    float64: float
    lanes: int

    @property
    def instructions(self) -> float:
        """Instructions of warps a second: float32's peak is two operations of each lane in a clock."""
        return 4 * self.float32 / (2 * self.lanes)


# Data sheets of T4 (2018), A100 80 GB SXM (2021), H100 SXM (2023) and the Blackwell technical brief, HGX B200 (2024). That of
# T4 leaves float64 out; a multiprocessor of sm_75 has 2 lanes of it for 64 of float32 (CUDA C++ Programming Guide).
GPUS = (
    Gpu("T4", Target(75, 63), 320e9, 8.1e12, 8.1e12 / 32, 64),
    Gpu("A100", Target(80, 70), 2039e9, 19.5e12, 9.7e12, 64),
    Gpu("H100", Target(90, 78), 3350e9, 67e12, 34e12, 128),
    Gpu("B200", Target(100, 86), 8000e9, 80e12, 40e12, 128),
)


@dataclass(frozen=True)
class Work:
    """What a program does in one call: the least bytes, those of memory, arithmetic by type, instructions of warps."""

    least: float = 0.0
    nbytes: float = 0.0
    float32: float = 0.0
    float64: float = 0.0
    instructions: float = 0.0

    @property
    def intensity(self) -> float:
        """Arithmetic for each of the least bytes."""
        return (self.float32 + self.float64) / self.least if self.least else 0.0

    def seconds(self, gpu: Gpu) -> float:
        """Return the time that a GPU takes at least.

        >>> Work(nbytes=2039e6).seconds(GPUS[1])
        0.001
        """
        return max(
            self.nbytes / gpu.bandwidth,
            self.float32 / gpu.float32,
            self.float64 / gpu.float64,
            self.instructions / gpu.instructions,
        )

    def bound(self, gpu: Gpu) -> str:
        """Return what it waits for: memory, arithmetic or instructions."""
        times = {
            "memory": self.nbytes / gpu.bandwidth,
            "arithmetic": max(self.float32 / gpu.float32, self.float64 / gpu.float64),
            "instructions": self.instructions / gpu.instructions,
        }
        return max(times, key=times.__getitem__)
