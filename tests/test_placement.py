"""Placement: what nodes ask for and get, groups, soft placement, the cost model, and lowering what spans devices."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flat_graphs import COUNT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placed_graphs import DEVICES, device, run_everywhere, with_devices
from random_graphs import graphs

from dsl.config import config
from dsl.errors import DeviceError
from dsl.ir.devices import DeviceName
from dsl.ir.graph import Graph, Node
from dsl.ir.location import Location
from dsl.ir.parts import node_names
from dsl.ir.text import parse
from dsl.ir.token_machine import run_tokens
from dsl.ir.types import BY_NAME
from dsl.ir.verify import verify
from dsl.passes.lower_control import lower_control
from dsl.passes.lower_spanning import lower_spanning
from dsl.passes.partition import partition
from dsl.passes.place import place
from dsl.passes.raise_control import raise_control

TWO = DEVICES[:2]
GPU_BOX = [*TWO, "/rank:0/cuda:0"]


def graph(body: str, params: str = "%x: f64[]", results: str = "%z", types: str = "f64[]") -> Graph:
    text = f"graph @g({params}) -> ({types}) {{\n{body}\n return {results}\n}}"
    return with_locations(parse(text))


def with_locations(graph: Graph) -> Graph:
    """Pretend that a graph was written in a user's program."""
    for line, node in enumerate(graph.nodes, start=1):
        object.__setattr__(node, "loc", Location("user.py", line, "model"))
    return graph


def places(found: Graph) -> dict[str, str]:
    """Map the names of nodes to the kind and index of their devices."""
    return {
        name: str(DeviceName.parse(node.attrs["device"])).rpartition("/")[2]
        for node, name in node_names(found).items()
    }


def put(graph: Graph, devices: Iterable[str] = TWO, **options: Any) -> dict[str, str]:
    found = place(graph, devices, **options)
    verify(found)
    assert place(found, devices, **options) is found
    return places(found)


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_with_one_device_everything_is_there() -> None:
    assert set(put(parse(COUNT), ["/rank:0/cpu:0"]).values()) == {"cpu:0"}


def test_a_node_gets_what_it_asks_for() -> None:
    found = graph("""%y = sin(%x) {device="cpu:1"} : f64[]
      %z = cos(%y) {device="/rank:0/cpu:0"} : f64[]""")
    assert put(found) == {"sin_0": "cpu:1", "cos_1": "cpu:0"}


def test_a_part_of_a_name_is_a_constraint() -> None:
    devices = ["/rank:0/cpu:0", "/rank:1/cpu:0", "/rank:1/cpu:1"]
    found = graph("""%y = sin(%x) {device="/rank:1"} : f64[]
      %z = cos(%y) {device="cpu:1"} : f64[]""")
    placed = [node.attrs["device"] for node in place(found, devices).nodes]
    assert placed == ["/rank:1/cpu:0", "/rank:1/cpu:1"]


def test_what_asks_for_nothing_gets_the_default() -> None:
    found = graph("""%y = sin(%x) {device="cpu:0"} : f64[]
      %z = cos(%y) : f64[]""")
    assert put(found, default="cpu:1") == {"sin_0": "cpu:0", "cos_1": "cpu:1"}


def test_without_requests_a_small_graph_stays_on_the_first_device() -> None:
    assert set(put(parse(COUNT)).values()) == {"cpu:0"}


def test_devices_are_listed_by_full_names() -> None:
    with pytest.raises(DeviceError, match="'cpu:0' is a part of a device's name"):
        place(graph("%z = sin(%x) : f64[]"), ["cpu:0"])


def test_a_name_that_is_none_is_refused_with_its_line() -> None:
    found = graph('%z = sin(%x) {device="gpu#1"} : f64[]')
    with pytest.raises(
        DeviceError, match=r"(?s)'gpu#1' is not the name of a device.*user.py.*line 1"
    ):
        place(found, TWO)


# -- what cannot be ----------------------------------------------------------------------------------------------------


GPU_ONLY = '%y = sin(%x) {device="cuda:0"} : f64[]\n %z = cos(%y) {device="cpu:1"} : f64[]'


def test_a_device_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    message = r"(?s)`sin` asks for the device 'cuda:0', which is not there; the devices are /rank:0/cpu:0, /rank:0/cpu:1"
    with pytest.raises(DeviceError, match=message + ".*user.py.*line 1.*soft_placement=True"):
        place(graph(GPU_ONLY), TWO)


