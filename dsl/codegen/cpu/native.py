"""A graph as a native function: emits its program, compiles and links it, and makes the built-in that runs it.

In: a structured graph and what its params are. Out: a `Native`; calling its `entry` with arrays of the described kinds
runs the program, and returns NotImplemented for any others. Results that the caller asked for come back as a tuple;
params that the program writes are written in place.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dsl import events
from dsl.codegen.cpu import entry, jit, recipes, runtime
from dsl.codegen.emission import Emission, ParamKind
from dsl.config import config
from dsl.errors import InternalError
from dsl.ir.communicator import place_for
from dsl.ir.dims import Dim
from dsl.ir.facts import named_axis
from dsl.ir.graph import Graph, Node
from dsl.ir.interpret import apply_node, node_sizes
from dsl.ir.registry import PLACEMENT, Trait
from dsl.ir.types import TensorType, resolve_shape

if TYPE_CHECKING:
    from dsl.codegen.report import ErrorSite, Report

__all__ = ["Native", "ParamKind", "compile_graph"]


LEVEL = 2  # LLVM's: its level 3 takes up to three times as long and gave no faster code on the benchmarks
_LEVEL_AS_WRITTEN = 1  # of the code generator for loops that are written as they should run: 36 programs are as fast as with 2
MOST_LINES = 80_000  # of a program that all of LLVM's passes see: 40,000 take them 9 s, five passes 2 s, for code half as fast


# In text: what conditional moves may be made of.
_CHOICES = ("= select i1", "max.i", "min.i", "abs.i")


@dataclass(eq=False, repr=False)
class Native:
    """A compiled program."""

    address: int
    spec: entry.EntrySpec
    emission: Emission
    times: dict[str, float] = field(default_factory=dict)
    from_cache: bool = False
    written: tuple[int, ...] = ()
    _timed: Native | None = None

    @cached_property
    def run(self) -> Callable[..., Any]:
        """The program as a function of its arrays; most calls have a shorter way to it."""
        return entry.make_entry(self.address, self.spec)

    @property
    def text(self) -> str:
        """The module as LLVM IR."""
        return self.emission.emitted.text

    @property
    def link(self) -> tuple[str, ...]:
        """Modules that are linked to the text."""
        return self.emission.emitted.link

    @property
    def flags(self) -> tuple[str, ...]:
        """How the text is compiled."""
        return _flags(self.emission)

    @property
    def level(self) -> int:
        """LLVM's level."""
        return _level(self.flags)

    @property
    def report(self) -> Report:
        """What happened while the text was emitted."""
        return self.emission.emitted.report

    def timed(self) -> Native:
        """Return the same program with clocks in it, for profiles; made when it is first asked for."""
        if self._timed is None:
            self._timed = self if self.emission.timed else _compile(self.emission.with_clocks())
        return self._timed

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """Run on a list of arrays; of what the entry does not take as it is, a copy is passed and written back."""
        if events.LOG is not None and not self.emission.timed:
            return self.timed()(arrays)
        found = self.run(*arrays)
        if found is NotImplemented:
            passed = [_plain(a, k in self.written) for k, a in enumerate(arrays)]
            found = self.run(*passed)
            if found is not NotImplemented:
                for k in self.written:
                    arrays[k][...] = passed[k]
        if found is NotImplemented:
            raise InternalError(
                "a native program was called with arguments of other kinds than it was compiled for"
            )
        return found


def _plain(array: Any, written: bool) -> Any:
    """An argument as an aligned array of exactly the class ndarray, in memory of its own if it is to be written.

    Its dtype is NumPy's own object, which the entry compares with: there are others that are equal to it.
    """
    if not isinstance(array, np.ndarray):
        return array
    plain = np.asarray(array)
    if written:
        return _same_layout(plain)
    if plain.flags.aligned and plain.dtype.isnative:
        return plain.view(np.dtype(plain.dtype.type))
    return _same_layout(plain)


