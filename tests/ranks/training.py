"""Data-parallel training equals training on one rank with the whole batch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

import dsl
from dsl import optim, parallel
from dsl.errors import MismatchError, UnsupportedError

RANK, SIZE = parallel.rank(), parallel.size()
ROWS = 12  # of a batch, for 1 to 4 ranks


def model(params, x, y):
    for w, b in params["layers"]:
        x = np.tanh(x @ w + b)
    return ((x.sum(axis=1) - y) ** 2).mean() + 0.0 * params["scale"].sum().astype(np.float64)


def start() -> dict[str, object]:
    rng = np.random.default_rng(3)
    layers = [(rng.normal(size=(8, 8)) / 3, np.zeros(8)) for _ in range(4)]
    return {"layers": layers, "scale": np.ones(3, np.float32)}


def batch(k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(50 + k)
    return rng.normal(size=(ROWS, 8)), rng.normal(size=ROWS)


def shard(array: np.ndarray) -> np.ndarray:
    return array.reshape(SIZE, -1, *array.shape[1:])[RANK]


def equals_one_rank(optimizer: optim.Optimizer, bucket: int) -> None:
    clip = lambda grads: optim.clip_by_global_norm(grads, 0.5)
    together = parallel.DataParallel(model, optimizer, clip=clip, bucket_bytes=bucket, seed=3)
    params, state = together.init(start())
    alone = optimizer.minimize(model, clip=clip)
    own, own_state = start(), optimizer.init(start())
    for k in range(4):
        x, y = batch(k)
        loss, params, state = together.step(params, state, shard(x), shard(y))
        expected, own, own_state = alone(own, own_state, x, y)
        np.testing.assert_allclose(loss, expected, rtol=1e-12)
    for (w, b), (v, c) in zip(params["layers"], own["layers"], strict=True):
        np.testing.assert_allclose(w, v, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(b, c, rtol=1e-10, atol=1e-12)
    for leaf in (params["layers"][0][0], params["scale"]):  # the same bits everywhere
        everybody = parallel.allgather(leaf)
        assert (everybody == everybody[0]).all()


def init_shares_parameters() -> None:
    training = parallel.DataParallel(lambda w, x: (w * x).mean(), optim.SGD(0.1))
    w, _ = training.init(np.full(2, float(RANK)))
    assert (w == 0).all()


def different_starts_are_refused() -> None:
    training = parallel.DataParallel(lambda w, x: (w * x).mean(), optim.SGD(0.1))
    w = np.full(2, float(RANK))
    with refused("params"):
        training.step(w, optim.SGD(0.1).init(w), np.ones((2, 2)))


def different_optimisers_are_refused() -> None:
    training = parallel.DataParallel(lambda w, x: (w * x).mean(), optim.SGD(0.1 + (RANK == 0)))
    w, state = training.init(np.zeros(2))
    with refused("optimiser SGD.learning_rate=0.1,"):
        training.step(w, state, np.ones((2, 2)))
    alike = parallel.DataParallel(lambda w, x: (w * x).mean(), optim.SGD(lambda step: 0.1))
    alike.step(w, state, np.ones((2, 2)))


def different_shards_are_refused() -> None:
    training = parallel.DataParallel(lambda w, x: (w * x).mean(), optim.SGD(0.1))
    w, state = training.init(np.zeros(2))
    with refused("differ in size"):
        training.step(w, state, np.ones((2 + (RANK == 0), 2)))
    with refused("differ in size"):  # also those that have as many rows as ranks have on average
        training.step(w, state, np.ones((3 + (RANK == 0) - (RANK == SIZE - 1), 2)))
    training.step(w, state, np.ones((3, 2)))


def refused(words: str) -> AbstractContextManager[object]:
    """One rank alone has nobody to differ from."""
    return nullcontext() if SIZE == 1 else pytest.raises(MismatchError, match=words)


def gradients_at_once() -> None:
    grads = {
        "a": np.full((2, 2), 1.0 + RANK),
        "b": np.float32(RANK),
        "c": np.zeros(0),
        "d": np.full(5, RANK, np.float16),
    }
    found = parallel.reduce_gradients(grads, "sum", bucket_bytes=16)
    assert (found["a"] == SIZE * (SIZE + 1) / 2).all()
    assert found["b"] == SIZE * (SIZE - 1) / 2
    assert found["b"].dtype == np.float32
    assert found["d"].dtype == np.float16
    assert (found["d"] == SIZE * (SIZE - 1) / 2).all()


def looked_up(params, ids, y):
    return ((params["table"][ids].sum(axis=1) * params["scale"] - y) ** 2).mean()


def rows_equal_one_rank(optimizer: optim.Optimizer) -> None:
    """Ranks take different rows, some of them the same; no gradient has the size of the table."""
    together = parallel.DataParallel(looked_up, optimizer, sparse=True)
    rng = np.random.default_rng(5)
    begin = {"table": rng.normal(size=(1000, 3)), "scale": np.array(1.5)}
    params, state = together.init(begin)
    own, own_state = begin, optimizer.init(begin)
    for k in range(3):
        ids, y = rng.integers(0, 20 + k, ROWS), rng.normal(size=ROWS)
        loss, params, state = together.step(params, state, shard(ids), shard(y))
        grads = dsl.grad(looked_up, sparse=True)(own, ids, y)
        np.testing.assert_allclose(loss, looked_up(own, ids, y), rtol=1e-12)
        own, own_state = optimizer.update(grads, own_state, own)
    np.testing.assert_allclose(params["table"], own["table"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(params["scale"], own["scale"], rtol=1e-10)
    lines = together.compiled.ir(params, state, shard(ids), shard(y)).splitlines()
    assert not [line for line in lines if "all_reduce" in line and "1000" in line]


def rows_at_once() -> None:
    grads = optim.Rows(np.array([1, RANK]), np.full((2, 1), 1.0, np.float32), (SIZE + 1, 1))
    found = parallel.reduce_gradients({"t": grads, "w": np.ones(2)}, "sum")["t"]
    expected = np.array([*[1.0] * SIZE, 0.0])
    expected[1] += SIZE
    np.testing.assert_array_equal(found.dense()[:, 0], expected)
    mean = parallel.reduce_gradients(grads)
    assert mean.values.dtype == np.float32
    np.testing.assert_allclose(mean.dense()[:, 0], expected / SIZE, rtol=1e-6)
    if SIZE > 1:
        with pytest.raises(UnsupportedError, match="the max of gradients that are rows"):
            parallel.reduce_gradients(grads, "max")


def buckets_begin_early() -> None:
    """The last layer's gradient is there first: its reduction begins before the first layer's is computed."""
    training = parallel.DataParallel(model, optim.SGD(0.1), bucket_bytes=8 * 8 * 8 + 64)
    params, state = training.init(start())
    x, y = batch(0)
    lines = training.compiled.ir(params, state, shard(x), shard(y)).splitlines()
    starts = [k for k, line in enumerate(lines) if "all_reduce_start" in line]
    products = [k for k, line in enumerate(lines) if "matmul" in line]
    if SIZE > 1:
        assert len(starts) > 3
        assert starts[1] < products[-1], "\n".join(lines)
        assert "all_reduce_wait" not in "\n".join(lines[: starts[-1]])


equals_one_rank(optim.Adam(0.01), 8 * 8 * 8)
equals_one_rank(optim.Momentum(0.1), 1 << 20)
init_shares_parameters()
different_starts_are_refused()
different_optimisers_are_refused()
different_shards_are_refused()
gradients_at_once()
rows_equal_one_rank(optim.Adagrad(0.1))
rows_equal_one_rank(optim.SGD(0.1))
rows_at_once()
buckets_begin_early()
parallel.barrier()
print("well", RANK)
