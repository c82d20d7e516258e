"""Functions on a GPU, by the emulator: arrays that stay there, arguments that are written, errors, loops, gradients, placed
graphs, variables; `pytest --device cuda` runs the same on hardware.
"""

from __future__ import annotations

import contextlib
import io
import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from placed_graphs import with_devices
from random_graphs import graphs
from random_programs import arguments, programs
from test_programs import check_same
from test_random_programs import load, randomly

import dsl
from dsl.codegen.cuda import compile as compiling
from dsl.codegen.cuda import toolkit
from dsl.codegen.cuda.devices import gpu
from dsl.codegen.cuda.emulated import EmulatedGpu
from dsl.codegen.cuda.program import DeviceProgram
from dsl.config import config
from dsl.errors import AliasError, ConfigError, DeviceError, DeviceMemoryError
from dsl.executor.placed import make_runner
from dsl.ir.devices import DeviceName
from dsl.ir.environment import Environment
from dsl.ir.interpret import interpret
from dsl.runtime.devices import cpus


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def check(function: Any, *args: Any, device: str, rtol: float = 1e-12) -> None:
    mine = tuple(np.copy(a) if isinstance(a, np.ndarray) else a for a in args)
    found, expected = dsl.jit(function, device=device)(*mine), function(*args)
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.max(np.abs(b), initial=1.0))
    for a, b in zip(mine, args, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


# -- shapes of kernels -----------------------------------------------------------------------------------------------

LENGTHS = [1, 2, 31, 32, 33, 64, 100, 127, 128, 129, 500, 1000, 1024, 2000, 4096, 5000]


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_every_length(length: int, gpu_name: str) -> None:
    check(softmax, numbers(17, length), device=gpu_name)


@pytest.mark.parametrize("length", [1, 3, 4, 15, 16, 64, 300, 700])
@pytest.mark.parametrize("columns", [1, 7, 32, 33, 100])
def test_columns_of_every_length(length: int, columns: int, gpu_name: str) -> None:
    x = numbers(length, columns)
    check(lambda x: (softmax(x, 0), x.sum(0), x.max(0)), x, device=gpu_name)


@pytest.mark.parametrize("size", [0, 1, 5, 255, 256, 1023, 2048, 2051, 40_000, 100_003])
def test_reductions_of_everything(size: int, gpu_name: str) -> None:
    x = numbers(size)
    check(lambda x: (x.sum(), (x * x).sum(), (x > 0).any(), x.prod()), x, device=gpu_name)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (1, 2, 0)])
def test_transposes(axes: tuple[int, ...], gpu_name: str) -> None:
    x = numbers(33, 40, 35).astype(np.float32)
    check(
        lambda x: (x.transpose(axes) + 1, x.transpose(axes) * x.sum()),
        x,
        device=gpu_name,
        rtol=1e-4,
    )


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i4", "i8", "?", "c8", "c16"])
def test_vectors_of_every_dtype(dtype: str, gpu_name: str) -> None:
    x = (10 * numbers(5, 1001)).astype(dtype)
    check(lambda x: (x + x, x[:, ::-1], x[1:, 3:], x.T), x, device=gpu_name)


def test_symbolic_sizes(gpu_name: str) -> None:
    f = dsl.jit(softmax, dynamic=True, device=gpu_name)
    for shape in ((3, 5), (40, 70), (2, 3000)):
        x = numbers(*shape)
        np.testing.assert_allclose(f(x), softmax(x), rtol=1e-12)
    assert f.cache_info().entries == 1


def test_values_of_a_row_that_other_threads_read(gpu_name: str) -> None:
    def reversed_rows(x):
        y = np.exp(x)
        return y[:, ::-1] / y.sum(1, keepdims=True)

    check(reversed_rows, numbers(20, 300), device=gpu_name)


# -- rows that share a gain, a bias or a mask ----------------------------------------------------------------------------


