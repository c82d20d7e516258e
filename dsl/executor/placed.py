"""Graphs on the devices of this process: what runs a graph token by token, wherever its nodes are.

`make_runner` returns a function of the arguments and the environment. A graph of one device is run there; one that names
devices, or that may use several, is placed, cut into parts and run on all of them at the same time.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsl.codegen.cuda.devices import own_index
from dsl.config import config
from dsl.errors import DslError
from dsl.executor.executor import Executor
from dsl.executor.ranks import OverRanks, asked_by, names_a_rank
from dsl.ir.devices import DeviceName
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph, Node
from dsl.ir.interpret import apply_node
from dsl.ir.parts import Partition, node_names
from dsl.ir.registry import Trait
from dsl.ir.token_machine import run_tokens
from dsl.ir.types import TensorType
from dsl.mpi.world import world
from dsl.passes.lower_spanning import lower_spanning
from dsl.passes.partition import partition
from dsl.passes.place import place
from dsl.runtime.devices import Cpu, with_gpus
from dsl.runtime.parts import run_parts

__all__ = ["Runner", "make_runner", "measured", "runner_of"]

Runner = Callable[[Sequence[Any], Environment], list[Any]]


def make_runner(
    graph: Graph, devices: Sequence[Cpu], *, soft: bool = False, parallel_iterations: int = 10,
    prepare: Callable[[Graph], Graph] | None = None,
) -> Runner:  # fmt: skip
    """Return what runs a graph on some devices; many threads may call it at once.

    `prepare` may improve the part of each device of this process, if no token between them can be dead.
    """
    asked = asked_by(graph)
    if len(devices) == 1 and not asked:
        return runner_of(graph, parallel_iterations)
    devices = with_gpus(devices, asked, world().rank, own_index)
    if world().size > 1 and names_a_rank(graph):
        runner = functools.partial(runner_of, parallel=parallel_iterations)
        return OverRanks(graph, devices, soft, runner).run
    return _Placed(graph, devices, soft, parallel_iterations, prepare).run


def runner_of(graph: Graph, parallel: int, device: str = "") -> Runner:
    """Return what runs a graph, or the part of one, on one device: by default a CPU."""
    if config.backend == "interpreter":
        return lambda args, environment: run_tokens(
            graph, args, parallel_iterations=parallel, environment=environment
        )
    name = DeviceName.parse(device)
    gpu = name if name.kind not in (None, "cpu") else None
    return Executor(graph, parallel_iterations=parallel, gpu=gpu).run


class _Placed:
    """A graph in parts, each with what runs it."""

    def __init__(
        self, graph: Graph, devices: Sequence[Cpu], soft: bool, parallel: int,
        prepare: Callable[[Graph], Graph] | None,
    ) -> None:  # fmt: skip
        self.devices = {str(device.name): device for device in devices}
        lowered = lower_spanning(graph)
        placed = place(lowered, [d.name for d in devices], soft=soft, costs=measured(lowered))
        self.partition: Partition = partition(placed)
        better = prepare if prepare is not None and not _may_be_dead(self.partition) else _same
        self.runners: Mapping[Graph, Runner] = {
            part.graph: runner_of(better(part.graph), parallel, part.device)
            for part in self.partition.parts.values()
        }

    def run(self, args: Sequence[Any], environment: Environment) -> list[Any]:
        """Run a step; where a rendezvous is given, as to partial runs, tokens may come from outside of it."""
        outside = environment.rendezvous
        run = functools.partial(run_parts, self.partition, args, self.devices, self._run_one)
        if outside is None:
            return run(environment)  # type: ignore[no-any-return]
        return self.partition.gather(args, run(environment, outside))

    def _run_one(
        self, graph: Graph, args: Sequence[Any], environment: Environment
    ) -> Sequence[Any]:
        return self.runners[graph](args, environment)


def _may_be_dead(whole: Partition) -> bool:
    """Tell whether a part has branches or loops in tokens."""
    nodes = (node for part in whole.parts.values() for node in part.graph.nodes)
    return any(n.op.has(Trait.FLAT) and n.op.name not in ("send", "recv") for n in nodes)


def _same(graph: Graph) -> Graph:
    return graph


# -- what nodes cost -----------------------------------------------------------------------------------------------

_BUDGET = 0.05  # seconds that measuring one graph may take
_LARGEST = 1 << 22  # bytes of an input that is made for the sake of measuring
_known: dict[Any, float] = {}


def measured(graph: Graph) -> dict[str, float]:
    """Return how long nodes of known sizes take, in seconds, by name; each kind of node is timed once a process."""
    found: dict[str, float] = {}
    end = time.perf_counter() + _BUDGET
    for node, name in node_names(graph).items():
        if not _is_measurable(node):
            continue
        key = (node.op.name, tuple(v.type for v in node.inputs), repr(sorted(node.attrs.items())))
        if key not in _known and time.perf_counter() < end:
            _known[key] = _time(node)
        if key in _known:
            found[name] = _known[key]
    return found


def _is_measurable(node: Node) -> bool:
    plain = node.op.has(Trait.PURE) and not node.regions and not node.dims and node.inputs
    return bool(plain) and all(
        isinstance(v.type, TensorType) and v.type.is_static() and _bytes(v.type) <= _LARGEST
        for v in node.inputs
    )


def _bytes(type: TensorType) -> int:
    return math.prod(_static(type)) * type.dtype.itemsize


def _static(type: TensorType) -> list[int]:
    return [n for n in type.shape if isinstance(n, int)]


def _time(node: Node) -> float:
    """Time a node on ones; one that does not take them counts as costing nothing."""
    inputs = [np.ones(_static(v.tensor), v.dtype) for v in node.inputs]
    try:
        start = time.perf_counter()
        apply_node(node, inputs)
        return time.perf_counter() - start
    except (DslError, ValueError, IndexError, ArithmeticError, np.linalg.LinAlgError):
        return 0.0
