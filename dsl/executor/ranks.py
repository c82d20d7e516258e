"""Graphs over the ranks of `mpirun`: every rank cuts the graph in the same way and runs its own parts.

All ranks call the same function in the same order. At its first use they compare their graphs; a difference is an error on
all of them. A result that is on another rank is a `Remote` here.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsl.codegen.cuda.devices import own_index
from dsl.config import config
from dsl.errors import DeviceError, PeerError, UnsupportedError
from dsl.executor.shared_memory import native_code
from dsl.ir import shared_memory
from dsl.ir.devices import DeviceName
from dsl.ir.dims import Dim, substitute
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph
from dsl.ir.parts import Partition
from dsl.ir.registry import Trait
from dsl.ir.remote import Remote
from dsl.ir.types import TensorType, ValueType, bind_shape
from dsl.mpi.agreement import agree
from dsl.mpi.once import once
from dsl.mpi.pulse import beat
from dsl.mpi.rendezvous import Edges, Exchange, RankRendezvous
from dsl.mpi.shared import transport
from dsl.mpi.world import world
from dsl.passes.lower_spanning import lower_spanning
from dsl.passes.partition import partition
from dsl.passes.place import place
from dsl.runtime.devices import Cpu, with_gpus
from dsl.runtime.parts import run_parts

__all__ = ["OverRanks", "exchange", "names_a_rank", "refuse_collectives"]

shared_memory.provide(native_code)
_serial = itertools.count(1)


@once
def exchange() -> Exchange:
    """Return where the tokens of this process meet those of others."""
    return Exchange(transport())


def names_a_rank(graph: Graph) -> bool:
    """Tell whether a node asks for a device of a certain rank."""
    return any(
        DeviceName.parse(node.attrs["device"]).rank is not None
        for node in graph.walk()
        if "device" in node.attrs
    )


def asked_by(graph: Graph) -> list[str]:
    """Return the devices that nodes of a graph ask for."""
    return list(dict.fromkeys(str(n.attrs["device"]) for n in graph.walk() if "device" in n.attrs))


def names_over(ranks: int, devices: Sequence[Cpu], asked: Iterable[str]) -> list[DeviceName]:
    """Return the names of the devices of all ranks: as many CPUs on each, and the GPUs that nodes ask for."""
    cpus = sum(device.name.kind == "cpu" for device in devices)
    found = [DeviceName(r, "cpu", k) for r in range(ranks) for k in range(cpus)]
    for name in map(DeviceName.parse, asked):
        if name.kind not in (None, "cpu"):
            on = range(ranks) if name.rank is None else [name.rank]
            found += [DeviceName(r, name.kind, name.index or 0) for r in on]
    return list(dict.fromkeys(found))


def devices_of(rank: int, devices: Sequence[Cpu], parts: Iterable[str]) -> dict[str, Cpu]:
    """Return the devices of a rank by their names, with the GPUs on which parts run."""
    cpus = [device for device in devices if device.name.kind == "cpu"]
    found = {str(DeviceName(rank, "cpu", k)): device for k, device in enumerate(cpus)}
    gpus = with_gpus([], parts, rank, own_index)
    return found | {str(device.name): device for device in gpus}


def refuse_collectives(graph: Graph) -> None:
    """Raise if a graph whose parts are on ranks has a collective: one rank would run it, and wait for the others for ever."""
    for node in graph.walk():
        if node.op.has(Trait.COLLECTIVE):
            raise UnsupportedError(
                f"{node.op.name}: all ranks take part in it, and in a graph with parts on certain ranks one rank has it",
                location=node.loc,
                remedy="call it outside, or name no rank in `dsl.device`; values go from rank to rank by themselves",
            )


class OverRanks:
    """A graph in parts, of which this rank runs some."""

    over_ranks = True
    """Arguments may be results that are on other ranks."""

    def __init__(
        self, graph: Graph, devices: Sequence[Cpu], soft: bool, prepare: Callable[..., Any]
    ) -> None:
        refuse_collectives(graph)
        names = names_over(world().size, devices, asked_by(graph))
        placed = place(lower_spanning(graph), names, soft=soft)
        self.name, self.types = graph.name, [v.type for v in graph.results]
        self.params = [v.type for v in graph.params]
        self.names = [v.node.attrs["name"] for v in graph.params]
        self.whole = partition(placed)
        self.whole.check_complete()
        agree(f"the graph of `{graph.name}`", placed.text)
        self.number = next(_serial)
        self.edges = Edges(
            node.attrs["key"]
            for part in self.whole.parts.values()
            for node in part.graph.nodes
            if node.op.name == "send"
        )
        own = {d: p for d, p in self.whole.parts.items() if _rank(d) == world().rank}
        self.local = Partition(own, ())
        self.devices = devices_of(world().rank, devices, own)
        self.runners: Mapping[Graph, Any] = {
            part.graph: prepare(part.graph, device=device) for device, part in own.items()
        }
        self._steps = itertools.count(1)
        self._lock = threading.Lock()

    def run(self, args: Sequence[Any], environment: Environment) -> list[Any]:
        """Run this rank's parts of one step."""
        with self._lock:
            step = next(self._steps)
        meeting = RankRendezvous(
            exchange(), self.number, step, self.edges,
            what=f"`{self.name}`", parts=len(self.local.parts),
        )  # fmt: skip
        here = copy.copy(environment)
        if here.timeout is None:
            here.timeout = config.mpi_timeout
        try:
            self._check_here(args)
            found = run_parts(
                self.local, args, self.devices, self._run_one, here, rendezvous=meeting
            )
        except PeerError:
            raise
        except BaseException as error:
            meeting.explain(error)
            exchange().tell(meeting, error)
            raise
        finally:
            meeting.close()
        beat(self.name)
        return [self._result(k, args, found) for k in range(len(self.types))]

    def _check_here(self, args: Sequence[Any]) -> None:
        """Raise if a part of this rank reads an argument that is a result on another rank."""
        for part in self.local.parts.values():
            for index, given in zip(part.params, part.arguments(args), strict=True):
                if isinstance(given, Remote):
                    raise DeviceError(
                        f"the argument `{self.names[index]}` of `{self.name}` ({given.type}) is on {given.device}, "
                        f"and {part.device} reads it",
                        remedy="read it under `dsl.device` of its rank, or have all ranks `dsl.parallel.broadcast` it before",
                    )

    def _run_one(self, graph: Graph, args: Sequence[Any], environment: Environment) -> Any:
        return self.runners[graph](args, environment)

    def _result(self, k: int, args: Sequence[Any], found: Mapping[str, Sequence[Any]]) -> Any:
        device, index = self.whole.sources[k]
        if device is None:
            return args[index]
        return found[device][index] if device in found else Remote(device, self._type(k, args))

    def _type(self, k: int, args: Sequence[Any]) -> ValueType:
        """Return the type of a result, with the sizes of these arguments."""
        found = self.types[k]
        sizes: dict[Dim, int] = {}
        if not isinstance(found, TensorType) or all(isinstance(n, int) for n in found.shape):
            return found
        for expected, arg in zip(self.params, args, strict=True):
            if isinstance(expected, TensorType):
                bind_shape(expected.shape, np.shape(arg), sizes)
        return TensorType(found.dtype, tuple(substitute(n, sizes) for n in found.shape))


def _rank(device: str) -> int:
    return DeviceName.parse(device).rank or 0