def layer_norm(x, gain, bias, axis=-1):
    centred = x - x.mean(axis, keepdims=True)
    variance = (centred * centred).mean(axis, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * gain + bias


def only_gain(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain


def only_bias(x, bias):
    return softmax(x + bias)


def masked(x, mask):
    return softmax(np.where(mask, x, -1e9))


def weighted(x, weight):
    return (x * weight).sum(-1), (x * (weight * weight + 1)).max(-1)


def looked_up(x, table, places):
    return (x * table[places]).sum(-1)


def turned(x, gain):
    y = np.exp(x * gain)
    return y[:, ::-1] / y.sum(1, keepdims=True)


def launches(function: Any, *args: Any, **options: Any) -> list[tuple[Any, int]]:
    """The blocks of each kernel, and the threads of a block."""
    program = dsl.jit(function, **options).lower(*args).device_program
    return [(geometry.grid[0], geometry.block) for geometry, _ in program.lowering.kernels.values()]


# Rows that are no multiple of what a block takes, one block's and one more, many trips, and none.
@pytest.mark.parametrize("rows", [0, 1, 2, 127, 300, 1037, 2049, 4096, 9001])
def test_rows_that_share_a_gain_and_a_bias(rows: int, gpu_name: str) -> None:
    check(layer_norm, numbers(rows, 40), numbers(40), numbers(40), device=gpu_name)


@pytest.mark.parametrize("length", [1, 33, 77, 300, 1024, 2000, 5000])
def test_rows_of_every_length_that_share_a_gain_and_a_bias(length: int, gpu_name: str) -> None:
    check(layer_norm, numbers(517, length), numbers(length), numbers(length), device=gpu_name)


@pytest.mark.parametrize(
    ("length", "columns"), [(1, 100), (10, 1037), (10, 5000), (300, 1), (300, 7), (300, 4099), (1500, 33), (700, 2100)]
)  # fmt: skip
def test_columns_that_share_a_gain_and_a_bias(length: int, columns: int, gpu_name: str) -> None:
    def down(x, gain, bias):
        return layer_norm(x, gain, bias, 0)

    check(down, numbers(length, columns), numbers(length, 1), numbers(length, 1), device=gpu_name)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
def test_a_shared_gain_of_every_dtype(dtype: str, gpu_name: str) -> None:
    args = [numbers(*shape).astype(dtype) for shape in ((1037, 256), (256,), (256,))]
    rtol = {"f2": 1e-2, "f8": 1e-12}.get(dtype, 1e-4)
    check(layer_norm, *args, device=gpu_name, rtol=rtol)


def test_whatever_rows_share(gpu_name: str) -> None:
    x, w = numbers(1037, 256), numbers(256)
    for function, shared in ((only_gain, w), (only_bias, w), (weighted, w), (masked, w > 0)):
        check(function, x, shared, device=gpu_name)
    check(layer_norm, numbers(9, 130, 96), numbers(96), numbers(1, 1, 96), device=gpu_name)
    check(looked_up, x, numbers(64), np.arange(256) % 128 - 64, device=gpu_name)
    check(turned, numbers(530, 300), numbers(300), device=gpu_name)


def test_an_index_out_of_bounds_in_what_rows_share(gpu_name: str) -> None:
    with pytest.raises(IndexError):
        dsl.jit(looked_up, device=gpu_name)(numbers(1037, 64), numbers(8), np.arange(64))


def test_axes_of_a_row_that_share_a_gain(gpu_name: str) -> None:
    def over_two(x, gain):
        return x / np.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-6) * gain

    for gain in (numbers(32), numbers(8, 32), numbers(8, 1)):
        assert launches(over_two, numbers(2100, 8, 32), gain)[-1] == (132, 512)
        check(over_two, numbers(2100, 8, 32), gain, device=gpu_name)


def test_symbolic_sizes_of_rows_that_share_a_gain(gpu_name: str) -> None:
    along = dsl.jit(layer_norm, dynamic=True, device=gpu_name)
    down = dsl.jit(lambda x, g, b: layer_norm(x, g, b, 0), dynamic=True, device=gpu_name)
    for rows, length in ((3, 5), (2, 3000), (1037, 70), (5000, 6)):
        x, gain, bias = numbers(rows, length), numbers(length), numbers(length)
        expected = layer_norm(x, gain, bias)
        np.testing.assert_allclose(along(x, gain, bias), expected, rtol=1e-9, atol=1e-9)
        found = down(np.ascontiguousarray(x.T), gain[:, None], bias[:, None])
        np.testing.assert_allclose(found, expected.T, rtol=1e-9, atol=1e-9)
    assert (along.cache_info().entries, down.cache_info().entries) == (1, 1)


def test_blocks_take_more_rows_only_where_there_are_many() -> None:
    def blocks(rows: int, length: int) -> tuple[Any, int]:
        shapes = (rows, length), (length,), (length,)
        (one,) = launches(layer_norm, *(np.ones(shape, np.float32) for shape in shapes))
        return one

    assert blocks(100, 128) == (25, 128)  # as without a gain
    assert blocks(512, 128) == (128, 128)
    assert blocks(4096, 128) == (128, 1024)
    assert blocks(65536, 128) == (2048, 512)  # 32 rows for each block, two of which fit at a time
    assert launches(softmax, np.ones((4096, 128), np.float32)) == [(1024, 128)]


# -- control flow ----------------------------------------------------------------------------------------------------


def test_a_loop_of_numbers_is_one_kernel_of_the_device() -> None:
    def newton(x, a):
        s = a.sum()
        while abs(x * x - s) > 1e-12:
            x = 0.5 * (x + s / x)
        return x * a[0]

    a = np.arange(1.0, 5.0)
    found = dsl.jit(newton, device="cuda-emulator:0")
    np.testing.assert_allclose(found(1.0, a), newton(1.0, a), rtol=1e-12)
    assert "while" in found.ir(1.0, a, stage="kernels")


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def fill_in_place(x, n):
    for i in range(1, n):
        x[i] = np.sin(x[i - 1]) + i
    return x.sum()


def until_small(x):
    trips = 0
    while x.sum() > 1.0:
        x = x * 0.5
        trips += 1
    return x, trips


def branches(x):
    if x.mean() > 0:
        y = x * 2
    else:
        y = np.zeros_like(x)
        for k in range(3):
            y[k] = x[k] - k
    return y


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (collatz, (27,)),
        (fill_in_place, (numbers(9), 7)),
        (until_small, (np.abs(numbers(40)),)),
        (branches, (np.abs(numbers(4, 3)),)),
        (branches, (-np.abs(numbers(4, 3)),)),
    ],
    ids=["collatz", "in place", "until", "then", "else"],
)
def test_control_flow(function: Any, args: tuple[Any, ...], gpu_name: str) -> None:
    check(function, *args, device=gpu_name)


