"""The optimisers: one class for each formula.

The formulas are those of TensorFlow 1, in its places of epsilon and with its first values of slots. `g` is the gradient, `lr` the
learning rate, `t` the number of the update, from 1. Where a gradient is a `Rows`, each formula is applied to the rows that it
names, duplicates summed; the slots of other rows do not decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl import numpy as dnp
from dsl.optim.leaves import as_dtype, is_zero
from dsl.optim.optimizer import Decaying, Optimizer, Slots
from dsl.optim.rows import Rows

__all__ = ["SGD", "Adadelta", "Adagrad", "AdagradDA", "Adam", "Ftrl", "Momentum", "RMSProp"]


@dataclass(frozen=True)
class SGD(Decaying):
    """Gradient descent: `p -= lr * g`.

    >>> opt = SGD(0.5)
    >>> w = np.array([1.0, 2.0])
    >>> opt.update(np.array([1.0, 1.0]), opt.init(w), w)[0]
    array([0.5, 1.5])
    """

    def start(self, p: Any) -> Slots:
        """No slots."""
        return {}

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        return self.shrunk(p, rate) - rate * g, {}

    def touch(self, p: Any, g: Rows, slots: Slots, rate: Any, step: Any) -> None:
        """Subtract row by row: a sum needs no duplicates summed before."""
        if not is_zero(self.weight_decay):
            return super().touch(p, g, slots, rate, step)
        np.subtract.at(p, g.indices, as_dtype(rate * g.values, p.dtype))


@dataclass(frozen=True)
class Momentum(Decaying):
    """Gradient descent with momentum.

    The slot `accumulator` starts from 0.

        accumulator = momentum * accumulator + g
        p -= lr * accumulator                                  or, with use_nesterov,
        p -= lr * g + lr * momentum * accumulator
    """

    momentum: float = 0.9
    use_nesterov: bool = False

    def start(self, p: Any) -> Slots:
        """Zeros."""
        return {"accumulator": np.zeros_like(p)}

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        accumulator = self.momentum * slots["accumulator"] + g
        moved = (
            rate * g + rate * self.momentum * accumulator
            if self.use_nesterov
            else rate * accumulator
        )
        return self.shrunk(p, rate) - moved, {"accumulator": accumulator}


@dataclass(frozen=True)
class Adagrad(Decaying):
    """Steps that shrink with the gradients seen, for each number by itself.

    The slot `accumulator` starts from `initial_accumulator_value`.

        accumulator += g**2
        p -= lr * g / sqrt(accumulator)
    """

    initial_accumulator_value: float = 0.1

    def start(self, p: Any) -> Slots:
        """The initial value."""
        return {"accumulator": np.full_like(p, self.initial_accumulator_value)}

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        accumulator = slots["accumulator"] + g * g
        return self.shrunk(p, rate) - rate * g / np.sqrt(accumulator), {"accumulator": accumulator}


@dataclass(frozen=True)
class AdagradDA(Optimizer):
    """Adagrad by dual averaging, for sparse linear models: parameters are a function of all gradients so far.

        gradients += g
        squares += g**2                                        from initial_accumulator_value
        p = -lr * sign(gradients) * max(abs(gradients) - l1 * t, 0) / (l2 * t * lr + sqrt(squares))

    The values that parameters start with are lost at the first update, which deep networks may not survive.
    """

    initial_accumulator_value: float = 0.1
    l1: float = 0.0
    l2: float = 0.0

    def start(self, p: Any) -> Slots:
        """Zeros, and the initial value."""
        return {
            "gradients": np.zeros_like(p),
            "squares": np.full_like(p, self.initial_accumulator_value),
        }

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        gradients, squares = slots["gradients"] + g, slots["squares"] + g * g
        t = as_dtype(step, p.dtype)
        left = gradients
        if not is_zero(self.l1):
            left = np.sign(gradients) * np.maximum(np.abs(gradients) - self.l1 * t, 0)
        new = -rate * left / (self.l2 * t * rate + np.sqrt(squares))
        return new, {"gradients": gradients, "squares": squares}


@dataclass(frozen=True)
class Adadelta(Decaying):
    """Steps as long as recent steps, over the length of recent gradients.

    The slots `accumulator` and `changes` start from 0.

        accumulator = rho * accumulator + (1 - rho) * g**2
        change = sqrt(changes + epsilon) / sqrt(accumulator + epsilon) * g
        changes = rho * changes + (1 - rho) * change**2
        p -= lr * change
    """

    learning_rate: Any = 0.001
    rho: float = 0.95
    epsilon: float = 1e-8

    def start(self, p: Any) -> Slots:
        """Zeros."""
        return {"accumulator": np.zeros_like(p), "changes": np.zeros_like(p)}

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        accumulator = self.rho * slots["accumulator"] + (1 - self.rho) * g * g
        change = np.sqrt(slots["changes"] + self.epsilon) / np.sqrt(accumulator + self.epsilon) * g
        changes = self.rho * slots["changes"] + (1 - self.rho) * change * change
        return self.shrunk(p, rate) - rate * change, {
            "accumulator": accumulator,
            "changes": changes,
        }


@dataclass(frozen=True)
class RMSProp(Decaying):
    """Steps over the root of the mean square of recent gradients.

        square = decay * square + (1 - decay) * g**2           from 1
        mean = decay * mean + (1 - decay) * g                  if centered
        velocity = momentum * velocity + lr * g / sqrt(square + epsilon)            or, if centered,
        velocity = momentum * velocity + lr * g / sqrt(square - mean**2 + epsilon)
        p -= velocity

    Without momentum there is no slot `velocity`.
    """

    decay: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-10
    centered: bool = False

    def start(self, p: Any) -> Slots:
        """Ones for the mean square, zeros for the rest."""
        slots = {"square": np.ones_like(p)}
        if self.centered:
            slots["mean"] = np.zeros_like(p)
        if not is_zero(self.momentum):
            slots["velocity"] = np.zeros_like(p)
        return slots

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        new = {"square": self.decay * slots["square"] + (1 - self.decay) * g * g}
        variance = new["square"]
        if self.centered:
            new["mean"] = self.decay * slots["mean"] + (1 - self.decay) * g
            variance = variance - new["mean"] * new["mean"]
        velocity = rate * g / np.sqrt(variance + self.epsilon)
        if "velocity" in slots:
            velocity = new["velocity"] = self.momentum * slots["velocity"] + velocity
        return self.shrunk(p, rate) - velocity, new


@dataclass(frozen=True)
class Adam(Decaying):
    """Adaptive moments, with the bias of their zero beginnings corrected in the step.

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        p -= lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon)

    `epsilon` is the "epsilon hat" of the paper: that of libraries which correct `v` before the root, times `sqrt(1 - beta2**t)`.
    With `weight_decay` it is AdamW. For sparse gradients it is TensorFlow's LazyAdam: the moments of rows that are not named
    stay, where TensorFlow's own Adam lets them decay; pass the `Rows` as `.dense()` for that.
    """

    learning_rate: Any = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def start(self, p: Any) -> Slots:
        """Zeros."""
        return {"m": np.zeros_like(p), "v": np.zeros_like(p)}

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        m = self.beta1 * slots["m"] + (1 - self.beta1) * g
        v = self.beta2 * slots["v"] + (1 - self.beta2) * g * g
        correction = np.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)
        moved = rate * as_dtype(correction, p.dtype) * m / (np.sqrt(v) + self.epsilon)
        return self.shrunk(p, rate) - moved, {"m": m, "v": v}


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """Follow the regularised leader: many parameters of exactly zero, by `l1`.

    The slots are `accumulator`, from `initial_accumulator_value`, and `linear`, from 0.

        new = accumulator + g**2
        sigma = (new**-learning_rate_power - accumulator**-learning_rate_power) / lr
        linear += g + 2 * l2_shrinkage * p - sigma * p
        p = (sign(linear) * l1 - linear) / (new**-learning_rate_power / lr + 2 * l2)  where abs(linear) > l1, else 0
        accumulator = new
    """

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0

    def start(self, p: Any) -> Slots:
        """The initial value, and zeros."""
        return {
            "accumulator": np.full_like(p, self.initial_accumulator_value),
            "linear": np.zeros_like(p),
        }

    def rule(self, p: Any, g: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """As in the class."""
        old, new = slots["accumulator"], slots["accumulator"] + g * g
        sigma = (self._power(new) - self._power(old)) / rate
        pull = g if is_zero(self.l2_shrinkage) else g + 2 * self.l2_shrinkage * p
        linear = slots["linear"] + pull - sigma * p
        best = (np.sign(linear) * self.l1 - linear) / (self._power(new) / rate + 2 * self.l2)
        zero = dnp.zeros((), p.dtype)
        return np.where(np.abs(linear) > self.l1, best, zero), {
            "accumulator": new,
            "linear": linear,
        }

    def _power(self, accumulator: Any) -> Any:
        if is_zero(self.learning_rate_power + 0.5):
            return np.sqrt(accumulator)
        return accumulator**-self.learning_rate_power
