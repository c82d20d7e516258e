"""Optimisers in graphs: `optimizer.minimize(loss)` of a tensor makes the nodes of one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsl.errors import GradientError
from dsl.frontend.scopes import current_trace, here
from dsl.frontend.traced import Traced, read
from dsl.optim.schedules import rate_at
from dsl.session.graph import Operation, control_dependencies, group
from dsl.transforms.scoped import gradients, needed_variables
from dsl.variables import Variable

if TYPE_CHECKING:
    from dsl.optim.optimizer import Optimizer

__all__ = ["minimize_tensor"]


def minimize_tensor(
    optimizer: Optimizer, loss: Traced, variables: Sequence[Any] | None,
    clip: Callable[[Any], Any] | None,
) -> Operation:  # fmt: skip
    """Return the operation that updates variables by the gradient of a loss; its slots are variables too."""
    chosen = _chosen(loss, variables)
    grads = gradients(loss, chosen)
    if clip is not None:
        grads = list(clip(grads))
    step = Variable(np.int64(0), name="step", trainable=False)
    old = step.read()
    rate, number = rate_at(optimizer.learning_rate, old), old + 1
    with control_dependencies([loss]):
        done = [_updated(optimizer, v, g, rate, number) for v, g in zip(chosen, grads)]
        return group(*[t for part in done for t in part], step.assign(number), name="train")


def _chosen(loss: Traced, variables: Sequence[Any] | None) -> list[Any]:
    trace = current_trace()
    if trace is None or not trace.is_graph:
        raise GradientError(
            "`minimize` of a tensor makes nodes of a graph", location=here(),
            remedy="write it inside `with graph:`, or pass a function of the parameters",
        )  # fmt: skip
    if loss.ndim:
        raise GradientError(
            f"the loss must be one number, not {loss.type}", location=here(),
            remedy="take its mean: `np.mean(loss)`",
        )  # fmt: skip
    chosen = list(variables) if variables is not None else needed_variables(read(loss))
    if not chosen:
        raise GradientError(
            "the loss depends on no trainable variable", location=here(),
            remedy="compute it from a `dsl.Variable`, or name `variables=`",
        )  # fmt: skip
    return chosen


def _updated(optimizer: Optimizer, variable: Any, g: Any, rate: Any, number: Any) -> list[Any]:
    """Make the nodes that update one variable and its slots."""
    start = optimizer.start(variable.snapshot())
    slots = {
        name: Variable(value, name=f"{variable.name}/{name}", trainable=False)
        for name, value in start.items()
    }
    held = {name: slot.read() for name, slot in slots.items()}
    new, kept = optimizer.stepped(variable.read(), g, held, rate, number)
    return [variable.assign(new), *(slots[name].assign(value) for name, value in kept.items())]
