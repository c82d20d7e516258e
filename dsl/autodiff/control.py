"""Reverse mode through branches and loops.

The forward half of a branch or loop returns, besides its results, the values that its backward half asks for. Those of a
loop are stacked over its trips by `recording_scan` and `recording_while`; arrays whose size changes from trip to trip are
flattened and joined, and their sizes stacked. The backward half of a loop is a `scan` over as many trips, from the last to
the first; cotangents of what all trips share are added up as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import LOOPS, is_joined, loop_activity, loop_liveness
from dsl.autodiff.region import Region, bind_trips, inline, is_known, rows_of
from dsl.autodiff.reverse import Backward, Reverse, Step
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.derivative import Cotangent, Part, total
from dsl.ir.dims import DimLike, Symbol
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.types import I64, TensorType, scalar, size_of

__all__ = ["step_of"]


def step_of(whole: Reverse, node: Node) -> Step:
    """Copy control flow forward."""
    if node.op.name == "cond":
        return _Branch(whole, node)
    if node.op.name in LOOPS:
        if whole.segmented and node.op.name in ("while", "scan"):
            from dsl.autodiff.segments import segmented

            return _Call(whole, node, segmented(node))
        return _Loop(whole, node)
    from dsl.autodiff.calls import call_step

    return call_step(whole, node)


class _Call:
    """A node that is replaced by a graph of the same meaning."""

    def __init__(self, whole: Reverse, node: Node, graph: Graph) -> None:
        args = [whole.values[value] for value in node.inputs]
        active = [value in whole.flow.active for value in node.inputs]
        wanted = [value in whole.flow.live for value in node.outputs]
        self.live = [value in whole.flow.live for value in node.inputs]
        self.inner = Reverse(
            graph, whole.builder, args, active, wanted, looping=whole.looping, effects=whole.effects
        )
        self.outputs = self.inner.outputs

    def pull(
        self, a: Algebra, gs: list[Value | None], sums: list[Value | None]
    ) -> list[Value | None]:
        given = {k: value for k, value in enumerate(sums) if value is not None}
        found = self.inner.pull(a.builder, gs, given)
        return [
            combine(a, parts) if parts and on else so_far
            for parts, on, so_far in zip(found, self.live, sums, strict=True)
        ]


def _fitting(a: Algebra, g: Value, type: TensorType) -> Value:
    """Give a cotangent the sizes that its value has here, which are the same when the program runs."""
    return a.reshaped(g, type.shape)


# -- branches -----------------------------------------------------------------------------------------------------


class _Half:
    """One branch: its forward region, and the backward one with what each operand gets there."""

    def __init__(self, whole: Reverse, node: Node, graph: Graph) -> None:
        flow = whole.flow
        self.forward = Region(graph.name, whole.builder)
        self.params = [self.forward.param(p.type, p.node.attrs["name"]) for p in graph.params]
        active = [value in flow.active for value in node.inputs[1:]]
        wanted = [value in flow.live for value in node.outputs]
        self.body = Reverse(
            graph, self.forward, self.params, active, wanted,
            looping=whole.looping, segmented=whole.segmented, effects=whole.effects,
        )  # fmt: skip
        self.backward = Backward("backward", self.forward, (), costly_only=not whole.looping)
        self.seeds = {k: self.backward.param(node.types[k]) for k, on in enumerate(wanted) if on}
        a = Algebra(self.backward)
        gs = [
            _fitting(a, self.seeds[k], result.tensor) if k in self.seeds else None
            for k, result in enumerate(graph.results)
        ]
        self.found = self.body.pull(self.backward, gs)
        self.results: list[Value] = []
        self.extra: list[Value] = []  # what the forward region returns for the backward ones

    def finish(self, k: int, whole_sum: bool) -> Value | None:
        """Add up what operand `k` gets, into what it has so far if that is wanted; return the param for that."""
        a, found = Algebra(self.backward), self.found[k]
        so_far = self.backward.param(self.params[k].type) if whole_sum else None
        terms: list[Cotangent] = [*([so_far] if so_far is not None else []), *found]
        zeros = None if terms else a.zeros(self.params[k].tensor)
        self.results.append(zeros if zeros is not None else combine(a, terms, in_place=True))
        return so_far

    def asked(self, operands: Sequence[Value]) -> dict[Value, Value]:
        """Map requested values that are outside already to where they are there."""
        outside = dict(zip(self.params, operands, strict=True))
        outside.update({inner: outer for outer, inner in self.forward.captured.items()})
        return outside


class _Branch:
    def __init__(self, whole: Reverse, node: Node) -> None:
        builder, flow = whole.builder, whole.flow
        self.node = node
        self.pred, *self.operands = [whole.values[value] for value in node.inputs]
        self.live = [value in flow.live for value in node.inputs[1:]]
        self.halves = [_Half(whole, node, region) for region in node.regions]
        self.summed = {
            k for k, on in enumerate(self.live)
            if on and any(isinstance(g, Part) for half in self.halves for g in half.found[k])
        }  # fmt: skip
        places = [k for k, on in enumerate(self.live) if on]
        self.sums = [{k: half.finish(k, k in self.summed) for k in places} for half in self.halves]
        outputs = self._forward(builder)
        self.outputs = outputs[: len(node.outputs)]
        self._plan(outputs[len(node.outputs) :])

    def _forward(self, builder: Builder) -> tuple[Value, ...]:
        """Make the cond that also returns what the backward halves ask for; the other branch returns zeros for it."""
        self.kept = [
            [v for v in half.backward.requests if v not in half.asked(self.operands)]
            for half in self.halves
        ]
        extra = [v.type for kept in self.kept for v in kept]
        for number, half in enumerate(self.halves):
            a = Algebra(half.forward)
            half.extra = [
                v if own == number else a.zeros(v.tensor)
                for own, kept in enumerate(self.kept) for v in kept
            ]  # fmt: skip
        captured = dict.fromkeys(v for half in self.halves for v in half.forward.captured)
        regions = []
        for half in self.halves:
            inside = [half.forward.capture(value) for value in captured]
            done = half.forward.finish([*half.body.outputs, *half.extra])
            regions.append(Graph(done.name, (*half.params, *inside), done.results, done.effects))
        made = builder.node(
            "cond", [self.pred, *self.operands, *captured], {}, regions=regions,
            types=[*self.node.types, *extra], loc=self.node.loc,
        )  # fmt: skip
        return made.outputs

    def _plan(self, saved: Sequence[Value]) -> None:
        """Decide the operands of the backward cond: `given` maps each to its param in either half."""
        left = iter(saved)
        sources = [half.asked(self.operands) for half in self.halves]
        for kept, source in zip(self.kept, sources):
            source.update({v: next(left) for v in kept})
        self.given: dict[Value, list[Value | None]] = {}
        for number, half in enumerate(self.halves):
            for inner, param in half.backward.requests.items():
                self.given.setdefault(sources[number][inner], [None, None])[number] = param

    def pull(
        self, a: Algebra, gs: list[Value | None], sums: list[Value | None]
    ) -> list[Value | None]:
        seeds = list(self.halves[0].seeds)
        types = [self.operands[k].tensor for k in range(len(self.operands))]
        inputs = [_or_zeros(a, gs[k], self.node.outputs[k].tensor) for k in seeds]
        inputs += [_or_zeros(a, sums[k + 1], types[k]) for k in sorted(self.summed)]
        regions = [self._region(number, seeds) for number in range(2)]
        places = [k for k, on in enumerate(self.live) if on]
        made = a.builder.node(
            "cond", [self.pred, *inputs, *self.given], {}, regions=regions,
            types=[types[k] for k in places],
        )  # fmt: skip
        found: list[Value | None] = [None, *sums[1:]]
        for k, value in zip(places, made.outputs, strict=True):
            so_far = sums[k + 1]
            found[k + 1] = value if k in self.summed or so_far is None else total(a, so_far, value)
        return found

    def _region(self, number: int, seeds: Sequence[int]) -> Graph:
        half = self.halves[number]
        params = [half.seeds[k] for k in seeds]
        params += [self.sums[number][k] for k in sorted(self.summed)]  # type: ignore[misc]
        for outer, inner in self.given.items():
            found = inner[number]
            params.append(half.backward.param(outer.type) if found is None else found)
        done = half.backward.finish(half.results)
        return Graph(half.forward.name, tuple(params), done.results, done.effects)


def _or_zeros(a: Algebra, g: Value | None, type: TensorType) -> Value:
    return a.zeros(type) if g is None else g


# -- loops --------------------------------------------------------------------------------------------------------


class _Trips(Backward):
    """The backward half of a loop's body. Values of one trip are read from stacks over all trips, of `size` rows.

    Arrays whose size is the trip's own are parts of flat arrays that join those of all trips. `stacks` and `joints` map
    forward values to the params they come in by, and `offsets` lengths of parts to the param that says where they begin.
    """

    def __init__(
        self, forward: Region, free: Sequence[Value], number: Value, size: DimLike
    ) -> None:
        super().__init__("backward", forward, free)
        self.number, self.size_of_stack = number, size
        self.trip = self.param(scalar(I64), "trip")
        self.trips = self.param(scalar(I64), "trips")
        self.at = Algebra(self).subtract(Algebra(self).subtract(self.trips, 1), self.trip)
        self.stacks: dict[Value, Value] = {}
        self.joints: dict[Value, Value] = {}
        self.offsets: dict[Value, Value] = {}

    def request(self, value: Value) -> Value:
        if value is self.number:
            at: Value = self.at
            return at
        if self.is_free(value):
            return super().request(value)
        if is_known(self.forward.parent, value.type):
            return self.row(self._stack(value), value.tensor)
        return self._join(value)

    def _stack(self, value: Value) -> Value:
        if value not in self.stacks:
            type = value.tensor.with_shape((self.size_of_stack, *value.shape))
            self.stacks[value] = self.param(type)
        return self.stacks[value]

    def _join(self, value: Value) -> Value:
        flat = Algebra(self.forward).reshaped(value, (size_of(value.shape),))
        if flat not in self.joints:
            self.joints[flat] = self.param(flat.tensor.with_shape((Symbol("total"),)))
        return Algebra(self).reshaped(self.part(self.joints[flat], flat), value.shape)

    def row(self, stack: Value, type: TensorType) -> Value:
        """Read the row of this trip."""
        a = Algebra(self)
        return a.reshaped(a.dynamic_slice(stack, self.at, axis=0, size=1, step=1), type.shape)

    def part(self, joined: Value, value: Value) -> Value:
        """Read what a forward value of this trip contributed to the joined ones, or a cotangent of that."""
        length = self.forward.size(value.shape[0])
        if length not in self.offsets:
            type = self._stack(length).tensor
            self.offsets[length] = self.param(type)
        start = self.row(self.offsets[length], scalar(I64))
        return Algebra(self).dynamic_slice(joined, start, axis=0, size=value.shape[0], step=1)


class _Loop:
    def __init__(self, whole: Reverse, node: Node) -> None:
        self.whole, self.node = whole, node
        self.first, self.count = LOOPS[node.op.name], node.attrs["carried"]
        self.inputs = [whole.values[value] for value in node.inputs]
        flow = whole.flow
        active = [value in flow.active for value in node.inputs]
        wanted = [value in flow.live for value in node.outputs]
        live = loop_liveness(node, active, wanted)
        end = self.first + self.count
        self.carried = [k for k in range(self.count) if live[self.first + k]]
        self.shared = [k for k in range(end, len(live)) if live[k]]
        self.recorded = [k for k in range(self.count, len(wanted)) if wanted[k]]
        carried, _ = loop_activity(node, active)
        mask = [False] * self.first + carried + active[end:]
        wants = [k in self.carried for k in range(self.count)] + wanted[self.count :]
        self._copy_body(mask, wants)
        self._differentiate()
        self._forward()

    # -- forward ---------------------------------------------------------------------------------------------------

    def _copy_body(self, active: list[bool], wanted: list[bool]) -> None:
        builder, graph = self.whole.builder, self.node.regions[-1]
        self.region = Region(graph.name, builder)
        self.params = [self.region.param(p.type, p.node.attrs["name"]) for p in graph.params]
        self.body = Reverse(
            graph, self.region, self.params, active, wanted,
            looping=True, segmented=self.whole.segmented, effects=self.whole.effects,
        )  # fmt: skip
        self.counts = self.first == 0
        self.number = self.region.param(scalar(I64), "trip") if self.counts else self.params[0]
        self.size = self._rows(builder)

    def _rows(self, builder: Builder) -> DimLike:
        """The rows of stacks over the trips; those of a `while` are known if it records something already."""
        found = rows_of(self.node) if self.counts else builder.as_dim(self.inputs[0])
        # Of an array that is known to have no rows none can be read, not even in a loop without trips.
        return Symbol("trips") if found is None or found == 0 else found

    def _forward(self) -> None:
        """Make the loop that also stacks what the backward half asks for."""
        builder, node, end = self.whole.builder, self.node, self.first + self.count
        saved = {**self.back.stacks, **self.back.joints}
        results = [
            *self.body.outputs[: self.count],
            *self._more_carried(),
            *self.body.outputs[self.count :],
            *saved,
        ]
        counter = [self.number] if self.counts else []
        params = [*self.params[:end], *counter, *self.params[end:]]
        body = self.region.graph(params, results)
        captured = list(self.region.captured)
        start = [builder.constant(0, I64)] if self.counts else []
        types = [
            *node.types[: self.count],
            *([scalar(I64)] if self.counts else []),
            *node.types[self.count :],
        ]
        types += [param.type for param in saved.values()]
        made = builder.node(
            f"recording_{'while' if self.counts else 'scan'}",
            [*self.inputs[:end], *start, *self.inputs[end:], *captured],
            {"carried": self.count + len(counter)},
            regions=[*self._test(params, captured), body], types=types, loc=node.loc,
        )  # fmt: skip
        outputs = list(made.outputs)
        self.total = outputs.pop(self.count) if self.counts else self.inputs[0]
        bind_trips(builder, made)
        self.outputs = outputs[: len(node.outputs)]
        self.saved = dict(zip(saved, outputs[len(node.outputs) :], strict=True))

    def _more_carried(self) -> list[Value]:
        return [Algebra(self.region).add(self.number, 1)] if self.counts else []

    def _test(self, params: Sequence[Value], captured: Sequence[Value]) -> list[Graph]:
        if not self.counts:
            return []
        test = Region("test", self.whole.builder)
        own = [test.param(value.type) for value in (*params, *captured)]
        taken = own[: self.count] + own[self.count + 1 : len(params)]
        done = test.finish(inline(test, self.node.regions[0], taken, effects=self.whole.effects))
        return [Graph("test", tuple(own), done.results, done.effects)]

    # -- backward --------------------------------------------------------------------------------------------------

    def _differentiate(self) -> None:
        """Build the backward half of the body."""
        node, end = self.node, self.first + self.count
        free = [self.number, *self.params[end:]]
        back = self.back = _Trips(self.region, free, self.number, self.size)
        a = Algebra(back)
        graph = node.regions[-1]
        # What all trips carry tells more sizes apart than what the body makes: 1 before the first, 7 after each.
        self.seeds = [
            back.param(self._loose(self.params[self.first + k].tensor)) for k in self.carried
        ]
        self.sums = {k: back.param(self.params[k].type) for k in self.shared}
        self.streams = [back.param(self._stream(k)) for k in self.recorded]
        gs: list[Value | None] = [None] * len(graph.results)
        for k, seed in zip(self.carried, self.seeds):
            gs[k] = _fitting(a, seed, graph.results[k].tensor)
        for k, stream in zip(self.recorded, self.streams):
            gs[k] = self._streamed(stream, k)
        found = self.body.pull(back, gs, self.sums)
        self.results = [
            combine(a, found[self.first + k], in_place=True)
            if found[self.first + k]
            else a.zeros(self.params[self.first + k].tensor)
            for k in self.carried
        ]
        self.results += [combine(a, found[k], in_place=True) for k in self.shared]

    def _loose(self, type: TensorType) -> TensorType:
        """The type of a carried cotangent: sizes that only the body knows change from trip to trip."""
        builder = self.whole.builder
        dims = (
            d if is_known(builder, TensorType(type.dtype, (d,))) else Symbol("d")
            for d in type.shape
        )
        return type.with_shape(dims)

    def _stream(self, k: int) -> TensorType:
        """The type of the cotangent of what the loop records already."""
        type = self.node.outputs[k].tensor
        return type if is_joined(self.node, k) else type.with_shape((self.size, *type.shape[1:]))

    def _streamed(self, stream: Value, k: int) -> Value:
        """Read the cotangent of what this trip recorded."""
        type = self.node.regions[-1].results[k].tensor
        if not is_joined(self.node, k):
            return self.back.row(stream, type)
        return _fitting(Algebra(self.back), self.back.part(stream, self.body.outputs[k]), type)

    def pull(
        self, a: Algebra, gs: list[Value | None], sums: list[Value | None]
    ) -> list[Value | None]:
        node, back, given = self.node, self.back, self._given(a)
        starts = [_or_zeros(a, gs[k], node.outputs[k].tensor) for k in self.carried]
        starts += [_or_zeros(a, sums[k], self.inputs[k].tensor) for k in self.shared]
        streams = [_or_zeros(a, gs[k], node.outputs[k].tensor) for k in self.recorded]
        params = [back.trip, *self.seeds, *self.sums.values(), back.trips, *self.streams, *given]
        body = back.finish(self.results)
        made = a.builder.node(
            "scan", [self.total, *starts, self.total, *streams, *given.values()],
            {"carried": len(starts)},
            regions=[Graph("backward", tuple(params), body.results, body.effects)],
            types=self._types(), loc=node.loc,
        )  # fmt: skip
        found: list[Value | None] = list(sums)
        for k, moved in zip(self.carried, made.outputs):
            value, so_far = (
                _fitting(a, moved, self.inputs[self.first + k].tensor),
                sums[self.first + k],
            )
            found[self.first + k] = value if so_far is None else total(a, so_far, value)
        for k, value in zip(self.shared, made.outputs[len(self.carried) :]):
            found[k] = value
        return found

    def _given(self, a: Algebra) -> dict[Value, Value]:
        """Map the params by which forward values come into the backward half to where these are now."""
        back, outer = self.back, dict(zip(self.params, self.inputs, strict=True))
        outer.update({inner: value for value, inner in self.region.captured.items()})
        given = {param: outer[v] for v, param in back.requests.items()}
        given |= {param: self.saved[v] for v, param in (*back.stacks.items(), *back.joints.items())}
        return given | {param: self._offsets(a, v) for v, param in back.offsets.items()}

    def _offsets(self, a: Algebra, length: Value) -> Value:
        """Return where the parts of each trip begin, which have the lengths that are stacked."""
        lengths = self.saved[length]
        return a.subtract(a.cumsum(lengths, axis=0), lengths)

    def _types(self) -> list[Any]:
        carried = [self._loose(self.params[self.first + k].tensor) for k in self.carried]
        return carried + [self.inputs[k].tensor for k in self.shared]