def _same_layout(array: np.ndarray) -> np.ndarray:
    """Return a copy with the same strides, in elements, as far as they can be had."""
    if array.flags.c_contiguous or not array.size:
        return array.astype(np.dtype(array.dtype.type), order="C", copy=True)
    steps = [s // array.itemsize for s in array.strides]
    low = sum(min(0, (d - 1) * s) for d, s in zip(array.shape, steps))
    high = sum(max(0, (d - 1) * s) for d, s in zip(array.shape, steps))
    memory = np.empty(high - low + 1, np.dtype(array.dtype.type))
    strides = [s * memory.itemsize for s in steps]
    made = np.ndarray(array.shape, memory.dtype, memory.data, -low * memory.itemsize, strides)
    made[...] = array
    return made


def compile_graph(
    graph: Graph, params: Sequence[ParamKind], *, results: Sequence[int] | None = None,
    written: Sequence[tuple[int, int]] = (), fastmath: bool = False, timed: bool = False,
) -> Native:  # fmt: skip
    """Compile a graph; `results` are the numbers of the results to return, all by default.

    A program that is `timed` measures its kernels, and tells `events` when it ends.
    """
    wanted = list(range(len(graph.results))) if results is None else list(results)
    checks = config.bounds_checks == "on"
    return _compile(
        Emission(graph, params, wanted, written, fastmath=fastmath, checks=checks, timed=timed)
    )


def _compile(emission: Emission) -> Native:
    start = time.perf_counter()
    graph, params, written = emission.graph, emission.params, emission.written
    wanted = emission.wanted
    runtime.ensure_loaded()
    if emission.timed:
        jit.define("dsl_clock", runtime.address("dsl_clock"))
    code, is_long, emitted = _code(emission)
    spec = entry.EntrySpec(
        params=[_param(graph, k, p, {i for i, _ in written}) for k, p in enumerate(params)],
        results=[
            entry.ArrayResult(graph.results[k].dtype, len(graph.results[k].shape)) for k in wanted
        ],
        result="tuple",
        always=True,
        release_gil=is_long,
        on_error=Errors(emission),
        callback=Callback(emission),
        keep=code,
    )
    address = code.address("dsl_program")
    times = {"emit": emitted - start, **code.times}
    if events.LOG is not None:
        _tell_phases(graph.name, emission.timed, times)
    return Native(
        address, spec, emission, times, code.from_cache, written=tuple(k for k, _ in written)
    )


def _tell_phases(name: str, timed: bool, times: dict[str, float]) -> None:
    """Tell the profile about the phases of a compile that has just ended, one after the other."""
    stop = events.now()
    for phase, seconds in reversed(times.items()):
        start = stop - int(1e9 * seconds)
        data = {"function": name, "for": "this profile" if timed else "calls"}
        if seconds:
            events.add("compile", phase, start, data=data, stop=stop)
        stop = start


def _code(emission: Emission) -> tuple[jit.Code, bool, float]:
    """Return a program's code, whether it runs so long that others should have the GIL, and when its text was there."""
    parts = emission.recipe()
    key = None if parts is None else recipes.recipe("program", str(LEVEL), *parts)
    note, emitted = recipes.find(key), time.perf_counter()
    code = None if note is None else recipes.code(note)
    if note is not None and code is not None:
        return code, note.facts["is_long"], emitted
    from dsl.codegen.library import routines

    text, link, *_, is_long = emission.emitted
    emitted = time.perf_counter()
    routines.provide(text)
    flags = _flags(emission)
    level = _level(flags)
    if link:  # users' modules, which are not part of the recipe
        return jit.load(text, level=level, flags=flags, link=link), is_long, emitted
    needs = routines.needs(text)
    code = recipes.load(key, text, level=level, flags=flags, needs=needs, is_long=is_long)
    return code, is_long, emitted


def _level(flags: tuple[str, ...]) -> int:
    return min(LEVEL, _LEVEL_AS_WRITTEN) if jit.AS_WRITTEN in flags else LEVEL


def _flags(emission: Emission) -> tuple[str, ...]:
    """Return which of LLVM's passes run. All of them take a time that grows with the square of a program's length."""
    module = emission.emitted
    far = (jit.BRANCHES,) if module.far else ()
    if module.as_written or (module.text.count("\n") > MOST_LINES and not module.link):
        straight = module.as_written and not any(node.regions for node in emission.graph.nodes)
        decides = "cond" in emission.graph.op_names or any(c in module.text for c in _CHOICES)
        if module.as_written and not decides:
            far = (jit.BRANCHES,)  # no conditional moves to keep: nothing has to be switched
        more = (jit.STRAIGHT,) if straight else (jit.UNROLL,) if module.unrolled else ()
        return (jit.AS_WRITTEN, *far, *more)
    once = (jit.SPLIT,) if module.steady else ()
    found = (*far, *(("no-slp",) if module.recurs else ()), *once)
    return found if module.gathers else (jit.NO_GATHERS, *found)


def _param(graph: Graph, k: int, kind: ParamKind, written: set[int]) -> entry.Param:
    type = graph.params[k].tensor
    if kind.kind in ("int", "float", "complex", "bool"):
        return entry.NumberParam(kind.kind)  # type: ignore[arg-type]
    if kind.kind == "scalar":
        return entry.NumberParam(type.dtype)
    dims: tuple[int | Hashable, ...] = tuple(_dim(d) for d in type.shape)
    strides: Any = "contiguous" if kind.strides is None else kind.strides
    return entry.ArrayParam(type.dtype, dims, strides, written=k in written)


def _dim(dim: Any) -> int | Hashable:
    return dim if isinstance(dim, (int, Dim)) else int(dim)


class Errors:
    """Raises what a program's status means."""

    def __init__(self, emission: Emission) -> None:
        self.emission = emission

    @property
    def sites(self) -> list[ErrorSite]:
        """The places where the program can fail."""
        return self.emission.emitted.errors

    def __call__(self, status: int, code: int, *payload: int) -> NoReturn:
        from dsl.codegen.frame import STATUS

        if status == STATUS.MEMORY:
            raise MemoryError("there is not enough memory for the arrays of a compiled program")
        site = self.sites[code - 1]
        error = _error(site, payload)
        if site.node is not None and site.node.loc is not None:
            error.add_note(site.node.loc.excerpt())
        raise error


_EMPTY = {"max": "maximum", "min": "minimum"}


def _error(site: ErrorSite, payload: Sequence[int]) -> Exception:
    kind, _, message = site.kind.partition(":")
    if kind == "index":
        axis = site.axis if site.node is None else named_axis(site.node, site.axis)
        return IndexError(
            f"index {payload[0]} is out of bounds for axis {axis} with size {payload[1]}"
        )
    if kind == "negative_power":
        return ValueError("Integers to negative integer powers are not allowed.")
    if kind == "raised" and site.node is not None and site.node.op.raised is not None:
        return site.node.op.raised(site.node, payload[0])
    if kind == "empty" and site.node is not None:
        name = _EMPTY[site.node.op.name]
        return ValueError(f"zero-size array to reduction operation {name} which has no identity")
    if kind == "broadcast":
        return ValueError(
            f"operands could not be broadcast together with shapes ({payload[0]},) ({payload[1]},)"
        )
    if kind == "reshape":
        shape = ",".join(map(str, payload[1 : 1 + site.axis]))
        return ValueError(
            f"cannot reshape array of size {payload[0]} into shape ({shape}{',' * (site.axis == 1)})"
        )
    if kind == "linalg":
        return np.linalg.LinAlgError(message.format(*payload))
    if kind == "assert" and site.node is not None:
        attrs = {name: attr for name, attr in site.node.attrs.items() if name not in PLACEMENT}
        try:
            site.node.op.numpy(np.array(False), **attrs)
        except Exception as error:
            return error
    if kind == "value":
        return ValueError(message.format(*payload))
    return InternalError(f"a program failed with {site.kind} {tuple(payload)}")


class Callback:
    """Runs, for a program, the nodes that have no native form."""

    def __init__(self, emission: Emission) -> None:
        self.emission = emission

    @property
    def nodes(self) -> list[Node]:
        """The nodes, by the numbers that the program has for them."""
        return self.emission.emitted.callbacks

    def __call__(self, number: int, address: int) -> int:
        if number < 0:
            return self._tell(address)
        node = self.nodes[number]
        words = _Words(address)
        inputs = [words.operand(v.type) for v in node.inputs if isinstance(v.type, TensorType)]
        if node.op.has(Trait.COLLECTIVE) and words.aim(node, inputs):
            with place_for(words.target):
                outputs = apply_node(node, inputs)
        else:
            outputs = apply_node(node, inputs)
        for value, array in zip(node.outputs, outputs, strict=True):
            if isinstance(value.type, TensorType):
                words.result(value.type, np.asarray(array))
        return 0

    def _tell(self, address: int) -> int:
        """Take the times of a program with clocks, if somebody still wants them."""
        if events.LOG is not None:
            sites = self.emission.emitted.sites
            words = ctypes.string_at(address, 8 * (events.WORDS * len(sites) + 2))
            events.program(self.emission.graph.name, sites, words)
        return 0


class _Words:
    """The words that a program passes to `dsl_python`."""

    target: Any = None  # memory of the program for the only result, once that is known

    def __init__(self, address: int) -> None:
        self.address = address

    def aim(self, node: Node, inputs: Sequence[np.ndarray]) -> bool:
        """Tell whether the operands, which have been taken, are followed by the place of one array: `target`."""
        if len(node.outputs) != 1 or not (type := node.outputs[0].tensor).rank:
            return False
        pointer = ctypes.c_int64.from_address(self.address).value
        if pointer:
            shape = resolve_shape(type.shape, node_sizes(node, inputs))
            self.target = _array(pointer, type.dtype, shape, None)
        return bool(pointer)

    def take(self) -> int:
        word = ctypes.c_int64.from_address(self.address).value
        self.address += 8
        return word

    def put(self, word: int) -> None:
        ctypes.c_int64.from_address(self.address).value = word
        self.address += 8

    def operand(self, type: TensorType) -> np.ndarray:
        rank, dtype = type.rank, type.dtype
        if not rank:
            made = _memory(self.address, dtype.itemsize).view(dtype).reshape(()).copy()
            self.address += 16
            return made
        pointer = self.take()
        dims = tuple(self.take() for _ in range(rank))
        strides = tuple(self.take() for _ in range(rank))
        return _array(pointer, dtype, dims, strides)

    def result(self, type: TensorType, array: np.ndarray) -> None:
        rank, dtype = type.rank, type.dtype
        if not rank:
            _memory(self.address, dtype.itemsize).view(dtype)[...] = array
            self.address += 16
            return
        pointer = ctypes.c_int64.from_address(self.address).value
        if not pointer:
            alloc = runtime.function("dsl_alloc", ctypes.c_void_p, ctypes.c_int64)
            pointer = alloc(max(1, array.nbytes))
            if not pointer:
                raise MemoryError
            self.put(pointer)
            for dim in array.shape:
                self.put(dim)
        else:
            self.address += 8 * (1 + rank)
        if array is not self.target:
            target = _array(pointer, dtype, array.shape, None)
            target[...] = array


def _memory(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _array(
    pointer: int, dtype: np.dtype, dims: tuple[int, ...], strides: tuple[int, ...] | None
) -> np.ndarray:
    """Return an array over memory of the program, valid during the call."""
    if 0 in dims:
        return np.empty(dims, dtype)
    if strides is None:
        size = int(np.prod(dims)) * dtype.itemsize
        return _memory(pointer, size).view(dtype).reshape(dims)
    low = pointer + sum(min(0, (d - 1) * s) for d, s in zip(dims, strides))
    high = pointer + sum(max(0, (d - 1) * s) for d, s in zip(dims, strides)) + dtype.itemsize
    memory = _memory(low, high - low)
    return np.ndarray(dims, dtype, memory.data, pointer - low, strides)
