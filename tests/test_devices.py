"""Device names, the CPU devices of a process, the rendezvous, and steps of several parts."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsl
from dsl.config import config
from dsl.errors import CancelledError, DeadlineError, DeviceError, DslError, InternalError
from dsl.ir.devices import ANY_DEVICE, DeviceName, canonical
from dsl.ir.environment import Environment
from dsl.ir.parts import Part, Partition, Source
from dsl.ir.text import parse
from dsl.ir.token_machine import run_tokens
from dsl.runtime import parts as running
from dsl.runtime.devices import Cpu, cpus
from dsl.runtime.parts import run_parts
from dsl.runtime.rendezvous import LocalRendezvous

name = DeviceName.parse
SOME = ["", "cpu", "cpu:1", "/rank:1", "/rank:1/cpu", "/rank:1/cpu:1", "cuda:0", "/rank:0/cuda"]


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/rank:1/cpu:0", (1, "cpu", 0)),
        ("cpu:0", (None, "cpu", 0)),
        ("cpu", (None, "cpu", None)),
        ("/rank:2", (2, None, None)),
        ("", (None, None, None)),
        ("/rank:12/cuda-emulator:3", (12, "cuda-emulator", 3)),
    ],
)
def test_a_name_is_read_and_written(text: str, parts: tuple[Any, ...]) -> None:
    found = name(text)
    assert (found.rank, found.kind, found.index) == parts
    assert str(found) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/cpu:0", "cpu:0"),
        ("rank:2", "/rank:2"),
        ("CPU:1", "cpu:1"),
        ("cpu:*", "cpu"),
        (" cpu ", "cpu"),
    ],
)
def test_other_spellings(text: str, written: str) -> None:
    assert str(name(text)) == written


@pytest.mark.parametrize(
    "text", ["cpu:x", "/rank", "cpu:0/rank:1", "//cpu", "/rank:1/", "cpu 0", ":0", 3]
)
def test_what_is_no_name_is_refused(text: Any) -> None:
    with pytest.raises(DeviceError, match=r"is not the name of a device\nFix: a device is written"):
        name(text)


def test_a_device_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not the name"):
        name("cpu:x")


def test_canonical_names_are_full() -> None:
    assert [str(canonical(text)) for text in ("", "cpu", "/rank:2", "cuda:1")] == [
        "/rank:0/cpu:0",
        "/rank:0/cpu:0",
        "/rank:2/cpu:0",
        "/rank:0/cuda:1",
    ]
    assert canonical("cpu").is_full
    assert not name("cpu:0").is_full


def test_matching() -> None:
    there = [name(f"/rank:{r}/cpu:{i}") for r in (0, 1) for i in (0, 1)]
    matched = {
        text: [str(d) for d in there if name(text).matches(d)] for text in ("cpu:1", "/rank:1")
    }
    assert matched["cpu:1"] == ["/rank:0/cpu:1", "/rank:1/cpu:1"]
    assert matched["/rank:1"] == ["/rank:1/cpu:0", "/rank:1/cpu:1"]
    assert all(ANY_DEVICE.matches(device) for device in there)
    assert not any(name("cuda").matches(device) for device in there)


def test_merging() -> None:
    assert str(name("cpu:1").merge(name("/rank:2"))) == "/rank:2/cpu:1"
    assert str(name("cpu").merge(name("cpu:3"))) == "cpu:3"
    for one, other, part in [
        ("cpu:0", "cpu:1", "index"),
        ("cpu", "cuda", "kind"),
        ("/rank:0", "/rank:1/cpu", "rank"),
    ]:
        with pytest.raises(DeviceError, match=f"'{one}' and '{other}' differ in the {part}"):
            name(one).merge(name(other))


@given(st.sampled_from(SOME), st.sampled_from(SOME))
def test_a_device_matches_a_merger_if_it_matches_both(one: str, other: str) -> None:
    there = [DeviceName(r, kind, i) for r in (0, 1) for kind in ("cpu", "cuda") for i in (0, 1)]
    both = [d for d in there if name(one).matches(d) and name(other).matches(d)]
    if name(one).conflict(name(other)):
        assert both == []
    else:
        merged = name(one).merge(name(other))
        assert merged == name(other).merge(name(one))
        assert [d for d in there if merged.matches(d)] == both


def test_a_block_inside_a_block() -> None:
    assert str(name("cpu:1").within(name("/rank:1/cpu:0"))) == "/rank:1/cpu:1"
    assert str(name("/rank:2").within(name("/rank:1/cpu:1"))) == "/rank:2/cpu:1"
    assert str(name("cuda").within(name("cpu:1"))) == "cuda"
    assert str(name("").within(name("cpu:1"))) == "cpu:1"


# -- the rendezvous ----------------------------------------------------------------------------------------------------


class Waiter:
    """Notes what comes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] = []

    def __call__(self, error: BaseException | None, outputs: Any) -> None:
        self.calls.append((error, list(outputs)))

    @property
    def error(self) -> Any:
        ((error, outputs),) = self.calls
        assert outputs == []
        return error


