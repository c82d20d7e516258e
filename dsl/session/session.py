"""Sessions: run parts of a graph, feeding and fetching any tensor.

A step is cut out of the graph, compiled once for its feeds and fetches, and kept. Steps may run at once in many threads;
they meet in variables and queues alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl import events
from dsl.errors import CancelledError, DslError, FeedError
from dsl.executor.ranks import names_a_rank
from dsl.frontend.scopes import calls_on
from dsl.frontend.traced import Traced
from dsl.frontend.trees import Structure, flatten, unflatten
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, substitute
from dsl.ir.environment import Environment
from dsl.ir.graph import Value
from dsl.ir.types import TensorType, bind_shape
from dsl.mpi import pulse
from dsl.mpi.world import is_launched, world
from dsl.runtime.devices import Cpu, cpus
from dsl.session.cut import cut
from dsl.session.graph import Graph, Operation
from dsl.session.homes import is_elsewhere, settle
from dsl.session.native import NativeStep, Step, make_native
from dsl.session.step import TokenStep
from dsl.variables import Variable

__all__ = ["Session"]


class _Plan:
    """A step with what goes in and what comes out."""

    def __init__(
        self, step: Step, feeds: list[Value], names: list[str], order: list[int],
        fetches: list[int | None], structure: Structure,
    ) -> None:  # fmt: skip
        self.step, self.fetches, self.structure = step, fetches, structure
        self.feeds = [_Feed(v.tensor, name) for v, name in zip(feeds, names, strict=True)]
        self.shared = _share_symbols(feeds)
        # Which feed each param of the step is.
        self.order = order if order != sorted(order) else None

    def arrays(self, given: Sequence[Any]) -> list[np.ndarray]:
        """Return what is fed as arrays of the right dtype and shape, in the step's order, or raise FeedError."""
        found = [feed(x) for feed, x in zip(self.feeds, given, strict=True)]
        if self.shared:
            _check_sizes(self.feeds, found)
        return found if self.order is None else [found[k] for k in self.order]

    def answer(self, found: Sequence[Any]) -> Any:
        """Put results into the structure of the fetches."""
        leaves = [None if k is None else _scalar(found[k]) for k in self.fetches]
        return leaves[0] if self.structure.type is None else unflatten(self.structure, leaves)


@dataclass(frozen=True)
class _Made:
    """A step, and which values its params and its results are."""

    step: Step
    feeds: list[Value]
    fetches: list[Value]


class _Feed:
    """What one feed must be."""

    def __init__(self, type: TensorType, name: str) -> None:
        self.type, self.name = type, name
        self.dtype, self.rank = type.dtype, type.rank
        self.shape = type.shape if type.is_static() else None

    def __call__(self, given: Any) -> np.ndarray:
        if type(given) is np.ndarray and given.dtype == self.dtype and given.flags.carray:
            array = given
        else:
            array = self._converted(given)
        if array.shape != self.shape:
            self._check(array)
        return array

    def _converted(self, given: Any) -> np.ndarray:
        if isinstance(given, Traced):
            raise FeedError(
                f"{self.name!r} is fed with a tensor of a graph",
                remedy="feed an array: what `session.run` returns",
            )
        array = given.snapshot() if isinstance(given, Variable) else self._array(given)
        weak = isinstance(given, (bool, int, float, complex, list, tuple))
        if weak and array.size and _RANKS.get(array.dtype.kind, 9) > _RANKS[self.dtype.kind]:
            raise self._wrong(f"{_KINDS.get(array.dtype.kind, 'other')} numbers")
        if not weak and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise self._wrong(f"an array of dtype {array.dtype}")
        made = np.ascontiguousarray(array, self.dtype).reshape(array.shape)
        if self.dtype.kind in "iu" and array.dtype.kind in "iu" and (made != array).any():
            raise self._wrong("numbers beyond the range of that dtype")
        return made

    def _array(self, given: Any) -> np.ndarray:
        try:
            array = np.asarray(given)
        except DslError:
            raise
        except (TypeError, ValueError) as error:
            raise self._wrong(f"what is no array ({error})") from None
        if array.dtype.kind not in _RANKS:
            raise self._wrong(f"an array of dtype {array.dtype}")
        return array

    def _check(self, array: np.ndarray) -> None:
        if array.ndim != self.rank or any(
            isinstance(n, int) and n != m for n, m in zip(self.type.shape, array.shape, strict=True)
        ):
            raise self._wrong(f"an array of shape {array.shape}")

    def _wrong(self, got: str) -> FeedError:
        shape = ", ".join(str(n) if isinstance(n, int) else "None" for n in self.type.shape)
        return FeedError(
            f"{self.name!r} takes an array of dtype {self.dtype} and shape ({shape}), and is fed with {got}",
            remedy="convert what is fed (`.astype`, `.reshape`), or change the placeholder",
        )