def test_a_loop_updates_in_place() -> None:
    """The memory in use does not grow with the trips, and no trip copies the array."""

    def count(x):
        for i in range(50):
            x[i] = i
        return x

    device = EmulatedGpu(7)
    device.launches = []
    x = np.zeros(64)
    program = DeviceProgram(dsl.jit(count).lower(x).optimized)
    moved: list[int] = []
    move = device.move
    device.move = lambda *args: (moved.append(args[-1]), move(*args))[1]  # type: ignore[method-assign]
    program(device, [x])
    assert len(moved) <= 1
    assert device.memory.in_use == 0


# -- arrays of the device --------------------------------------------------------------------------------------------


def test_arrays_of_the_device_stay_there(gpu_name: str) -> None:
    x = dsl.cuda.to_device(np.arange(6.0).reshape(2, 3), gpu_name)
    f = dsl.jit(lambda x, y: (x * y, x.sum(), x))
    product, total, same = f(x, 2.0)
    assert type(product) is type(x)
    np.testing.assert_array_equal(dsl.cuda.to_host(product), [[0, 2, 4], [6, 8, 10]])
    assert float(dsl.cuda.to_host(total)) == 15.0
    np.testing.assert_array_equal(dsl.cuda.to_host(same), dsl.cuda.to_host(x))
    assert same is x  # as in Python


def test_arguments_on_the_device_are_written(gpu_name: str) -> None:
    def double(x):
        x[...] = x * 2

    x = dsl.cuda.to_device(np.arange(3.0), gpu_name)
    dsl.jit(double)(x)
    np.testing.assert_array_equal(dsl.cuda.to_host(x), [0, 2, 4])


def test_arguments_of_two_devices_are_refused() -> None:
    x = dsl.cuda.to_device(np.ones(2), "cuda-emulator:0")
    y = dsl.cuda.to_device(np.ones(2), "cuda-emulator:1")
    with pytest.raises(DeviceError, match="several devices"):
        dsl.jit(lambda x, y: x + y)(x, y)
    with pytest.raises(DeviceError, match="an argument is on"):
        dsl.jit(lambda x: x + 1, device="cuda-emulator:1")(x)


@pytest.mark.parametrize("device", ["cuda-emulator:0/x", "tpu:0", "/rank:1/cuda:0"])
def test_devices_that_a_function_cannot_have(device: str) -> None:
    with pytest.raises(DeviceError):
        dsl.jit(lambda x: x, device=device)


