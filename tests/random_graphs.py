"""Random structured programs: `graphs()` yields a graph and arguments for it.

The programs are well typed and end: they nest `cond`, `while` and `scan` over scalars and small vectors, some of a
symbolic size, and print now and then. Operands may be unused, repeated or returned as they are, and results may be
unused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dsl.ir.build import Builder
from dsl.ir.dims import Dim, Symbol
from dsl.ir.graph import Graph, Value
from dsl.ir.types import BOOL, BY_NAME, I64, TensorType, scalar

__all__ = ["graphs"]

F64 = BY_NAME["f64"]
LONGEST_LOOP = 4

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def graphs(draw: Draw, max_depth: int = 3) -> tuple[Graph, list[Any]]:
    """Draw a structured graph and arguments for it; control flow nests `max_depth` deep at most."""
    body = _Body(draw, Builder("main"), Symbol("n"), max_depth)
    types = body.types
    drawn = draw(st.lists(st.sampled_from(types), max_size=3))
    body.take_params([*types, *drawn])
    body.add_steps(8)
    size = draw(st.integers(0, 3))
    args = [_argument(draw, value.tensor, size) for value in body.builder.params]
    return body.finish(draw(st.integers(1, 3))), args


def _argument(draw: Draw, type: TensorType, size: int) -> Any:
    shape = [size if isinstance(dim, Dim) else dim for dim in type.shape]
    numbers = st.integers(0, 1) if type.dtype == BOOL else st.integers(-3, 5)
    count = int(np.prod(shape, dtype=int))
    flat = [draw(numbers) for _ in range(count)]
    return np.array(flat).astype(type.dtype).reshape(shape)


@dataclass
class _Body:
    """A graph being drawn; `symbol` is what it calls the size of all vectors whose size is not known."""

    draw: Draw
    builder: Builder
    symbol: Dim
    depth: int
    values: list[Value] = field(default_factory=list)

    @property
    def types(self) -> list[TensorType]:
        vectors = [TensorType(F64, (3,)), TensorType(F64, (self.symbol,))]
        return [scalar(I64), scalar(F64), scalar(BOOL), *vectors]

    def own(self, types: Sequence[TensorType]) -> list[TensorType]:
        """Return types as this graph names their sizes."""
        return [t if t.is_static() else t.with_shape((self.symbol,)) for t in types]

    def take_params(self, types: Sequence[TensorType]) -> None:
        self.values += [self.builder.param(type) for type in types]

    def add_steps(self, most: int) -> None:
        steps = [self.constant, self.arithmetic, self.comparison, self.reduction, self.message]
        if self.depth:
            steps += [self.cond, self.while_loop, self.scan] * 2
        for _ in range(self.draw(st.integers(0, most))):
            self.draw(st.sampled_from(steps))()

    def finish(self, count: int) -> Graph:
        """Finish with any values as results."""
        return self.builder.finish([self.any() for _ in range(count)])

    # -- values ------------------------------------------------------------------------------------------------

    def some(self, type: TensorType) -> Value:
        """Draw a value of a type, a constant if there is none."""
        found = [value for value in self.values if value.type == type]
        if found and self.draw(st.integers(0, 4)):
            return self.draw(st.sampled_from(found))
        number = self.builder.constant(self.draw(st.integers(0, 3)), type.dtype)
        return self.builder.emit("full", number, shape=type.shape) if type.rank else number

    def any(self) -> Value:
        """Draw a value of any type."""
        if self.values and self.draw(st.integers(0, 5)):
            return self.draw(st.sampled_from(self.values))
        return self.some(self.type())

    def several(self, most: int) -> list[Value]:
        return [self.any() for _ in range(self.draw(st.integers(0, most)))]

    def type(self) -> TensorType:
        """Draw a type whose size this graph knows."""
        known = [t for t in self.types if t.is_static() or self.builder.knows(t.shape[0])]
        return self.draw(st.sampled_from(known))

    # -- steps -------------------------------------------------------------------------------------------------

    def constant(self) -> None:
        self.values.append(self.some(self.type()))

    def arithmetic(self) -> None:
        type = self.type()
        x, y = self.some(type), self.some(type)
        names = (
            ["logical_and", "logical_or"] if type.dtype == BOOL else ["add", "multiply", "minimum"]
        )
        self.values.append(self.builder.emit(self.draw(st.sampled_from(names)), x, y))

    def comparison(self) -> None:
        type = scalar(self.draw(st.sampled_from([I64, F64])))
        name = self.draw(st.sampled_from(["less", "equal"]))
        self.values.append(self.builder.emit(name, self.some(type), self.some(type)))

    def reduction(self) -> None:
        type = self.type()
        if type.rank:
            self.values.append(self.builder.emit("sum", self.some(type), axes=(0,)))
        else:
            self.values.append(self.builder.emit("identity", self.some(type)))

    def message(self) -> None:
        value = self.any()
        if self.draw(st.integers(0, 3)):
            tag = self.draw(st.integers(0, 99))
            self.builder.node("print", [value], {"template": f"{tag}: {{}}", "end": "\n"})
        else:
            attrs = {"message": "no", "error": "ValueError"}
            self.builder.node("assert", [self.builder.constant(True)], attrs)

    def region(self, name: str, types: Sequence[TensorType]) -> _Body:
        symbol = self.symbol if self.draw(st.integers(0, 3)) else Symbol(name)
        body = _Body(self.draw, Builder(name), symbol, self.depth - 1)
        body.take_params(body.own(types))
        return body

    def structured(self, op: str, inputs: list[Value], regions: list[Graph], **attrs: Any) -> None:
        types = self.own([value.tensor for value in regions[-1].results])
        node = self.builder.node(op, inputs, attrs, regions=regions, types=types)
        self.values += self.draw(st.permutations(node.outputs))

    def cond(self) -> None:
        pred, operands = self.some(scalar(BOOL)), self.several(3)
        types = [value.tensor for value in operands]
        results = [self._region_type(types) for _ in range(self.draw(st.integers(0, 2)))]
        regions = []
        for name in ("then", "else"):
            body = self.region(name, types)
            body.add_steps(3)
            regions.append(body.builder.finish([body.some(type) for type in body.own(results)]))
        self.structured("cond", [pred, *operands], regions)

    def _region_type(self, types: list[TensorType]) -> TensorType:
        return self.draw(st.sampled_from([t for t in self.types if t.is_static()] + types))

    def while_loop(self) -> None:
        """A loop with a counter among its carried values, so that it ends."""
        carried, invariants = self.several(2), self.several(2)
        place = self.draw(st.integers(0, len(carried)))
        carried.insert(place, self.some(scalar(I64)))
        inputs = carried + invariants
        types = [value.tensor for value in inputs]
        trips = self.builder.emit("maximum", carried[place], self.builder.constant(0))
        inputs[place] = trips
        test, body = self._test(types, place), self.region("body", types)
        body.add_steps(3)
        step = body.builder.constant(self.draw(st.integers(1, 3)))
        following = [body.some(type) for type in body.own(types[: len(carried)])]
        following[place] = body.builder.emit("add", body.builder.params[place], step)
        regions = [test, body.builder.finish(following)]
        self.structured("while", inputs, regions, carried=len(carried))

    def _test(self, types: list[TensorType], place: int) -> Graph:
        test = self.region("test", types)
        test.add_steps(2)
        limit = test.builder.constant(self.draw(st.integers(0, LONGEST_LOOP)))
        pred = test.builder.emit("less", test.builder.params[place], limit)
        if self.draw(st.booleans()):
            pred = test.builder.emit("logical_and", test.some(scalar(BOOL)), pred)
        return test.builder.finish([pred])

    def scan(self) -> None:
        carried, invariants = self.several(2), self.several(2)
        limit = self.builder.constant(LONGEST_LOOP)
        trips = self.builder.emit("minimum", self.some(scalar(I64)), limit)
        types = [value.tensor for value in carried + invariants]
        body = self.region("body", [scalar(I64), *types])
        body.add_steps(3)
        following = [body.some(type) for type in body.own(types[: len(carried)])]
        inputs = [trips, *carried, *invariants]
        self.structured("scan", inputs, [body.builder.finish(following)], carried=len(carried))