_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}  # of kinds of dtypes; bfloat16 is a V
_KINDS = {"i": "whole", "u": "whole", "f": "floating-point", "V": "floating-point", "c": "complex"}


def _share_symbols(feeds: Sequence[Value]) -> bool:
    """Tell whether sizes of several feeds depend on one another."""
    symbols = [d for v in feeds for d in v.shape if isinstance(d, Dim)]
    return len(set(symbols)) < len(symbols)


def _check_sizes(feeds: Sequence[_Feed], arrays: Sequence[np.ndarray]) -> None:
    sizes: dict[Dim, int] = {}
    for feed, array in zip(feeds, arrays, strict=True):
        bind_shape(feed.type.shape, array.shape, sizes)
    for feed, array in zip(feeds, arrays, strict=True):
        wanted = tuple(n if isinstance(n, int) else substitute(n, sizes) for n in feed.type.shape)
        if wanted != array.shape:
            raise FeedError(
                f"{feed.name!r} must have the shape {wanted} beside the other feeds, and has {array.shape}"
            )


def _scalar(array: Any) -> Any:
    return array if array.ndim else array[()]


class Session:
    """Runs steps of a graph. Safe to use from many threads.

    `devices` is how many CPU devices there are (`cpu:0`, `cpu:1`, ...); with `soft_placement` what asks for a device that
    is not there runs on another one. `timeout` in seconds is for every step.

    >>> with Graph() as graph:
    ...     count = Variable(0, name="count")
    ...     tick = count.assign_add(1)
    >>> with Session(graph) as session:
    ...     int(session.run(tick)), int(session.run(tick))
    (1, 2)
    """

    def __init__(
        self, graph: Graph | ir.Graph, *, devices: int | None = None, soft_placement: bool = False,
        timeout: float | None = None, parallel_iterations: int = 10,
    ) -> None:  # fmt: skip
        self.graph = Graph.of(graph) if isinstance(graph, ir.Graph) else graph
        if not isinstance(self.graph, Graph):
            raise FeedError(f"a session runs a `dsl.Graph`, got {graph!r}")
        self.timeout, self._soft, self._parallel = timeout, soft_placement, parallel_iterations
        self._devices = _make_devices(devices)
        self._plans: dict[Any, _Plan] = {}  # by what users write
        self._steps: dict[Any, _Made] = {}  # by what that means
        self.closed = False
        self.hits = self.misses = 0

    # -- running ------------------------------------------------------------------------------------------------------

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, *, timeout: float | None = None
    ) -> Any:  # fmt: skip
        """Run one step and return what the fetches are, in the same structure.

        A fetch is a tensor, a variable, or an operation, whose value is None; a tuple, list or dict of fetches gives one of
        values. Any tensor can be fed, in place of what the graph would compute; one that is fetched too is what was fed.
        """
        given = {} if feed_dict is None else feed_dict
        if not isinstance(given, Mapping):
            raise FeedError(
                f"feeds are a dict from tensors to arrays, got {given!r}",
                remedy="write `session.run(fetches, {x: array})`",
            )
        plan = self._plan(fetches, tuple(given))
        arrays = plan.arrays(tuple(given.values()))
        return plan.answer(self._step(plan, arrays, timeout))

    def make_callable(self, fetches: Any, feed_list: Sequence[Any] = ()) -> Callable[..., Any]:
        """Return a function of the feeds, in order, that runs the step: the quick way to run one many times."""
        plan = self._plan(fetches, tuple(feed_list))
        if isinstance(plan.step, NativeStep) and self.timeout is None and not pulse.is_on():
            return self._direct(plan, plan.step.direct)

        def call(*args: Any) -> Any:
            self._check_count(args, plan)
            return plan.answer(self._step(plan, plan.arrays(args), None))

        return call

    def _direct(self, plan: _Plan, direct: Callable[..., Any]) -> Callable[..., Any]:
        take, answer, count = plan.arrays, plan.answer, len(plan.feeds)

        def call(*args: Any) -> Any:
            if len(args) != count or self.closed:
                self._check_count(args, plan)
            if events.LOG is not None:
                return answer(self._step(plan, take(args), None))
            return answer(direct(*take(args)))

        def plain() -> Any:
            if self.closed:
                self._check_open()
            if events.LOG is not None:
                return answer(self._step(plan, [], None))
            return answer(direct())

        return call if count else plain

    def _check_count(self, args: Sequence[Any], plan: _Plan) -> None:
        self._check_open()
        if len(args) != len(plan.feeds):
            names = ", ".join(feed.name for feed in plan.feeds) or "none"
            raise FeedError(f"this step takes {len(plan.feeds)} feeds ({names}), got {len(args)}")

    def _step(self, plan: _Plan, arrays: list[np.ndarray], timeout: float | None) -> list[Any]:
        self._check_open()
        if events.LOG is not None:
            with events.span("step", self.graph.name, data={"runs": plan.step.stage}):
                return self._run(plan, arrays, timeout)
        return self._run(plan, arrays, timeout)

    def _run(self, plan: _Plan, arrays: list[np.ndarray], timeout: float | None) -> list[Any]:
        pulse.beat("a step of a session")
        if isinstance(plan.step, NativeStep):
            return plan.step.run(arrays, self._limits(timeout))
        return plan.step.run(arrays, self.environment(timeout))

    def _limits(self, timeout: float | None) -> Environment:
        limit = self.timeout if timeout is None else timeout
        return Environment(timeout=limit, cancelled=self._is_closed)

    def _is_closed(self) -> bool:
        return self.closed

    def environment(self, timeout: float | None, rendezvous: Any = None) -> Environment:
        """Return what the nodes of a step reach."""
        from dsl.checkpoints.service import Checkpoints

        limit = self.timeout if timeout is None else timeout
        services = {"checkpoints": Checkpoints()}
        return Environment(self.graph.resources, rendezvous, services, limit, lambda: self.closed)

    # -- planning -----------------------------------------------------------------------------------------------------

    def _plan(self, fetches: Any, feeds: tuple[Any, ...]) -> _Plan:
        leaves, structure = flatten(fetches)
        key = (tuple(map(_key, leaves)), structure, tuple(map(_key, feeds)))
        try:
            found = self._plans.get(key)
        except TypeError:  # what cannot be hashed is no part of a graph, and `_fetched` says so
            list(map(self._fetched, leaves))
            raise
        if found is not None:
            self.hits += 1
            return found
        with self.graph.lock:
            if key not in self._plans:
                self._plans[key] = self._make_plan(leaves, structure, feeds)
            return self._plans[key]

    def _make_plan(self, leaves: list[Any], structure: Structure, feeds: tuple[Any, ...]) -> _Plan:
        self._check_open()
        if not leaves:
            raise FeedError("a step must fetch something", remedy="name a tensor or an operation")
        fed = [self._fed(x) for x in feeds]
        fetched = list(map(self._fetched, leaves))
        values = list(dict.fromkeys(f for f in fetched if isinstance(f, Value)))
        targets = [n for f in fetched if isinstance(f, Operation) for n in f.nodes]
        self.check_feeds(fed)
        made = self._made(fed, values, list(dict.fromkeys(targets)))
        places = [made.fetches.index(f) if isinstance(f, Value) else None for f in fetched]
        names = [self.name_of(value) for value in fed]
        return _Plan(made.step, fed, names, list(map(fed.index, made.feeds)), places, structure)

    def _made(self, feeds: list[Value], values: list[Value], targets: list[ir.Node]) -> _Made:
        """Return the step for a set of feeds and fetches: in whatever order they are named, there is one."""
        key = (frozenset(feeds), frozenset(values), frozenset(targets))
        if key in self._steps:
            self.hits += 1
        else:
            self._steps[key] = _Made(self._compile(feeds, values, targets), feeds, values)
            self.misses += 1
        return self._steps[key]

    def check_feeds(self, fed: Sequence[Value], values: Sequence[Any] = ()) -> None:
        """Refuse what is fed twice, or among the values."""
        for k, value in enumerate(fed):
            if value in fed[:k]:
                raise FeedError(f"{self.name_of(value)!r} is fed twice")
            if value in values:
                raise FeedError(
                    f"{self.name_of(value)!r} is fed and fetched in one step",
                    remedy="leave it out of the fetches: its value is what you feed",
                )

    def _compile(self, feeds: list[Value], values: list[Value], targets: list[ir.Node]) -> Step:
        start = time.perf_counter()
        found = cut(self.graph, feeds, values, targets)
        step: Step | None = None
        if self.spans_ranks(found.graph):
            from dsl.session.remote import RankStep

            step = RankStep(
                found.graph,
                found.bound,
                self.graph.places,
                self._devices,
                self._soft,
                self._parallel,
            )
        elif len(self._devices) == 1:
            step = make_native(found.graph, found.bound, self.graph.resources)
        step = step or self.token_step(found.graph, found.bound)
        from dsl.logs import log

        log("compile", "%s: a step for %d feeds and %d fetches, %s, %.1f ms", self.graph.name,
            len(feeds), len(values), step.stage, 1e3 * (time.perf_counter() - start))  # fmt: skip
        return step

    def spans_ranks(self, graph: ir.Graph) -> bool:
        """Tell whether a step has parts on other ranks."""
        if not is_launched() or world().size == 1:
            return False
        settle(self.graph, graph, world().rank)
        return names_a_rank(graph) or is_elsewhere(self.graph, graph, world().rank)

    def token_step(self, graph: ir.Graph, bound: Sequence[np.ndarray]) -> TokenStep:
        """Return what runs a graph token by token."""
        return TokenStep(
            graph, bound, self.graph.resources, self._devices, self._soft, self._parallel
        )

    def _fetched(self, item: Any) -> Any:
        if isinstance(item, str):
            item = self.graph.tensor(item)
        if isinstance(item, Operation):
            if item.graph is not self.graph:
                raise FeedError(f"{item!r} is not part of {self.graph!r}")
            return item
        if isinstance(item, Variable):
            with calls_on(None), self.graph:
                return self.graph.value_of(item.dsl_traced())
        return self._value(item, "fetch")

    def _fed(self, item: Any) -> Value:
        if isinstance(item, str):
            item = self.graph.tensor(item)
        if isinstance(item, (Variable, Operation)):
            raise FeedError(
                f"{item!r} cannot be fed", remedy="assign to the variable, or feed a tensor"
            )
        value = self._value(item, "feed")
        if value in self.graph.bound:
            raise FeedError("a constant array cannot be fed", remedy="make it a placeholder")
        return value

    def _value(self, item: Any, verb: str) -> Value:
        if not isinstance(item, Traced):
            raise FeedError(
                f"cannot {verb} {item!r}: it is not a tensor of the graph",
                remedy="use what was made inside `with graph:`",
            )
        if not self.graph.owns(item):
            raise FeedError(
                f"cannot {verb} {item!r}: {self.graph!r} does not hold it",
                remedy="use a tensor that was made inside `with graph:`, outside of branches and loops",
            )
        return self.graph.value_of(item)

    def name_of(self, item: Any) -> str:
        """Return what messages call a feed or fetch."""
        if isinstance(item, Operation):
            return item.name
        return self.graph.placeholders.get(item) or str(item.node.op.name)

    def feed_of(self, value: Value) -> Callable[[Any], np.ndarray]:
        """Return what checks and converts what is fed for a value."""
        return _Feed(value.tensor, self.name_of(value))

    # -- partial runs --------------------------------------------------------------------------------------------------

    def partial_run_setup(self, fetches: Sequence[Any], feeds: Sequence[Any]) -> Any:
        """Begin a step of which feeds and fetches come in parts; return the handle for `partial_run`."""
        from dsl.session.partial import Partial

        self._check_open()
        with self.graph.lock:
            fetched, fed = [self._fetched(f) for f in fetches], [self._fed(f) for f in feeds]
            if not fetched:
                raise FeedError("a partial run must fetch something")
            self.check_feeds(fed, fetched)
            return Partial(self, fetched, fed)

    def partial_run(
        self, handle: Any, fetches: Any, feed_dict: Mapping[Any, Any] | None = None
    ) -> Any:
        """Feed a part of a step and fetch a part; every feed and fetch of the step once."""
        from dsl.session.partial import Partial

        self._check_open()
        if not isinstance(handle, Partial) or handle.session is not self:
            raise FeedError(
                f"{handle!r} is no partial run of this session",
                remedy="use what `partial_run_setup` returned",
            )
        leaves, structure = flatten(fetches)
        given = {self._fed(key): value for key, value in (feed_dict or {}).items()}
        found = handle.run([self._fetched(leaf) for leaf in leaves], given)
        return found[0] if structure.type is None else unflatten(structure, found)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session: steps that wait are cancelled, later ones refused."""
        was_open, self.closed = not self.closed, True
        if was_open and is_launched() and world().size > 1:
            from dsl.session.remote import say_bye

            say_bye(self.graph.name)

    def _check_open(self) -> None:
        if self.closed:
            raise CancelledError("the session is closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def explain(self) -> str:
        """Say which steps there are, and how each runs."""
        steps = list(self._steps.values())
        lines = [f"{self.graph.name}: {len(steps)} {'step' if len(steps) == 1 else 'steps'}"]
        for made in steps:
            how = "one native program" if isinstance(made.step, NativeStep) else "token by token"
            feeds = ", ".join(map(self.name_of, made.feeds)) or "nothing"
            lines.append(f"  fed with {feeds}: {how}, {_counted(made.step.graph)}")
        return "\n".join(lines)


def _counted(graph: ir.Graph) -> str:
    count = len(graph.nodes)
    return f"{count} node" if count == 1 else f"{count} nodes"


def _key(item: Any) -> Any:
    if isinstance(item, Traced):
        return (item.storage.value, item.views)
    return item


def _make_devices(count: int | None) -> list[Cpu]:
    if count is not None and count < 1:
        raise FeedError(f"devices must be how many CPU devices there are, 1 or more, got {count!r}")
    return cpus(count)