def test_the_option_says_where_functions_run() -> None:
    with config.override(device="cuda-emulator:0"):
        f = dsl.jit(lambda x: x + 1)
        np.testing.assert_array_equal(f(np.zeros(2)), 1)
    assert "GPU" in f.ir(np.zeros(2), stage="kernels")
    with pytest.raises(ConfigError, match="device"):
        config.update("device", "abacus")


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_index_out_of_bounds_is_numpys_error(gpu_name: str) -> None:
    f = dsl.jit(lambda x, i: x[i] * 2, device=gpu_name)
    with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 3"):
        f(np.zeros(3), np.array([0, 9]))
    np.testing.assert_array_equal(f(np.arange(3.0), np.array([2, -1])), [4, 4])


def test_arguments_of_a_call_that_raised_are_as_they_were(gpu_name: str) -> None:
    def write_then_fail(x, i):
        x[0] = 7.0
        return x[i]

    x = np.zeros(3)
    with pytest.raises(IndexError):
        dsl.jit(write_then_fail, device=gpu_name)(x, np.array([5]))
    np.testing.assert_array_equal(x, 0)


def test_memory_that_is_used_up_is_an_error_and_comes_back() -> None:
    device = EmulatedGpu(9, limit=1 << 20)
    x = np.ones(1 << 10)
    program = DeviceProgram(dsl.jit(lambda x: np.outer(x, x)).lower(x).optimized)
    with pytest.raises(DeviceMemoryError, match="out of memory"):
        program(device, [x])
    assert device.memory.in_use == 0
    small = DeviceProgram(dsl.jit(lambda x: x * 2).lower(x).optimized)
    np.testing.assert_array_equal(small(device, [x])[0], 2)


def test_a_machine_without_cuda_says_what_is_missing() -> None:
    if dsl.cuda.devices() != ["cuda-emulator:0"]:
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError) as caught:
        gpu(DeviceName.parse("cuda:0"))
    assert caught.value.remedy


# -- gradients, placed graphs, state ---------------------------------------------------------------------------------


def test_gradients(gpu_name: str) -> None:
    def loss(w, x):
        h = x
        for _ in range(4):
            h = np.tanh(h @ w)
        return np.mean(softmax(h) ** 2)

    w, x = numbers(5, 5), numbers(3, 5, seed=1)
    first = dsl.grad(loss)
    np.testing.assert_allclose(dsl.jit(first, device=gpu_name)(w, x), first(w, x), rtol=1e-10)
    second = dsl.jvp(dsl.grad(lambda w: loss(w, x)), (w,), (numbers(5, 5, seed=2),))[1]
    mine = dsl.jit(
        lambda w, v: dsl.jvp(dsl.grad(lambda w: loss(w, x)), (w,), (v,))[1], device=gpu_name
    )
    np.testing.assert_allclose(mine(w, numbers(5, 5, seed=2)), second, rtol=1e-9, atol=1e-15)


def test_gradient_through_a_while_that_ends_with_the_data(gpu_name: str) -> None:
    def f(x):
        while np.sum(x) < 100.0:
            x = x * x + 0.5
        return np.sum(np.sin(x))

    x = np.array([0.9, 1.1, 0.3])
    np.testing.assert_allclose(dsl.jit(dsl.grad(f), device=gpu_name)(x), dsl.grad(f)(x), rtol=1e-10)


def test_vmap(gpu_name: str) -> None:
    check(dsl.vmap(lambda x: np.sort(x)[:2].sum()), numbers(6, 9), device=gpu_name)


def test_a_graph_on_a_cpu_and_a_gpu(gpu_name: str) -> None:
    @dsl.jit
    def f(x, w):
        with dsl.device(gpu_name):
            h = np.tanh(x @ w)
        with dsl.device("cpu:0"):
            s = h.sum(0)
        with dsl.device(gpu_name):
            return np.exp(-s)

    x, w = numbers(8, 5), numbers(5, 4)
    np.testing.assert_allclose(f(x, w), np.exp(-np.tanh(x @ w).sum(0)), rtol=1e-12)
    assert f"on /rank:0/{gpu_name}" in f.ir(x, w, stage="partitioned")