def test_a_token_that_is_there_is_taken_at_once() -> None:
    meeting, waiter, token = LocalRendezvous(), Waiter(), np.arange(3)
    meeting.send("k", token)
    meeting.receive("k", waiter)
    ((error, outputs),) = waiter.calls
    assert error is None
    assert outputs[0] is token
    assert meeting.pending() == ([], [])


def test_who_comes_first_waits() -> None:
    meeting, waiter = LocalRendezvous(), Waiter()
    meeting.receive("k", waiter)
    meeting.receive("other", Waiter())
    assert waiter.calls == []
    meeting.send("k", 1)
    assert waiter.calls == [(None, [1])]
    assert meeting.pending() == ([], ["other"])


def test_a_callback_may_use_the_rendezvous() -> None:
    meeting, last = LocalRendezvous(), Waiter()
    meeting.receive("b", last)
    meeting.receive("a", lambda error, outputs: meeting.send("b", outputs[0] + 1))
    meeting.send("a", 1)
    assert last.calls == [(None, [2])]


def test_a_key_is_met_once() -> None:
    meeting = LocalRendezvous()
    meeting.send("k", 1)
    with pytest.raises(InternalError, match="two tokens are sent under k"):
        meeting.send("k", 2)
    meeting.receive("j", Waiter())
    with pytest.raises(InternalError, match="two nodes wait for j"):
        meeting.receive("j", Waiter())


def test_who_waits_can_give_up() -> None:
    meeting, waiter = LocalRendezvous(), Waiter()
    cancel = meeting.receive("k", waiter)
    cancel()
    cancel()
    assert isinstance(waiter.error, CancelledError)
    meeting.send("k", 1)
    assert meeting.pending() == (["k"], [])


def test_giving_up_too_late_does_nothing() -> None:
    meeting, waiter = LocalRendezvous(), Waiter()
    cancel = meeting.receive("k", waiter)
    meeting.send("k", 1)
    cancel()
    assert waiter.calls == [(None, [1])]


def test_an_abort_fails_what_waits_and_what_comes_later() -> None:
    meeting, early, late = LocalRendezvous(), Waiter(), Waiter()
    meeting.receive("k", early)
    cause = ValueError("first\nmore")
    meeting.abort(cause)
    meeting.abort(KeyError("second"))
    meeting.receive("k", late)
    for waiter in (early, late):
        assert isinstance(waiter.error, CancelledError)
        assert waiter.error.message == "another part of the step failed: ValueError: first"
        assert waiter.error.__cause__ is cause
    assert early.error is not late.error
    with pytest.raises(CancelledError, match="ValueError: first"):
        meeting.send("k", 1)


def test_tokens_meet_across_threads() -> None:
    meeting, count = LocalRendezvous(), 500
    got: list[int] = []
    sender = threading.Thread(target=lambda: [meeting.send(k, k) for k in range(count)])
    taker = threading.Thread(
        target=lambda: [meeting.receive(k, lambda e, o: got.append(o[0])) for k in range(count)]
    )
    for thread in (sender, taker):
        thread.start()
    for thread in (sender, taker):
        thread.join(10)
    assert sorted(got) == list(range(count))
    assert (meeting.sent, meeting.pending()) == (count, ([], []))


# -- CPU devices -------------------------------------------------------------------------------------------------------


def test_how_many_devices_there_are_is_an_option() -> None:
    assert [str(device.name) for device in cpus()] == ["/rank:0/cpu:0"]
    with config.override(cpu_devices=3):
        assert [str(device.name) for device in cpus()] == [f"/rank:0/cpu:{k}" for k in range(3)]
    assert cpus(2)[0] is cpus()[0]


def test_work_runs_on_a_thread_of_the_device() -> None:
    device, seen = Cpu(7), []
    for _ in range(3):
        assert device.start(lambda: seen.append(threading.current_thread().name)).wait(10)
        time.sleep(0.01)
    assert seen == ["dsl /rank:0/cpu:7"] * 3
    device.close()