def test_soft_placement_drops_kind_and_index(capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(logs="placement"):
        assert put(graph(GPU_ONLY), soft=True)["cos_1"] == "cpu:1"
    assert "sin asks for cuda:0, which cannot be" in capsys.readouterr().err


def test_soft_placement_keeps_the_rank() -> None:
    devices = ["/rank:0/cpu:0", "/rank:1/cpu:0"]
    found = graph('%z = sin(%x) {device="/rank:1/cuda:3"} : f64[]')
    assert place(found, devices, soft=True).nodes[0].attrs["device"] == "/rank:1/cpu:0"
    with pytest.raises(DeviceError, match="'/rank:5/cuda:3', which is not there"):
        place(graph('%z = sin(%x) {device="/rank:5/cuda:3"} : f64[]'), devices, soft=True)


def no_sorting(node: Node, device: DeviceName) -> bool:
    return device.kind == "cpu" or node.op.name != "sort"


def test_a_device_must_support_the_op() -> None:
    body = '%y = sort(%x) {axis=0, stable=false, device="cuda:0"} : f64[9]\n %z = sin(%y) {device="cuda:0"} : f64[9]'
    found = graph(body, "%x: f64[9]", types="f64[9]")
    with pytest.raises(
        DeviceError, match=r"no device that matches 'cuda:0' runs all of sort; the devices are"
    ):
        place(found, GPU_BOX, supports=no_sorting)
    assert put(found, GPU_BOX, supports=no_sorting, soft=True) == {
        "sort_0": "cpu:0",
        "sin_1": "cuda:0",
    }


def test_support_may_depend_on_dtypes() -> None:
    """Integers of 32 bits stay on the host."""
    i32 = BY_NAME["i32"]

    def supports(node: Node, device: DeviceName) -> bool:
        return device.kind == "cpu" or all(value.dtype != i32 for value in node.outputs)

    body = "%y = add(%x, %x) : i32[]\n %z = cast(%y) {dtype=f32} : f32[]"
    found = graph(body, "%x: i32[]", types="f32[]")
    assert put(found, GPU_BOX, supports=supports, default="cuda:0") == {
        "add_0": "cpu:0",
        "cast_1": "cuda:0",
    }


def test_support_is_asked_of_what_is_inside_a_structured_node() -> None:
    body = """%z = cond(%p, %x) : f64[9] {
        @then(%a: f64[9]) -> (f64[9]) { %0 = sort(%a) {axis=0, stable=false} : f64[9] return %0 }
        @else(%a: f64[9]) -> (f64[9]) { return %a }
      }"""
    found = graph(body, "%p: bool[], %x: f64[9]", types="f64[9]")
    assert put(found, GPU_BOX, supports=no_sorting, default="cuda:0") == {"cond_0": "cpu:0"}


# -- groups ------------------------------------------------------------------------------------------------------------

COLOCATED = """%a = sin(%x) {colocate="g", device="cpu:0"} : f64[]
  %b = cos(%a) {colocate="g", device="cpu:1"} : f64[]
  %z = add(%a, %b) : f64[]"""


def test_two_devices_in_one_colocation_group_are_an_error_that_names_both() -> None:
    message = r"""(?s)the nodes of the colocation group 'g' run on one device: `sin` asks for 'cpu:0'
.*user.py", line 1.*and `cos` for 'cpu:1'.*user.py", line 2.*Fix: ask for one device"""
    with pytest.raises(DeviceError, match=message):
        place(graph(COLOCATED), TWO)


def test_soft_placement_ignores_a_colocation_that_cannot_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with config.override(logs="placement"):
        found = put(graph(COLOCATED), soft=True)
    assert (found["sin_0"], found["cos_1"]) == ("cpu:0", "cpu:1")
    assert (
        "cos asks for cpu:1, so it leaves the colocation group 'g' on cpu:0"
        in capsys.readouterr().err
    )


def test_colocation_is_transitive() -> None:
    """The node of two groups joins them; one request is enough for all."""
    variables = """%v = read_variable() {variable="v", colocate="g"} : f64[]
      %a = sin(%v) {colocate="g"} : f64[]
      %b = cos(%x) {colocate="h"} : f64[]
      %w = update_variable(%b) {variable="v", how="set", colocate="h"} after %v : f64[]
      %z = add(%b, %x) {colocate="h", device="cpu:1"} : f64[]"""
    found = put(graph(variables, results="%z, %a, %w", types="f64[], f64[], f64[]"))
    assert set(found.values()) == {"cpu:1"}


def test_parts_of_names_in_a_group_are_merged() -> None:
    devices = [f"/rank:{r}/cpu:{i}" for r in (0, 1) for i in (0, 1)]
    found = graph("""%a = sin(%x) {colocate="g", device="/rank:1"} : f64[]
      %z = cos(%a) {colocate="g", device="cpu:1"} : f64[]""")
    assert {node.attrs["device"] for node in place(found, devices).nodes} == {"/rank:1/cpu:1"}


TRAINING = """%w = read_variable() {variable="w", device="cpu:1"} : f64[]
  %g = multiply(%w, %x) {device="cpu:0"} : f64[]
  %m = update_variable(%g) {variable="slot", how="add", colocate="w"} : f64[]
  %z = update_variable(%m) {variable="w", how="subtract", colocate="w"} after %w : f64[]"""


def test_a_variable_its_updates_and_its_slots_are_on_one_device() -> None:
    assert put(graph(TRAINING)) == {
        "read_variable_0": "cpu:1",
        "multiply_1": "cpu:0",
        "update_variable_2": "cpu:1",
        "update_variable_3": "cpu:1",
    }


def test_the_device_of_a_variable_overrules_who_touches_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = TRAINING.replace('how="subtract"', 'how="subtract", device="cpu:0"')
    with config.override(logs="placement"):
        assert put(graph(text))["update_variable_3"] == "cpu:1"
    message = "update_variable asks for cpu:0 and touches variable 'w' on cpu:1, so it runs there"
    assert message in capsys.readouterr().err


def test_a_variable_that_has_a_device_keeps_it() -> None:
    found = put(graph(TRAINING), resources={"w": device(0), "slot": device(0)})
    assert set(found.values()) == {"cpu:0"}


def test_a_queue_holds_its_operations_together() -> None:
    body = """!0 = enqueue(%x) {queue="q"}
      %z = dequeue() {queue="q", device="cpu:1"} after !0 : f64[]"""
    assert put(graph(body)) == {"enqueue_0": "cpu:1", "dequeue_1": "cpu:1"}


def test_a_structured_node_is_where_the_variables_inside_are() -> None:
    body = """%v = read_variable() {variable="v", device="cpu:1"} : f64[]
      %z = cond(%p, %v) after %v : f64[] {
        @then(%a: f64[]) -> (f64[]) { %0 = update_variable(%a) {variable="v", how="add"} : f64[] return %0 }
        @else(%a: f64[]) -> (f64[]) { return %a }
      }"""
    assert put(graph(body, "%p: bool[]")) == {"read_variable_0": "cpu:1", "cond_1": "cpu:1"}


# -- control flow ------------------------------------------------------------------------------------------------------


def test_the_nodes_of_a_loop_variable_stay_together() -> None:
    """Whatever they ask for themselves; the variable is where its next value is made."""
    text = COUNT.replace("%y = add(%in, %s)", '%y = add(%in, %s) {device="cpu:1"}')
    text = text.replace('enter(%zero) {frame="w"}', 'enter(%zero) {frame="w", device="cpu:0"}')
    text = text.replace("exit(%out)", 'exit(%out) {device="cpu:0"}')
    found = put(parse(text))
    loop = [
        place for name, place in found.items() if name.split("_")[0] in ("exit", "next", "switch")
    ]
    assert set(loop) == {"cpu:1"}
    assert found["loop_merge_2"] == found["enter_1"] == "cpu:1"


def test_a_loop_variable_is_where_it_asks_to_be() -> None:
    text = COUNT.replace("loop_merge(%i, %next)", 'loop_merge(%i, %next) {device="cpu:1"}')
    text = text.replace("%y = add(%in, %s)", '%y = add(%in, %s) {device="cpu:0"}')
    found = put(parse(text))
    assert (found["loop_merge_2"], found["enter_1"], found["add_10"]) == ("cpu:1", "cpu:1", "cpu:0")


def test_a_switch_follows_its_data() -> None:
    body = """%a = sin(%x) {device="cpu:1"} : f64[]
      %no, %yes = switch(%a, %p) {device="cpu:0"} : f64[], f64[]
      %b = cos(%yes) {device="cpu:0"} : f64[]
      %z = merge(%no, %b) : f64[]"""
    found = put(graph(body, "%x: f64[], %p: bool[]"))
    assert found["switch_1"] == "cpu:1"


# -- the cost model ----------------------------------------------------------------------------------------------------

WIDE = """%a = sin(%x) : f64[]
  %b = cos(%x) : f64[]
  %z = add(%a, %b) : f64[]"""


def test_independent_work_that_takes_long_is_spread() -> None:
    assert put(graph(WIDE), costs={"sin_0": 1.0, "cos_1": 1.0}) == {
        "sin_0": "cpu:0",
        "cos_1": "cpu:1",
        "add_2": "cpu:0",
    }


def test_work_that_is_shorter_than_a_transfer_is_not() -> None:
    """One node at a time would be spread; together they are faster on one device."""
    assert set(put(graph(WIDE), costs={"sin_0": 1e-6, "cos_1": 1e-6}).values()) == {"cpu:0"}


def test_a_node_goes_where_its_big_inputs_are() -> None:
    body = """%a = sin(%x) {device="cpu:1"} : f64[1000000]
      %b = sum(%y) {axes=(0,), device="cpu:0"} : f64[]
      %z = multiply(%a, %b) : f64[1000000]"""
    found = graph(body, "%x: f64[1000000], %y: f64[10]", types="f64[1000000]")
    assert put(found)["multiply_2"] == "cpu:1"


def test_estimates_tell_matrix_products_from_sums() -> None:
    """Two big products are spread; two additions of the same size are not worth a transfer between ranks."""
    far = ["/rank:0/cpu:0", "/rank:1/cpu:0"]
    params = "%x: f64[500, 500]"
    for op, spread in (("matmul", True), ("add", False)):
        body = f"""%a = {op}(%x, %x) : f64[500, 500]
          %y = negative(%x) : f64[500, 500]
          %b = {op}(%x, %y) : f64[500, 500]
          %z = add(%a, %b) : f64[500, 500]"""
        found = place(graph(body, params, types="f64[500, 500]"), far)
        assert (len({node.attrs["device"] for node in found.nodes}) == 2) is spread, op


def test_a_constant_joins_its_readers() -> None:
    body = """%c = const() {value=2.0} : f64[]
      %a = multiply(%x, %c) {device="cpu:1"} : f64[]
      %z = add(%a, %c) {device="cpu:1"} : f64[]"""
    assert put(graph(body)) == {"const_0": "cpu:1", "multiply_1": "cpu:1", "add_2": "cpu:1"}


def test_a_small_constant_is_wherever_it_is_read() -> None:
    body = """%c = const() {value=2.0} : f64[]
      %a = multiply(%x, %c) {device="cpu:1"} : f64[]
      %z = add(%a, %c) {device="cpu:0"} : f64[]"""
    parts = partition(place(graph(body), TWO)).parts
    for part in parts.values():
        assert [node.op.name for node in part.graph.nodes].count("const") == 1


# -- lowering what spans devices -----------------------------------------------------------------------------------------

NESTED = """%z = while(%n, %x) {carried=1} : i64[] {
    @test(%i: i64[], %b: i64[]) -> (bool[]) { %0 = less(%i, %b) : bool[] return %0 }
    @body(%i: i64[], %b: i64[]) -> (i64[]) {
      %s = scan(%b, %i) {carried=1} : i64[] {
        @step(%k: i64[], %c: i64[]) -> (i64[]) { %0 = maximum(%c, %k) {device="INNER"} : i64[] return %0 }
      }
      %0 = add(%s, %b) {device="OUTER"} : i64[]
      return %0
    }
  }"""


def nested(inner: str, outer: str) -> Graph:
    body = NESTED.replace("INNER", inner).replace("OUTER", outer)
    return graph(body, "%n: i64[], %x: i64[]", types="i64[]")


def op_names(graph: Graph) -> set[str]:
    return {node.op.name for node in graph.nodes}


def test_a_loop_on_one_device_stays_whole() -> None:
    whole = nested("cpu:1", "cpu:1")
    assert lower_spanning(whole) is whole
    assert put(whole) == {"while_0": "cpu:1"}
    empty = nested("", "")
    assert lower_spanning(empty) is empty


def test_only_what_spans_devices_is_lowered() -> None:
    flat = lower_spanning(nested("cpu:0", "cpu:1"))
    verify(flat)
    assert "scan" in op_names(flat)
    assert "while" not in op_names(flat)
    found = place(flat, TWO)
    scan = next(node for node in found.nodes if node.op.name == "scan")
    assert scan.attrs["device"] == device(0)
    args = [np.int64(1), np.int64(5)]
    assert run_everywhere(found, args) == [x.tolist() for x in run_tokens(flat, args)]
    assert raise_control(flat) == nested("cpu:0", "cpu:1")


def test_a_loop_cannot_be_placed_whole_if_it_spans_devices() -> None:
    with pytest.raises(
        DeviceError, match=r"(?s)`while` runs whole on one device: `maximum` asks for 'cpu:0'"
    ):
        place(nested("cpu:0", "cpu:1"), TWO)


def test_regions_take_over_what_they_leave_open() -> None:
    """The body's `add` asks for another CPU of the rank that the loop is on; the rest is where the loop is."""
    loop = nested("", "cpu:1")
    (node,) = loop.nodes
    around = with_devices(loop, lambda each: "/rank:1/cpu:0" if each.op.name == "while" else None)
    flat = lower_spanning(around)
    asked = {each.op.name: each.attrs["device"] for each in flat.nodes}
    assert asked["add"] == "/rank:1/cpu:1"
    assert asked["scan"] == asked["less"] == asked["loop_merge"] == "/rank:1/cpu:0"
    assert node.op.name == "while"


def test_variables_on_different_devices_make_a_loop_span_them() -> None:
    body = """%v = read_variable() {variable="v"} : f64[]
      %w = read_variable() {variable="w"} : f64[]
      %z = cond(%p, %x) after %v, %w : f64[] {
        @then(%a: f64[]) -> (f64[]) { %0 = update_variable(%a) {variable="v", how="add"} : f64[] return %0 }
        @else(%a: f64[]) -> (f64[]) { %0 = update_variable(%a) {variable="w", how="add"} : f64[] return %0 }
      }"""
    found = graph(body, "%p: bool[], %x: f64[]")
    assert lower_spanning(found) is found
    assert lower_spanning(found, resources={"v": device(0), "w": device(0)}) is found
    apart = {"v": device(0), "w": device(1)}
    flat = lower_spanning(found, resources=apart)
    placed = place(flat, TWO, resources=apart)
    updates = {
        n.attrs["variable"]: n.attrs["device"]
        for n in placed.nodes
        if n.op.name == "update_variable"
    }
    assert updates == apart


def test_what_has_no_flat_spelling_runs_on_one_device() -> None:
    body = """%z = checkpoint(%x) : f64[] {
        @call(%a: f64[]) -> (f64[]) {
          %0 = sin(%a) {device="cpu:0"} : f64[]
          %1 = cos(%0) {device="cpu:1"} : f64[]
          return %1
        }
      }"""
    with pytest.raises(
        DeviceError,
        match="`checkpoint` runs on one device, and nodes in it ask for 'cpu:0' and 'cpu:1'",
    ):
        lower_spanning(graph(body))


# -- all together ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 1 << 30), st.booleans())
def test_random_requests_are_met(drawn: tuple[Graph, list[Any]], seed: int, all_flat: bool) -> None:
    """Nodes at any depth ask for devices; what runs in parts is what the graph does."""
    structured, args = drawn
    rng = random.Random(seed)
    names = ["cpu:0", "cpu:1", "/rank:0/cpu:2", "/rank:0", "cpu"]

    def pick(node: Node) -> str | None:
        return rng.choice(names) if node.op.name != "const" and rng.random() < 0.4 else None

    asking = with_devices(structured, pick, nested=True)
    asking = lower_control(asking) if all_flat else lower_spanning(asking)
    verify(asking)
    placed = place(asking, DEVICES)
    verify(placed)
    followers = ("switch", "exit", "enter", "next_iteration")
    for before, after in zip(asking.nodes, placed.nodes, strict=True):
        if before.op.name not in followers:
            name = DeviceName.parse(before.attrs.get("device", ""))
            assert name.matches(DeviceName.parse(after.attrs["device"]))
    expected = run_tokens(asking, [np.asarray(arg) for arg in args])
    assert repr(run_everywhere(placed, args, runs=2)) == repr([x.tolist() for x in expected])
