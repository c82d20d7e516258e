"""Learning-rate schedules: functions of the number of updates done so far, which is 0 at the first update.

Each is a small immutable object that compares by its numbers, so that equal optimisers are equal. Any function of the step may
stand where a schedule may; inside compiled functions the step is a traced integer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.errors import ConfigError
from dsl.frontend.calls import call
from dsl.frontend.scopes import here
from dsl.optim.ranges import check_number, check_numbers

__all__ = [
    "constant", "cosine_decay", "exponential_decay", "inverse_time_decay", "linear_warmup", "natural_exp_decay",
    "piecewise_constant", "polynomial_decay", "rate_at",
]  # fmt: skip


def rate_at(rate: Any, step: Any) -> Any:
    """Return a learning rate, given as a number or a schedule, at a step."""
    return call(rate, step) if callable(rate) else rate


class _Schedule:
    """What all schedules do with their numbers: refuse those that make no sense when they are given, not at the first update."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True)
class constant(_Schedule):
    """Always `rate`.

    >>> constant(0.1)(7)
    0.1
    """

    rate: float

    def __call__(self, step: Any) -> Any:
        return self.rate


@dataclass(frozen=True)
class _Decay(_Schedule):
    rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool = False

    def elapsed(self, step: Any) -> Any:
        """The number of periods of `decay_steps`; with `staircase`, of whole ones."""
        periods = step / self.decay_steps
        return np.floor(periods) if self.staircase else periods


@dataclass(frozen=True)
class exponential_decay(_Decay):
    """`rate * decay_rate ** (step / decay_steps)`; with `staircase` the exponent is rounded down.

    >>> exponential_decay(0.5, 10, 0.25)(5)
    0.25
    """

    def __call__(self, step: Any) -> Any:
        return self.rate * self.decay_rate ** self.elapsed(step)


@dataclass(frozen=True)
class natural_exp_decay(_Decay):
    """`rate * exp(-decay_rate * step / decay_steps)`; with `staircase`, `step / decay_steps` is rounded down.

    >>> round(float(natural_exp_decay(1.0, 1, 0.5)(2)), 4)
    0.3679
    """

    def __call__(self, step: Any) -> Any:
        return self.rate * np.exp(-self.decay_rate * self.elapsed(step))


@dataclass(frozen=True)
class inverse_time_decay(_Decay):
    """`rate / (1 + decay_rate * step / decay_steps)`; with `staircase`, `step / decay_steps` is rounded down.

    >>> inverse_time_decay(1.0, 10, 0.5)(20)
    0.5
    """

    def __call__(self, step: Any) -> Any:
        return self.rate / (1 + self.decay_rate * self.elapsed(step))


@dataclass(frozen=True)
class polynomial_decay(_Schedule):
    """`(rate - end_rate) * (1 - min(step, decay_steps) / decay_steps) ** power + end_rate`.

    With `cycle`, `decay_steps` is multiplied by the least whole number that makes it reach `step`.

    >>> float(polynomial_decay(1.0, 10, end_rate=0.5)(5))
    0.75
    """

    rate: float
    decay_steps: float
    end_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __call__(self, step: Any) -> Any:
        left = 1 - self._part(step / self.decay_steps)
        return (self.rate - self.end_rate) * left**self.power + self.end_rate

    def _part(self, periods: Any) -> Any:
        return periods / np.maximum(np.ceil(periods), 1) if self.cycle else np.minimum(periods, 1)


@dataclass(frozen=True)
class cosine_decay(_Schedule):
    """`rate * ((1 - alpha) * (1 + cos(pi * min(step, decay_steps) / decay_steps)) / 2 + alpha)`.

    >>> float(cosine_decay(1.0, 10)(10))
    0.0
    """

    rate: float
    decay_steps: float
    alpha: float = 0.0

    def __call__(self, step: Any) -> Any:
        cosine = (1 + np.cos(math.pi * np.minimum(step / self.decay_steps, 1))) / 2
        return self.rate * ((1 - self.alpha) * cosine + self.alpha)


@dataclass(frozen=True)
class piecewise_constant:
    """`values[0]` up to and including step `boundaries[0]`, then `values[1]` up to `boundaries[1]`, and so on.

    >>> [float(piecewise_constant([2, 4], [1.0, 0.5, 0.1])(k)) for k in range(6)]
    [1.0, 1.0, 1.0, 0.5, 0.5, 0.1]
    """

    boundaries: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("boundaries", "values"):
            object.__setattr__(self, name, self._numbers(name))
        if len(self.values) != len(self.boundaries) + 1:
            raise ConfigError(
                f"piecewise_constant has {len(self.boundaries)} boundaries and {len(self.values)} values",
                remedy="give one value more than boundaries",
            )
        if list(self.boundaries) != sorted(self.boundaries):
            raise ConfigError(f"the boundaries must increase, got {self.boundaries}")

    def _numbers(self, name: str) -> tuple[float, ...]:
        given = getattr(self, name)
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise ConfigError(
                f"piecewise_constant: {name} must be a list of numbers, got {given!r}",
                location=here(),
            )
        numbers = tuple(x.item() if isinstance(x, np.generic) else x for x in given)
        for number in numbers:
            check_number("piecewise_constant", name, number)
        return numbers

    def __call__(self, step: Any) -> Any:
        rate: Any = self.values[-1]
        for boundary, value in zip(reversed(self.boundaries), reversed(self.values[:-1])):
            rate = np.where(step <= boundary, value, rate)
        return rate


@dataclass(frozen=True)
class linear_warmup(_Schedule):
    """In `steps` equal steps from `start` to the first rate of `then`, a number or a schedule, and on from there.

    `then` counts its steps from the end of the warm-up.

    >>> [float(linear_warmup(4, 1.0)(k)) for k in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """

    steps: int
    then: Any
    start: float = 0.0

    def __call__(self, step: Any) -> Any:
        rate = rate_at(self.then, np.maximum(step - self.steps, 0))
        risen = self.start + (rate - self.start) * (step / self.steps)
        return np.where(step < self.steps, risen, rate)
