"""`Executor`: runs a graph by tokens, in machine code.

In: a graph, flat or structured. What may wait (queues, other devices) or acts outside (variables, files) is handed to
Python; all else is compiled, in groups of nodes that are alive together, and scheduled by the compiled core. The rules are
those of `dsl.ir.token_machine`.

>>> from dsl.ir.text import parse
>>> graph = parse("graph @twice(%x: f64[2]) -> (f64[2]) { %0 = add(%x, %x) : f64[2] return %0 }")
>>> Executor(graph).run([np.array([1.0, 2.0])])
[array([2., 4.])]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from dsl import events
from dsl.errors import DslError, InternalError, ShapeError, TypeRuleError
from dsl.executor.step import Step
from dsl.executor.tables import Plan, make_plan
from dsl.executor.units import acts
from dsl.ir.devices import DeviceName
from dsl.ir.dims import Dim
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph
from dsl.ir.token_machine import Trace
from dsl.ir.types import TensorType, bind_shape
from dsl.passes.lower_control import has_spelling, lower_control

__all__ = ["Executor"]


class Executor:
    """A graph made ready to run. Any number of threads may run it at once.

    With `cluster`, pure nodes that are alive together run as one program; without, each node by itself. At most
    `parallel_iterations` iterations of a loop are alive at a time. While a profile is on, programs with clocks run.
    With `gpu`, the groups run there; what they read and make passes through the host's memory.
    """

    def __init__(
        self, graph: Graph, *, cluster: bool = True, parallel_iterations: int = 10,
        gpu: DeviceName | None = None,
    ) -> None:  # fmt: skip
        if parallel_iterations < 1:
            raise DslError(f"parallel_iterations must be at least 1, got {parallel_iterations}")
        self.graph = lower_control(graph, lambda node: acts(node) and has_spelling(node))
        make = partial(
            make_plan, self.graph, cluster=cluster, parallel_iterations=parallel_iterations, gpu=gpu
        )
        self.plan: Plan = make()
        self._steps: list[Step] = []
        self._timed: list[Step] = []
        self._make_timed = cache(partial(make, timed=True))

    def run(
        self,
        args: Sequence[Any],
        environment: Environment | None = None,
        cancelled: Callable[[], bool] | None = None,
        trace: Trace | None = None,
    ) -> list[np.ndarray]:
        """Run the graph once and return its results, which are the caller's.

        `cancelled` is asked now and then whether to give up; `trace` is told of each node that runs.
        """
        arrays = self._check(args)
        steps = self._steps if events.LOG is None else self._timed
        try:
            step = steps.pop()
        except IndexError:
            step = Step(self.plan if steps is self._steps else self._make_timed())
        found = step.run(arrays, environment or Environment(), cancelled, trace)
        steps.append(step)
        return found

    def _check(self, args: Sequence[Any]) -> list[np.ndarray]:
        """Return the arguments as contiguous arrays of the types that the params have."""
        params = self.graph.params
        if len(args) != len(params):
            raise InternalError(f"{self.graph.name} takes {len(params)} arguments, got {len(args)}")
        sizes: dict[Dim, int] = {}
        return [
            _checked(arg, param.tensor, sizes, k)
            for k, (arg, param) in enumerate(zip(args, params))
        ]


def _checked(arg: Any, type: TensorType, sizes: dict[Dim, int], k: int) -> np.ndarray:
    array = np.asarray(arg)
    if array.dtype != type.dtype:
        raise TypeRuleError(f"argument {k}: expected {type}, got an array of {array.dtype}")
    if array.shape != type.shape and not bind_shape(type.shape, array.shape, sizes):
        raise ShapeError(f"argument {k}: expected {type}, got an array of shape {array.shape}")
    return array if array.flags.c_contiguous else np.array(array, order="C")