def test_work_does_not_wait_behind_work_that_waits_for_it() -> None:
    device, there = Cpu(), threading.Event()
    first = device.start(lambda: there.wait(10) and None)
    second = device.start(there.set)
    assert second.wait(10)
    assert first.wait(10)
    device.close()


def test_a_device_bounds_the_threads_of_its_kernels() -> None:
    device, seen = Cpu(threads=1), []
    assert device.start(lambda: seen.append(config.num_threads)).wait(10)
    assert seen == [1]
    assert config.num_threads != 1 or config.is_overridden("num_threads") is False
    device.close()


def test_bytes_in_use_and_their_peak() -> None:
    device = Cpu()
    arrays = [np.zeros(100), np.zeros(50)]
    device.track(arrays)
    device.track(arrays)
    assert (device.memory.in_use, device.memory.peak) == (1200, 1200)
    del arrays[0]
    gc.collect()
    assert (device.memory.in_use, device.memory.peak) == (400, 1200)
    device.allocated(100)
    device.allocated(-100)
    assert (device.memory.in_use, device.memory.peak) == (400, 1200)


# -- steps -------------------------------------------------------------------------------------------------------------

A, B = "/rank:0/cpu:0", "/rank:0/cpu:1"
TWO = {A: Cpu(0), B: Cpu(1)}

SENDER = parse("""graph @g(%x: i64[]) -> () {
  %y = add(%x, %x) : i64[]
  !0 = send(%y) {key="k"}
  return after !0
}""")
TAKER = parse("""graph @g() -> (i64[]) {
  %y = recv() {key="k"} : i64[]
  return %y
}""")
PAIR = Partition(
    {A: Part(A, SENDER, (1,), ()), B: Part(B, TAKER, (), (0,))},
    (Source(B, 0), Source(None, 0)),
)
ARGS = [np.int64(9), np.int64(4)]


def oracle(graph: Any, args: Any, environment: Environment) -> list[Any]:
    return run_tokens(graph, args, environment=environment)


def test_results_come_from_parts_and_arguments() -> None:
    assert run_parts(PAIR, ARGS, TWO, oracle, Environment(timeout=10)) == [8, 9]


def test_a_partition_without_parts() -> None:
    assert run_parts(Partition({}, (Source(None, 1),)), ARGS, TWO, oracle) == [4]


def test_a_token_that_nobody_sends_is_refused_before_the_step() -> None:
    alone = Partition({B: PAIR.parts[B]}, (Source(B, 0),))
    with pytest.raises(DslError, match="no part sends 'k', for which a recv waits"):
        run_parts(alone, ARGS, TWO, oracle)


def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(
        DeviceError, match="cpu:1, which is not here; the devices are /rank:0/cpu:0"
    ):
        run_parts(PAIR, ARGS, {A: TWO[A]}, oracle)


def failing(where: str, error: BaseException) -> Any:
    def run_one(graph: Any, args: Any, environment: Environment) -> list[Any]:
        if graph is PAIR.parts[where].graph:
            raise error
        return oracle(graph, args, environment)

    return run_one


@pytest.mark.parametrize("where", [A, B])
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_the_first_error_ends_the_step(where: str, error: BaseException) -> None:
    start = time.monotonic()
    with pytest.raises(type(error)) as caught:
        run_parts(PAIR, ARGS, TWO, failing(where, error))
    assert caught.value is error
    assert time.monotonic() - start < 5


def test_a_part_that_computes_is_cancelled_by_the_error_of_another() -> None:
    """The other part never looks at the rendezvous."""

    def run_one(graph: Any, args: Any, environment: Environment) -> list[Any]:
        if graph is SENDER:
            raise ValueError("broken")
        assert environment.cancelled is not None
        while not environment.cancelled():
            time.sleep(0.001)
        raise CancelledError("secondary")

    with pytest.raises(ValueError, match="broken"):
        run_parts(PAIR, ARGS, TWO, run_one, Environment(timeout=10))


def sleepy(graph: Any, args: Any, environment: Environment) -> list[Any]:
    """A sender that is never done."""
    if graph is TAKER:
        return oracle(graph, args, environment)
    end = time.monotonic() + 10
    assert environment.cancelled is not None
    while time.monotonic() < end and not environment.cancelled():
        time.sleep(0.001)
    raise CancelledError("gave up")


