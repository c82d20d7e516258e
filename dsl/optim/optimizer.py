"""What all optimisers share: walking the trees, sparse gradients, updates in place, compiled training steps.

An optimiser adds the names and first values of its slots, arrays of a parameter's shape that live from step to step, and one
formula over arrays. The formula sees whole parameters, or the touched rows of one whose gradient is a `Rows`.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsl import numpy as dnp
from dsl.compile import Compiled
from dsl.errors import GradientError, UnsupportedError
from dsl.frontend.calls import call
from dsl.frontend.scopes import here
from dsl.frontend.traced import Traced
from dsl.frontend.trees import unflatten
from dsl.optim.clipping import check_clip
from dsl.optim.graphs import minimize_tensor
from dsl.optim.leaves import (
    as_dtype,
    check_distinct,
    check_gradient,
    check_parameter,
    check_writable,
    is_zero,
    match,
    with_paths,
)
from dsl.optim.ranges import check_numbers
from dsl.optim.rows import Rows
from dsl.optim.schedules import rate_at
from dsl.transforms.gradients import value_and_grad

__all__ = ["Decaying", "Optimizer", "Slots", "State"]

Slots = dict[str, Any]
"""The slots of one parameter by name."""


@dataclass(frozen=True, eq=False)
class State:
    """What an optimiser keeps: the number of updates done, and for each slot a tree like the parameters."""

    step: Any
    slots: dict[str, Any]


@dataclass(frozen=True)
class _Leaf:
    """A parameter with its gradient and its slots."""

    path: str
    p: Any
    g: Any
    slots: Slots


@dataclass(frozen=True)
class Optimizer(ABC):
    """An update rule with its numbers; immutable, and equal to another with the same numbers.

    `learning_rate` is a number or a function of the step, such as those of `dsl.optim`'s schedules. Code is compiled for these
    numbers; where an optimiser is an argument of a compiled function, or is made inside it, they may change without that.
    """

    learning_rate: Any

    def __post_init__(self) -> None:
        check_numbers(self)

    # -- what an optimiser is ---------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, p: Any) -> Slots:
        """Return the first values of the slots of a parameter."""

    @abstractmethod
    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """Return a parameter and its slots after an update; `step` counts from 1."""

    # -- what users call --------------------------------------------------------------------------------------------

    def init(self, params: Any) -> State:
        """Return the state before the first update of `params`."""
        leaves, structure = with_paths(params)
        check_distinct(leaves)
        for path, p in leaves:
            check_parameter(path, p)
        slots = [self.start(dnp.asarray(p)) for _, p in leaves]
        trees = {name: unflatten(structure, [s[name] for s in slots]) for name in self._names()}
        return State(dnp.zeros((), np.int64), trees)

    def update(self, grads: Any, state: State, params: Any) -> tuple[Any, State]:
        """Return the parameters and the state after one update; the arrays passed in stay as they are.

        `grads` is a tree like `params`. In place of an array it may have a `Rows`, which changes the rows that it names and
        their slots alone, or None, which leaves a parameter and its slots as they are.
        """
        leaves, structure = self._leaves(grads, state, params)
        rate, step = self._rate(state), state.step + 1
        found = [self._updated(leaf, rate, step) for leaf in leaves]
        slots = {
            name: unflatten(structure, [slots[name] for _, slots in found]) for name in state.slots
        }
        return unflatten(structure, [p for p, _ in found]), State(dnp.asarray(step), slots)

    def apply(self, grads: Any, state: State, params: Any) -> None:
        """Do what `update` does in place: write into the arrays of `params` and `state`."""
        leaves, _ = self._leaves(grads, state, params)
        check_writable("state.step", state.step)
        for leaf in leaves:
            for path, array in ((leaf.path, leaf.p), *leaf.slots.items()):
                check_writable(path, array)
        rate, step = self._rate(state), state.step + 1
        for leaf in leaves:
            self._write(leaf, rate, step)
        state.step[...] = step

    def minimize(
        self, loss: Any, *, in_place: bool = False, has_aux: bool = False,
        clip: Callable[[Any], Any] | None = None, variables: Sequence[Any] | None = None,
    ) -> Any:  # fmt: skip
        """Return one compiled training step for `loss(params, *batch)`.

        `step(params, state, *batch)` returns the loss before the update, the parameters and the state. With `in_place` it
        writes into the arrays of both and returns the loss alone. With `has_aux` the function returns a pair, and the step
        returns that pair for the loss. `clip` is applied to the tree of gradients.

        >>> from dsl.optim import SGD
        >>> opt = SGD(0.5)
        >>> step = opt.minimize(lambda w: w * w, in_place=True)
        >>> w = np.array(4.0)
        >>> state = opt.init(w)
        >>> float(step(w, state)), float(w), int(state.step)
        (16.0, 0.0, 1)

        With a tensor of a graph for `loss`, it returns the operation that changes the variables it depends on, those of
        `variables` or all that are trainable.
        """
        check_clip(clip)
        if isinstance(loss, Traced):
            return minimize_tensor(self, loss, variables, clip)
        if not callable(loss):
            raise UnsupportedError(
                f"minimize takes a function of the parameters, got {loss!r}",
                location=here(), remedy="write `def loss(params, *batch): ... return a number`",
            )  # fmt: skip
        key = ("minimize", self, in_place, has_aux, clip)
        held: dict[Any, Compiled[..., Any]] = {}
        if isinstance(loss, types.FunctionType):
            held = loss.__dict__.setdefault("__dsl_steps__", held)
        if key not in held:
            held[key] = self._compiled(loss, in_place, has_aux, clip)
        return held[key]

    def dsl_wraps(self) -> tuple[Any, ...]:
        """What is outside of a trace if this is."""
        return (self.learning_rate,) if callable(self.learning_rate) else ()

    # -- how -----------------------------------------------------------------------------------------------------------

    def _compiled(
        self,
        loss: Callable[..., Any],
        in_place: bool,
        has_aux: bool,
        clip: Callable[[Any], Any] | None,
    ) -> Compiled[..., Any]:
        def step(params: Any, state: State, *batch: Any, **options: Any) -> Any:
            value, grads = value_and_grad(loss, has_aux=has_aux)(params, *batch, **options)
            grads = grads if clip is None else call(clip, grads)
            if in_place:
                self.apply(grads, state, params)
                return value
            return value, *self.update(grads, state, params)

        step.__name__ = f"{getattr(loss, '__name__', 'loss')}_step".replace("<lambda>", "loss")
        return Compiled(step)

    def _leaves(self, grads: Any, state: State, params: Any) -> tuple[list[_Leaf], Any]:
        self._check_state(state)
        own, structure = with_paths(params)
        gs = match(structure, grads, "grads", "pass what `dsl.grad` returns for these parameters")
        remedy = "pass the state that `init` made for these parameters"
        columns = [
            match(structure, tree, f"state.slots[{name!r}]", remedy)
            for name, tree in state.slots.items()
        ]
        for (path, p), g in zip(own, gs):
            check_parameter(path, p)
            check_gradient("grads" + path.removeprefix("params"), p, g)
        rows = zip(*columns) if columns else ((),) * len(own)
        leaves = [
            _Leaf(path, p, g, dict(zip(state.slots, row)))
            for (path, p), g, row in zip(own, gs, rows)
        ]
        return leaves, structure

    def _names(self) -> list[str]:
        return list(self.start(dnp.zeros(())))

    def _check_state(self, state: State) -> None:
        needed = self._names()
        if set(needed) != set(state.slots):
            got, wanted = (", ".join(names) or "none" for names in (state.slots, needed))
            raise GradientError(
                f"the state is not this optimiser's: it has slots {got}, {type(self).__name__} needs {wanted}", location=here(),
                remedy="pass the state that `init` of this optimiser made",
            )  # fmt: skip

    def _rate(self, state: State) -> Any:
        return rate_at(self.learning_rate, state.step)

    def stepped(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """Apply the rule; what it returns has the dtypes of what it took."""
        dtype = p.dtype
        new, kept = self.rule(p, as_dtype(g, dtype), slots, as_dtype(rate, dtype), step)
        return as_dtype(new, dtype), {
            name: as_dtype(kept[name], slots[name].dtype) for name in slots
        }

    def _updated(self, leaf: _Leaf, rate: Any, step: Any) -> tuple[Any, Slots]:
        if leaf.g is None:
            return leaf.p, leaf.slots
        p = dnp.asarray(leaf.p)
        if isinstance(leaf.g, Rows):
            p, slots = p.copy(), {name: slot.copy() for name, slot in leaf.slots.items()}
            self.touch(p, leaf.g, slots, rate, step)
            return p, slots
        new, slots = self.stepped(p, leaf.g, leaf.slots, rate, step)
        return dnp.asarray(new), {name: dnp.asarray(slot) for name, slot in slots.items()}

    def _write(self, leaf: _Leaf, rate: Any, step: Any) -> None:
        if isinstance(leaf.g, Rows):
            self.touch(leaf.p, leaf.g, leaf.slots, rate, step)
        elif leaf.g is not None:
            new, slots = self.stepped(leaf.p, leaf.g, leaf.slots, rate, step)
            leaf.p[...] = new
            for name, slot in slots.items():
                leaf.slots[name][...] = slot

    def touch(self, p: Any, g: Rows, slots: Slots, rate: Any, step: Any) -> None:
        """Update the rows that a sparse gradient names, in place: take them out, apply the rule, write them back."""
        g = replace(g, shape=p.shape).summed()
        rows = g.indices
        taken = {name: slot[rows] for name, slot in slots.items()}
        new, kept = self.stepped(p[rows], g.values, taken, rate, step)
        p[rows] = new
        for name, slot in slots.items():
            slot[rows] = kept[name]


@dataclass(frozen=True)
class Decaying(Optimizer):
    """Optimisers that also shrink parameters: `p -= learning_rate * weight_decay * p`, apart from the gradient's rule.

    Of a parameter with a sparse gradient the touched rows shrink.
    """

    weight_decay: float = field(default=0.0, kw_only=True)

    def shrunk(self, p: Any, rate: Any) -> Any:
        """Return the parameter to subtract a step from."""
        return p if is_zero(self.weight_decay) else p - rate * self.weight_decay * p
