"""What a benchmark case for a GPU is: a `Case`, with a size that the emulator can run and what the program must move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dsl.commands.bench.case import Case, Function, Way, as_way

__all__ = ["GpuCase", "on_gpu"]

BAR = 1.05


@dataclass(frozen=True, kw_only=True)
class GpuCase(Case):
    """One line of `python -m dsl bench cuda`.

    `size` is for a GPU, `small` for the emulator: rows are as long as at full size and there are fewer of them, so that the
    same kernels are made. CuPy runs the program as it stands, unless `cupy` is another. `needed` returns the bytes of the
    inputs that are read, where they are not all; a loop goes over its arrays in `passes`. What is moved should be at most
    `bar` times the least that can be.
    """

    small: tuple[int, ...]
    cupy: Way | Function | None = None
    needed: Callable[..., int] | None = None
    passes: int = 1
    bar: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ways["cupy"] = as_way(self.cupy or self.program, self, "cupy")

    def small_inputs(self) -> tuple[Any, ...]:
        """Return the arguments for the emulator."""
        return self.inputs(np.random.default_rng(1), *self.small)

    def input_bytes(self, inputs: tuple[Any, ...]) -> int:
        """Return how many bytes of the inputs the program cannot do without."""
        if self.needed is not None:
            return self.needed(*inputs)
        return sum(x.nbytes for x in inputs if isinstance(x, np.ndarray))


def on_gpu(case: Case, **changes: Any) -> GpuCase:
    """Return a case of the CPU's benchmark for a GPU, without its targets, which are those of a CPU."""
    known = {f.name: getattr(case, f.name) for f in fields(case) if f.init}
    return GpuCase(**(known | {"targets": (), "at_most": float("inf"), "short": True} | changes))
