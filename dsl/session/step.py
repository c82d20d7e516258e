"""Steps that wait for queues, other devices or feeds: run token by token (`dsl.executor`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsl.executor.placed import make_runner
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph
from dsl.runtime.devices import Cpu
from dsl.session.fuse import fuse, fuse_part

__all__ = ["TokenStep"]


class TokenStep:
    """A graph that is run token by token, on one device or on several."""

    stage = "tokens"

    def __init__(
        self, graph: Graph, bound: Sequence[np.ndarray], resources: Mapping[str, Any],
        devices: Sequence[Cpu], soft: bool, parallel: int,
    ) -> None:  # fmt: skip
        self.bound, self.graph = tuple(bound), graph
        if len(devices) == 1 and not any("device" in node.attrs for node in graph.walk()):
            self.graph = fuse(graph, resources)
        self._run = make_runner(
            self.graph, devices, soft=soft, parallel_iterations=parallel,
            prepare=lambda part: fuse_part(part, resources),
        )  # fmt: skip

    def run(self, feeds: Sequence[np.ndarray], environment: Environment) -> list[Any]:
        """Run one step; many may run at once."""
        return self._run([*feeds, *self.bound], environment)
