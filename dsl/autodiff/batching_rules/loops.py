"""Rules of loops.

Which carried values are batched is found by following the body until nothing more becomes batched. If all items make the
same number of trips, that is all. Otherwise the loop runs as long as any item does, and items that are done keep their
values. The body goes on to compute with those, so it must be one that ends, in silence, on any data: the values that ended
an item's loop are just those for which its body need not work, such as an index past the end. Other loops run for one item
after the other.

Stacks of a recording loop, and what it joins, come with the trips in front and the batch behind them, which is then moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsl.autodiff.batching_rules.items import one_by_one
from dsl.autodiff.batching_rules.regions import (
    Half,
    emit,
    half,
    or_one_by_one,
    runs_for_all,
    select,
    stack_types,
)
from dsl.autodiff.batching_rules.table import Flags, Outputs, Values, batches, refusal
from dsl.autodiff.flow import LOOPS, is_joined
from dsl.autodiff.region import Region
from dsl.ir.dims import DimLike, symbols_of
from dsl.ir.graph import Node, Value
from dsl.ir.types import TensorType, ValueType

if TYPE_CHECKING:
    from dsl.autodiff.batching import Batching


@batches("while", "scan", "recording_while", "recording_scan")
@or_one_by_one
def loop(a: Batching, node: Node, inputs: Values, batched: Flags, size: DimLike) -> Outputs:
    found = _Loop(a, node, inputs, batched)
    while found.grow():
        pass
    if not found.differs:
        return found.together()
    if node.op.name.startswith("recording"):
        raise refusal(
            node, "items would differ in how many trips they make, and so in what is kept"
        )
    if not runs_for_all(node):
        return one_by_one(a, node, inputs, batched, size)
    return found.masked_while() if node.op.name == "while" else found.masked_scan()


class _Loop:
    """A loop on its way.

    `flags` says which params of its regions are batched, `types` what they are for one item, and `differs` whether items
    make different numbers of trips.
    """

    def __init__(self, a: Batching, node: Node, inputs: Values, batched: Flags) -> None:
        self.a, self.node, self.inputs, self.batched = a, node, inputs, batched
        first, count = LOOPS[node.op.name], node.attrs["carried"]
        self.count, self.carried = count, slice(first, first + count)
        self.differs = any(batched[:first])
        self.flags = [False] * first + list(batched[first:])  # a trip has one number for all items
        self.types = self._item_types()

    # -- types -----------------------------------------------------------------------------------------------------

    def _item_types(self) -> list[ValueType]:
        """Take the types of the inputs; what changes its size on the way keeps a size of its own."""
        body = self.node.regions[-1]
        pairs = zip(body.params[self.carried], body.results)
        general = _general(self.a, [old.type for old, new in pairs if old.type != new.type])
        return [general.get(param.type, self._item_type(k)) for k, param in enumerate(body.params)]

    def _item_type(self, k: int) -> ValueType:
        value = self.inputs[k]
        return value.tensor.with_shape(value.shape[1:]) if self.batched[k] else value.type

    def _param_types(self) -> list[ValueType]:
        return stack_types(self.a, self.types, self.flags)

    def _result_types(self) -> list[ValueType]:
        return stack_types(self.a, self.node.types[: self.count], self.flags[self.carried])

    def _record_types(self, batched: Flags) -> list[ValueType]:
        pairs = zip(self.node.outputs[self.count :], batched, strict=True)
        size = self.a.size
        return [
            v.tensor.with_shape((v.shape[0], size, *v.shape[1:])) if on else v.type
            for v, on in pairs
        ]

    # -- which values are batched ----------------------------------------------------------------------------------

    def grow(self) -> bool:
        """Follow the loop once around; tell whether more of it became batched."""
        self.halves = [
            half(self.a, region, self._param_types(), self.flags) for region in self.node.regions
        ]
        *tests, body = self.halves
        differs = self.differs or any(test.flags[0] for test in tests)
        before = self.flags[self.carried]
        new = zip(before, body.flags, body.params[self.carried], body.results)
        grown = [on or now or (differs and old is not v) for on, now, old, v in new]
        changed = (grown, differs) != (before, self.differs)
        self.flags[self.carried], self.differs = grown, differs
        return changed

    # -- emission --------------------------------------------------------------------------------------------------

    def _start(self) -> list[Value]:
        """Return the inputs of the new loop: carried values that become batched on the way start so."""
        given = zip(self.inputs, self.batched, self.flags, strict=True)
        return [self.a.repeated(v, has or not on) for v, has, on in given]

    def together(self) -> Outputs:
        """Let all items make the same trips."""
        body, carried = self.halves[-1], self.flags[self.carried]
        recorded = body.flags[self.count :]
        flags = [*carried, *recorded]
        body.repeat(flags)
        body.results = [
            body.a.moved(v, 0, 1) if on and is_joined(self.node, k) else v
            for k, (v, on) in enumerate(zip(body.results, flags, strict=True))
        ]
        types = [*self._result_types(), *self._record_types(recorded)]
        made = emit(self.a, self.node, self._start(), self.halves, types)
        stacks = zip(made[self.count :], recorded, strict=True)
        moved = [self.a.moved(v, 1, 0) if on else v for v, on in stacks]
        return [*made[: self.count], *moved], flags

    def masked_scan(self) -> Outputs:
        """Run to the largest number of trips."""
        (body,), (trips, *start) = self.halves, self._start()
        self._freeze(body, body.a.less(body.params[0], body.region.local(trips)))
        none = self.a.builder.constant(0, trips.dtype)
        most = self.a.max(self.a.pad(trips, none, low=(1,), high=(0,)), axes=(0,))
        made = emit(self.a, self.node, [most, *start], self.halves, self._result_types())
        return made, self.flags[self.carried]

    def masked_while(self) -> Outputs:
        """Carry, before the others, which items go on."""
        test, start, body = self.node.regions[0], self._start(), self.halves[-1]
        (goes_on,), _ = self.a.run(test, start, self.flags)
        mask = body.region.param(goes_on.type, "goes_on")
        self._freeze(body, mask)
        after = [*body.results, *body.params[self.count :]]
        again, _ = body.a.run(test, after, self.flags)
        body.params, body.results = [mask, *body.params], [*again, *body.results]
        halves, types = [self._any(mask.type), body], [mask.type, *self._result_types()]
        made = emit(self.a, self.node, [goes_on, *start], halves, types, carried=self.count + 1)
        return made[1:], self.flags[self.carried]

    def _any(self, mask: ValueType) -> Half:
        """Return the test whether any item goes on."""
        test = self.a.inside(Region(self.node.regions[0].name, self.a.builder))
        params = [test.builder.param(type) for type in (mask, *self._param_types())]
        return Half(test, params, [test.any(params[0], axes=(0,))], [False])

    def _freeze(self, body: Half, goes_on: Value) -> None:
        """Let items that are done keep what they carry."""
        flags, old = self.flags[self.carried], body.params[self.carried]
        body.repeat(flags)
        body.results = [
            select(body.a, self.node, goes_on, new, kept) if on else new
            for new, kept, on in zip(body.results, old, flags, strict=True)
        ]


def _general(a: Batching, types: Sequence[ValueType]) -> dict[ValueType, ValueType]:
    """Map types to the same with fresh sizes."""
    inner = a.inside(a.builder)
    for type in types:
        for symbol in symbols_of(*type.shape) if isinstance(type, TensorType) else ():
            inner.sizes.pop(symbol, None)
    inner.invent(types)
    return {type: inner.sized(type) for type in types}
