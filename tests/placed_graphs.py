"""For tests of placement and partitioning: graphs with devices, and steps that run on several of them.

Every run has a deadline, so that a hang is a failure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.ir.environment import Environment
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.parts import Partition
from dsl.ir.token_machine import run_tokens
from dsl.ir.verify import verify
from dsl.passes.partition import partition
from dsl.runtime.devices import Cpu
from dsl.runtime.parts import run_parts

__all__ = [
    "DEVICES",
    "cut",
    "device",
    "kinds",
    "run",
    "run_everywhere",
    "transfers",
    "with_devices",
]

DEVICES = ["/rank:0/cpu:0", "/rank:0/cpu:1", "/rank:0/cpu:2"]
CPUS = {name: Cpu(index) for index, name in enumerate(DEVICES)}
DEADLINE = 20.0

Pick = Callable[[Node], str | None]


def device(index: int) -> str:
    return DEVICES[index]


def with_devices(graph: Graph, pick: Pick, nested: bool = False) -> Graph:
    """Return a graph whose nodes, with `nested` those of regions too, have the devices that `pick` says, if any."""
    values: dict[Value, Value] = {value: value for value in graph.params}
    nodes = {value.node: value.node for value in graph.params}
    for node in graph.nodes:
        name = pick(node)
        attrs = node.attrs if name is None else {**node.attrs, "device": name}
        regions = node.regions
        if nested:
            regions = tuple(with_devices(region, pick, nested) for region in regions)
        inputs = tuple(values[value] for value in node.inputs)
        controls = tuple(nodes[before] for before in node.controls)
        made = Node(node.op, inputs, attrs, node.types, regions, controls, node.dims, node.loc)
        nodes[node] = made
        values.update(zip(node.outputs, made.outputs, strict=True))
    back = {nodes[merge]: values[value] for merge, value in graph.back.items()}
    results = tuple(values[value] for value in graph.results)
    return Graph(graph.name, graph.params, results, tuple(nodes[n] for n in graph.effects), back)


def cut(graph: Graph, **options: Any) -> Partition:
    """Partition a graph and check the parts."""
    found = partition(graph, **options)
    for part in found.parts.values():
        verify(part.graph)
        assert all(node.attrs["device"] == part.device for node in part.graph.nodes)
    found.check_complete()
    return found


def run(
    found: Partition,
    args: Sequence[Any],
    *,
    seed: int = 0,
    timeout: float = DEADLINE,
    **options: Any,
) -> list[Any]:
    """Run parts with the token machine, each in an order of its own."""
    orders = random.Random(seed)

    def run_one(graph: Graph, given: Sequence[Any], environment: Environment) -> list[Any]:
        order = random.Random(orders.random())
        return run_tokens(graph, given, environment=environment, order=order, **options)

    arrays = [np.asarray(arg) for arg in args]
    environment = Environment(options.pop("resources", None), timeout=timeout)
    return run_parts(found, arrays, CPUS, run_one, environment)


def run_everywhere(graph: Graph, args: Sequence[Any], runs: int = 6, **options: Any) -> list[Any]:
    """Run a placed graph in parts, in several orders and with several bounds; return what all agree on."""
    found = cut(graph, **options)
    results = [run(found, args, seed=k, parallel_iterations=(1, 2, 10)[k % 3]) for k in range(runs)]
    texts = {repr([x.tolist() for x in result]) for result in results}
    assert len(texts) == 1, texts
    return [x.tolist() for x in results[0]]


def kinds(found: Partition, index: int) -> list[str]:
    """Return the names of the ops of a device's part, sorted."""
    if DEVICES[index] not in found.parts:
        return []
    return sorted(node.op.name for node in found.parts[DEVICES[index]].graph.nodes)


def transfers(found: Partition) -> list[str]:
    """Return the keys under which the parts send, each once; they are those under which the parts receive."""
    nodes = [node for part in found.parts.values() for node in part.graph.nodes]
    sent = sorted(node.attrs["key"] for node in nodes if node.op.name == "send")
    received = sorted(node.attrs["key"] for node in nodes if node.op.name == "recv")
    assert sent == received
    assert len(sent) == len(set(sent))
    return sent