def test_a_step_has_a_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineError, match=r"not done after 0\.1 s"):
        run_parts(PAIR, ARGS, TWO, sleepy, Environment(timeout=0.1))
    assert time.monotonic() - start < 5


def test_a_step_can_be_cancelled() -> None:
    end = time.monotonic() + 0.1
    environment = Environment(timeout=10, cancelled=lambda: time.monotonic() > end)
    with pytest.raises(CancelledError):
        run_parts(PAIR, ARGS, TWO, sleepy, environment)
    assert time.monotonic() - end < 5


def test_a_part_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE", 0.1)
    forever = threading.Event()

    def run_one(graph: Any, args: Any, environment: Environment) -> list[Any]:
        if graph is SENDER:
            raise ValueError("broken")
        forever.wait(20)
        return [0]

    with pytest.raises(ValueError, match="broken") as caught:
        run_parts(PAIR, ARGS, TWO, run_one)
    assert "the part on /rank:0/cpu:1 did not end" in caught.value.__notes__[0]
    forever.set()


def test_steps_run_at_the_same_time_on_the_same_devices() -> None:
    """Each device is held by one step while it waits for the part of that step on the other device."""
    held = {A: threading.Barrier(2), B: threading.Barrier(2)}

    def run_one(graph: Any, args: Any, environment: Environment) -> list[Any]:
        held[A if graph is SENDER else B].wait(10)
        return oracle(graph, args, environment)

    found: list[Any] = []
    steps = [
        threading.Thread(
            target=lambda: found.append(
                run_parts(PAIR, ARGS, TWO, run_one, Environment(timeout=10))
            )
        )
        for _ in range(2)
    ]
    for step in steps:
        step.start()
    for step in steps:
        step.join(20)
    assert found == [[8, 9], [8, 9]]


def test_the_environment_reaches_every_part() -> None:
    seen: list[Any] = []

    def run_one(graph: Any, args: Any, environment: Environment) -> list[Any]:
        seen.append((environment.resources, environment.services))
        return oracle(graph, args, environment)

    resources, services = {"v": object()}, {"s": object()}
    run_parts(PAIR, ARGS, TWO, run_one, Environment(resources, None, services, timeout=10))
    assert seen == [(resources, services)] * 2


def test_results_count_as_bytes_in_use_while_they_live() -> None:
    here = {A: Cpu(0), B: Cpu(1)}
    found = run_parts(PAIR, ARGS, here, oracle, Environment(timeout=10))
    assert here[B].memory.in_use == 8
    assert here[A].memory.in_use == 0
    del found
    gc.collect()
    assert here[B].memory.in_use == 0
    assert here[B].memory.peak == 8


# -- places in compiled functions ------------------------------------------------------------------------------------


def devices_of(compiled: Any, *args: Any) -> dict[str, str]:
    """Map the ops of a placed function to their devices."""
    with dsl.config.override(cpu_devices=2):
        graph = compiled.lower(*args).graph("placed")
    return {node.op.name: node.attrs["device"].rpartition("/")[2] for node in graph.nodes}


def test_derivatives_are_where_what_they_are_of_is() -> None:
    def f(w: Any, x: Any) -> Any:
        with dsl.device("cpu:1"):
            return np.tanh(x @ w).sum()

    found = devices_of(dsl.jit(dsl.grad(f)), np.ones((3, 2)), np.ones((4, 3)))
    assert set(found.values()) == {"cpu:1"}


def test_what_has_a_place_is_not_simplified_away_from_it() -> None:
    @dsl.jit
    def f(x: Any) -> Any:
        with dsl.device("cpu:0"):
            y = np.sin(x)
        with dsl.device("cpu:1"):
            return y * 1.0

    assert devices_of(f, np.ones(2)) == {"sin": "cpu:0", "const": "cpu:1", "multiply": "cpu:1"}


def test_a_loop_over_devices_is_unrolled() -> None:
    @dsl.jit
    def f(x: Any) -> Any:
        for k in range(2):
            with dsl.device(f"cpu:{k}"):
                x = np.sin(x) if k == 0 else np.cos(x)
        return x

    assert devices_of(f, np.ones(2)) == {"sin": "cpu:0", "cos": "cpu:1"}


def test_a_device_of_an_unknown_kind_is_named() -> None:
    @dsl.jit
    def f(x: Any) -> Any:
        with dsl.device("gpu:0"):
            return 2 * x

    with pytest.raises(DeviceError, match="no devices of the kind 'gpu'"):
        f(np.ones(2))