def test_a_loop_that_spans_a_cpu_and_a_gpu(gpu_name: str) -> None:
    @dsl.jit
    def f(x, n):
        i = 0
        while i < n:
            with dsl.device(gpu_name):
                x = np.sin(x) + i
            with dsl.device("cpu:0"):
                i = i + 1
        return x

    x = expected = numbers(5)
    for i in range(6):
        expected = np.sin(expected) + i
    np.testing.assert_allclose(f(x, 6), expected, rtol=1e-12)


def test_a_branch_on_a_gpu_decided_on_the_cpu(gpu_name: str) -> None:
    @dsl.jit
    def f(x):
        with dsl.device("cpu:0"):
            positive = x.sum() > 0
        if positive:
            with dsl.device(gpu_name):
                y = x * 2
        else:
            y = x - 1
        return y

    x = np.abs(numbers(4))
    np.testing.assert_array_equal(f(x), x * 2)
    np.testing.assert_array_equal(f(-x), -x - 1)


def test_a_session_with_a_variable_and_a_gpu(gpu_name: str) -> None:
    graph = dsl.Graph()
    with graph:
        x = dsl.placeholder(np.float64, (3,))
        total = dsl.Variable(np.zeros(3), name="total")
        with dsl.device(gpu_name):
            y = np.exp(x)
        update = total.assign_add(y)
    with dsl.Session(graph) as session:
        session.run(update, {x: np.zeros(3)})
        session.run(update, {x: np.zeros(3)})
        np.testing.assert_array_equal(session.run(total), [2.0, 2.0, 2.0])


def test_optimisers_step_on_the_device(gpu_name: str) -> None:
    x, y = numbers(10, 3), numbers(10)

    def train() -> np.ndarray:
        optimiser = dsl.optim.Adam(0.1)
        step = optimiser.minimize(lambda w, x, y: np.mean((x @ w - y) ** 2))
        w = np.zeros(3)
        state = optimiser.init(w)
        for _ in range(3):
            _, w, state = step(w, state, x, y)
        return w

    expected = train()
    with config.override(device=gpu_name):
        np.testing.assert_allclose(train(), expected, rtol=1e-9)


def test_threads_may_call_at_once() -> None:
    f = dsl.jit(softmax, device="cuda-emulator:0")
    found: dict[int, Any] = {}

    def call(k: int) -> None:
        found[k] = f(numbers(7, 50, seed=k))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]  # the first compiles
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        np.testing.assert_allclose(found[k], softmax(numbers(7, 50, seed=k)), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@randomly(15)
@given(programs())
def test_random_programs(drawn: tuple[str, int]) -> None:
    text, seed = drawn
    plain, mine = arguments(seed), arguments(seed)
    expected = load(text)(*plain)
    try:
        found = dsl.jit(load(text), device="cuda-emulator:0")(*mine)
    except AliasError:
        return
    check_same(found, expected, "result", np.float32)
    check_same(mine, plain, "arguments", np.float32)


@randomly(12)
@given(graphs())
def test_random_graphs_on_a_cpu_and_a_gpu(drawn: tuple[Any, list[Any]]) -> None:
    """Nodes are placed at random, those of loops and branches too."""
    graph, args = drawn
    rng = random.Random(len(graph.text))
    places = ["/rank:0/cpu:0", "/rank:0/cuda-emulator:0", None]
    placed = with_devices(graph, lambda node: rng.choice(places), nested=True)
    expected, found = (io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(expected):
        wanted = interpret(graph, [np.asarray(a) for a in args])
    with contextlib.redirect_stdout(found):
        results = make_runner(placed, cpus(1))(
            [np.asarray(a) for a in args], Environment(timeout=60)
        )
    for a, b in zip(results, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-12, equal_nan=True)
    assert sorted(found.getvalue().split()) == sorted(expected.getvalue().split())


def test_without_libdevice_functions_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the few arguments that dsl's own functions leave to C's library, the emulator asks the host's."""
    monkeypatch.setattr(toolkit, "libdevice", lambda: None)
    monkeypatch.setattr(compiling, "libdevice", lambda: None)
    x, y = np.array([0.5, -3.0, 2e9, 1e300]), np.array([0.3, 7.0, 11.0, 1e-3])

    def several(x, y):
        return np.sin(x), np.cos(x), np.tan(x), np.fmod(x, y), np.exp(-y), np.log(y), np.tanh(y)

    f = dsl.jit(several, device="cuda-emulator:0")
    assert "__nv_" not in f.lower(x, y).device_program.text
    for a, b in zip(f(x, y), several(x, y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-15)
