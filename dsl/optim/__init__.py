"""`dsl.optim`: optimisers, gradient clipping and learning-rate schedules, over trees of parameters.

A tree is an array, or a dict, list, tuple, named tuple or dataclass of trees. Everything here is ordinary NumPy code: it works
on arrays at once, and inside compiled functions and their loops as dataflow.

>>> import numpy as np
>>> opt = SGD(0.25)
>>> step = opt.minimize(lambda w, x: ((w - x) ** 2).sum())
>>> w = np.zeros(2)
>>> state = opt.init(w)
>>> for _ in range(3):
...     value, w, state = step(w, state, np.array([8.0, 16.0]))
>>> w
array([ 7., 14.])
"""

from dsl.optim.clipping import clip_by_global_norm, clip_by_norm, clip_by_value, global_norm
from dsl.optim.optimizer import Optimizer, State
from dsl.optim.rows import Rows
from dsl.optim.rules import SGD, Adadelta, Adagrad, AdagradDA, Adam, Ftrl, Momentum, RMSProp
from dsl.optim.schedules import (
    constant,
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_warmup,
    natural_exp_decay,
    piecewise_constant,
    polynomial_decay,
)

__all__ = [
    "SGD", "Adadelta", "Adagrad", "AdagradDA", "Adam", "Ftrl", "Momentum", "Optimizer", "RMSProp", "Rows", "State",
    "clip_by_global_norm", "clip_by_norm", "clip_by_value", "constant", "cosine_decay", "exponential_decay", "global_norm",
    "inverse_time_decay", "linear_warmup", "natural_exp_decay", "piecewise_constant", "polynomial_decay",
]  # fmt: skip
