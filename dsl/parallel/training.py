"""Synchronous data-parallel training: every rank has a copy of the parameters and a shard of each batch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.compile import Compiled
from dsl.errors import MismatchError
from dsl.frontend.calls import call
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import Traced, lift, read
from dsl.frontend.trees import flatten, leaves_with_paths
from dsl.ir.communicator import at_location
from dsl.ir.ops.state import known_error
from dsl.mpi.agreement import agree
from dsl.mpi.pulse import beat
from dsl.optim.clipping import check_clip
from dsl.optim.optimizer import Optimizer, State
from dsl.parallel.checks import check_loss, check_optimizer
from dsl.parallel.collectives import broadcast, size
from dsl.parallel.gradients import BUCKET, reduce_gradients
from dsl.transforms.gradients import value_and_grad

__all__ = ["DataParallel"]


class DataParallel:
    """Training of `loss(params, *batch)`, which is the mean over a batch, on all ranks at once.

    Every rank calls `step(params, state, *batch)` with its shard; shards have equal sizes. Gradients are averaged over the
    ranks while others are still being computed, so that all ranks update their parameters alike, and as one rank would
    with the whole batch, to rounding. `clip` is applied to the averaged gradients. With `sparse`, the gradient of an array of
    which the loss only takes rows, such as a table of embeddings, is a `dsl.optim.Rows`: ranks exchange the rows that they took.

    >>> import numpy as np
    >>> from dsl.optim import SGD
    >>> training = DataParallel(lambda w, x: ((w - x) ** 2).mean(), SGD(0.25))
    >>> w, state = training.init(np.zeros(2))
    >>> loss, w, state = training.step(w, state, np.array([[8.0, 16.0]]))
    >>> w
    array([2., 4.])
    """

    def __init__(
        self, loss: Callable[..., Any], optimizer: Optimizer, *, has_aux: bool = False,
        clip: Callable[[Any], Any] | None = None, bucket_bytes: int = BUCKET, seed: int | None = None,
        sparse: bool = False,
    ) -> None:  # fmt: skip
        check_loss("DataParallel", loss)
        check_optimizer("DataParallel", optimizer)
        check_clip(clip)
        self.loss, self.optimizer, self.has_aux, self.clip = loss, optimizer, has_aux, clip
        self.bucket_bytes, self.seed, self.sparse = bucket_bytes, seed, sparse
        self.compiled = self._compiled()
        self._checked = False

    def init(self, params: Any) -> tuple[Any, State]:
        """Return the parameters of rank 0, on every rank, and the optimiser's state for them."""
        shared = broadcast(params)
        return shared, self.optimizer.init(shared)

    def step(self, params: Any, state: State, *batch: Any, **options: Any) -> tuple[Any, ...]:
        """Return the loss of the whole batch before the update, the parameters and the state after it.

        With `has_aux`, for the loss a pair: that, and what this rank's function returned beside it. At the first step the
        ranks compare parameters, state and seeds.
        """
        if not self._checked:
            self._checked = True
            self._agree(params, state)
        found: tuple[Any, ...] = self.compiled(params, state, *batch, **options)
        beat("a training step")
        return found

    __call__ = step

    def dsl_wraps(self) -> tuple[Any, ...]:
        """What is outside of a trace if this is."""
        return self.loss, self.clip

    def _compiled(self) -> Compiled[..., Any]:
        def step(params: Any, state: State, *batch: Any, **options: Any) -> Any:
            return self._traced_step(params, state, batch, options)

        step.dsl_traced = True  # type: ignore[attr-defined]  # also where compiling is switched off, as what it calls is
        step.__name__ = f"{getattr(self.loss, '__name__', 'loss')}_step".replace("<lambda>", "loss")
        return Compiled(step)

    def _traced_step(self, params: Any, state: State, batch: Any, options: Any) -> Any:
        fn = value_and_grad(self.loss, has_aux=self.has_aux, sparse=self.sparse)
        value, grads = fn(params, *batch, **options)
        value, aux = value if self.has_aux else (value, None)
        rows = _rows(batch)
        facts = {"loss": lift(value).astype(np.float64), **_moments(rows or 0)}
        means, grads = reduce_gradients((facts, grads), "mean", self.bucket_bytes)
        if rows is not None and size() > 1:
            _check_rows(means, rows)
        grads = grads if self.clip is None else call(self.clip, grads)
        loss = means["loss"].astype(lift(value).dtype) if size() > 1 else value
        return (loss, aux) if self.has_aux else loss, *self.optimizer.update(grads, state, params)

    def _agree(self, params: Any, state: State) -> None:
        if size() == 1:
            return
        lines = [f"optimiser {_described(self.optimizer)}", f"seed {self.seed}"]
        for name, tree in (("params", params), ("state", state)):
            lines += [
                f"{path}: {_fingerprint(leaf)}" for path, leaf in leaves_with_paths(tree, name)
            ]
        with at_location(here()):
            agree(
                "data-parallel training must start alike (DataParallel.init shares parameters)",
                "\n".join(lines),
            )


def _described(optimizer: Optimizer) -> str:
    """Return an optimiser with its numbers; of functions, which live elsewhere on each rank, the names."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(optimizer))


def _fingerprint(leaf: Any) -> str:
    array = np.asarray(leaf)
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
    return f"{array.dtype}{list(array.shape)} {digest}"


def _rows(batch: Any) -> Any:
    """Return the size of the shard: the first dim of the first array that has one."""
    for leaf in flatten(batch)[0]:
        if isinstance(leaf, (Traced, np.ndarray)) and len(leaf.shape):
            return leaf.shape[0]
    return None


_DIGIT = 2**20


def _moments(rows: Any) -> dict[str, Any]:
    """Return numbers whose means over the ranks say whether all have as many rows: digits and their squares, both exact."""
    digits = [rows % _DIGIT, rows // _DIGIT]
    return {
        "rows": [np.float64(1) * d for d in digits],
        "squares": [np.float64(1) * d * d for d in digits],
    }


def _check_rows(means: Any, rows: Any) -> None:
    """Have the step raise, on all ranks, if their shards differ in size: then a mean of means is not the mean."""
    message = "the shards of this batch differ in size: {0} rows here, {1} on average"
    (low, high), squares = means["rows"], means["squares"]
    alike = lift((squares[0] == low * low) & (squares[1] == high * high))
    attrs = {"message": message, "error": known_error(MismatchError)}
    operands = [read(alike), read(lift(rows)), read(lift(low + high * _DIGIT))]
    current_scope().node("assert", operands, attrs)
