"""The pipeline, top to bottom: trace a function, improve its graph, run it; and the object that `dsl.jit` returns.

    traced -> canonicalize, fold, choose, simplify, cse, licm, dce -> optimized -> lower_control -> lowered

`optimized` is the structured form, which runs. `lowered` is its flat spelling in Switch, Merge, Enter, Exit and
NextIteration, made when somebody asks. After each pass the graph is verified (as `DSL_VERIFY` says), timed and, if it
changed, dumped (`DSL_DUMP_IR_TO`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from dsl import events
from dsl.autodiff.recording import spell_out
from dsl.config import config, launched_rank
from dsl.errors import (
    ConfigError,
    DeviceError,
    DslError,
    IndexTypeError,
    NonConcreteError,
    NumberError,
    ShapeError,
    UnsupportedError,
)
from dsl.executables import executable, run, touched
from dsl.frontend import functions, library
from dsl.frontend.calls import call as call_traced
from dsl.frontend.kin import Kin, Taken, has_kin, key_of
from dsl.frontend.scopes import current_trace, device_of_calls
from dsl.frontend.signature import Arguments, Leaf, Needs, Signature, family_of
from dsl.frontend.sizes import Family, Pattern, what_changed
from dsl.frontend.tracebacks import shortened
from dsl.frontend.tracing import trace_call
from dsl.ir.devices import DeviceName
from dsl.ir.graph import Graph
from dsl.ir.location import Location
from dsl.ir.verify import verify
from dsl.logs import log
from dsl.lowered import STAGES, Lowered
from dsl.native import Direct, Executable, count_hits
from dsl.passes.canonicalize import canonicalize
from dsl.passes.choose import choose
from dsl.passes.cse import cse
from dsl.passes.dce import dce
from dsl.passes.fold import fold
from dsl.passes.licm import licm
from dsl.passes.simplify import simplify
from dsl.runtime.claims import Claim

__all__ = ["STAGES", "CacheInfo", "Compiled", "Lowered", "jit", "optimize"]

P = ParamSpec("P")
R = TypeVar("R")

Pass = Callable[[Graph], Graph]
_MOST_BUILTINS = 32  # tried in turn, newest first: to decline takes 0.01 to 0.1 µs, the long way 30
_MOST_OBJECTS = 64  # for which graphs are kept
_MOST_TRIED = (
    8  # numbers outside for whose values a function is compiled one by one, if tracing fails
)
_UNPICKLED = "__dsl_unpickled__"
_MISTAKES = (IndexTypeError, NumberError, ShapeError)  # of the plain function as well

# What autodiff left is spelled out first. Folding makes constants of what tracing computed about shapes, by which masks and arrays
# are seen to have one shape; simplify feeds cse;
# licm wants cse's sharing and may put in front of a loop what is there already, which cse then merges; dce removes what
# the others left behind.
PASSES: tuple[Pass, ...] = (
    spell_out,
    canonicalize,
    fold,
    choose,
    simplify,
    cse,
    licm,
    canonicalize,
    cse,
    dce,
)


_KIN: Kin[Lowered] = Kin()
_IMPLIED: dict[Pass, Pass] = {canonicalize: dce}  # which pass another one ends with


def optimize(graph: Graph, times: dict[str, float] | None = None) -> Graph:
    """Run all passes on a structured graph."""
    with events.span("compile", "passes", data={"function": graph.name}):
        return _optimize(graph, times)


def _optimize(graph: Graph, times: dict[str, float] | None) -> Graph:
    if config.verify == "each":
        _check(graph, "traced")
    settled: dict[Pass, Graph] = {}  # what each pass made: it would give the same again
    for number, step in enumerate(PASSES):
        if settled.get(step) is graph:
            continue
        start = time.perf_counter()
        with events.span("pass", step.__name__, data={"function": graph.name}):
            improved = step(graph)
        spent = time.perf_counter() - start
        log(
            "passes",
            "%s %s: %d -> %d nodes, %.2f ms",
            graph.name,
            step.__name__,
            len(graph.nodes),
            len(improved.nodes),
            1e3 * spent,
        )
        if times is not None:
            times[step.__name__] = times.get(step.__name__, 0.0) + spent
        if improved is not graph:
            _dump(improved, f"{number + 1:02d}_{step.__name__}")
            if config.verify == "each":
                _check(improved, step.__name__)
        graph = settled[step] = settled[_IMPLIED.get(step, step)] = improved
    _check(graph, "optimized")
    return graph


def _check(graph: Graph, after: str) -> None:
    if config.verify == "off":
        return
    try:
        verify(graph)
    except DslError as error:
        error.message = f"after {after}: {error.message}"
        raise


def _dump(graph: Graph, label: str) -> None:
    target = config.dump_ir_to
    if target is None:
        return
    from dsl.ir.text import print_graph

    rank = launched_rank()
    whose = Path(target) if rank is None else Path(target) / f"rank-{rank}"
    folder = whose / graph.name.strip("<>")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{label}.ir").write_text(print_graph(graph, locations=True))


class _PinnedError(Exception):
    """Tracing saw more of the objects that a call passes than calls look at."""


class CacheInfo(NamedTuple):
    """How often calls found a compiled graph."""

    hits: int
    misses: int
    entries: int


class Compiled(Generic[P, R]):
    """A function that is traced, improved and run as a dataflow graph. Made by `dsl.jit`.

    >>> double = jit(lambda x: 2 * x)
    >>> double(3), double.cache_info().entries
    (6, 1)
    """

    dsl_traces_along = True

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        static_argnames: Iterable[str] | str = (),
        dynamic: bool | None = None,
        **options: Any,
    ) -> None:
        names = _names(static_argnames)
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._name = getattr(fn, "__name__", "main")
        self._static = names
        self._options = {"static_argnames": names, "dynamic": dynamic, **options}
        self._signature = Signature(fn, names)
        self._signature.require("donate", _names(options.get("donate", ())))
        self._entries: dict[Any, list[Lowered]] = {}  # for the sizes of one call
        self._families: dict[Any, Family[Lowered]] = {}  # for more
        self._objects: dict[Any, None] = {}  # families for certain objects, the latest last
        self._last_key: Any = None
        self._reasons: list[str] = []
        self._taken: list[str] = []  # why that was compiled which another function had
        self._uninstalled: list[Taken[Lowered]] = []
        self._needs = Needs()
        self._pinned: set[Any] = (
            set()
        )  # families for objects of which tracing saw more than calls look at
        self._loose: dict[Any, Any] = {}  # places of numbers outside that change, and their names
        self._fixed: dict[Any, Any] = {}  # those whose values tracing needs
        self._news: dict[Any, Any] = {}  # those that have changed for the call that compiles
        self._hits = self._misses = 0
        self._lock = threading.RLock()
        signature = self._signature.signature
        self._builtins = _Builtins(types.MethodType(Compiled.__call__, self), signature, fn)
        self._timed = _Builtins(self._call, signature, fn, timed=True)
        self._untimed: list[tuple[Direct, bool]] = []  # those that have no clocks yet
        self._elsewhere: dict[str, Compiled[P, R]] = {}  # the same, where `with dsl.device` says

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Describe the arguments, find or make the graph for them, run it.

        Once machine code can take whole calls, the built-in that does so stands in this one's place (`_install`).
        """
        if config.disable_jit and not getattr(self._fn, "dsl_traced", False):
            return self._fn(*args, **kwargs)
        if current_trace() is not None:
            return self.dsl_inline(args, kwargs)  # type: ignore[no-any-return]
        if device_of_calls() is not None and self._here() is not self:
            return self._here()(*args, **kwargs)
        if events.LOG is not None:
            with events.span("call", self._name, self._place):
                return self._profiled(*args, **kwargs)  # type: ignore[no-any-return]
        return self._call(*args, **kwargs)  # type: ignore[no-any-return]

    def _here(self) -> Compiled[P, R]:
        """Return this function for the GPU that `with dsl.device` around the call names, if one does."""
        name = device_of_calls()
        if name is None or DeviceName.parse(name).kind in (None, "cpu"):
            return self
        if self._options.get("device") or "default_device" in self._options:
            return self
        with self._lock:
            if name not in self._elsewhere:
                self._elsewhere[name] = Compiled(self._fn, **self._options, default_device=name)
            return self._elsewhere[name]

    @functools.cached_property
    def _face(self) -> dict[str, Any]:
        """What `functools.update_wrapper` gives each bound method, which is made anew for each call."""
        return vars(functools.update_wrapper(types.SimpleNamespace(), self._fn))  # type: ignore[arg-type]

    @functools.cached_property
    def _place(self) -> Location | None:
        """Where the function is defined."""
        code = getattr(inspect.unwrap(self._fn), "__code__", None)
        if code is None:
            return None
        return Location(code.co_filename, code.co_firstlineno, code.co_name)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        entry, arguments, is_new = self._entry_of(args, kwargs)
        try:
            if is_new and events.LOG is None and _is_direct(entry):
                return self._first(args, kwargs)
            return run(entry, arguments)
        except Exception as error:
            narrow = self._compile_after(error, entry, arguments)
            if narrow is None:
                raise
            first = error
        return _run_instead(narrow, arguments, entry, first)

    def _first(self, args: Any, kwargs: Any) -> Any:
        """Run the call that was just compiled for as those after it will be, by the built-in.

        It is a miss. Whatever takes it counts it as a hit, once; that is taken off before, since others may call meanwhile.
        """
        with self._lock:
            self._builtins.before -= 1
        try:
            return self._builtins.taker(*args, **kwargs)
        except Exception as error:
            if config.traceback_filtering == "on":
                raise error.with_traceback(None) from error.__cause__
            raise

    def _install(self, direct: Direct, pattern: Pattern | None, graph: Graph) -> None:
        """Let a built-in take calls; one with clocks joins it when a profile first meets it.

        Built-ins do not bind, so each function has a class of its own to hold its `__call__`.
        """
        repeatable = pattern is not None and _repeatable(graph)
        self._untimed.append((direct, repeatable))
        call = self._builtins.add(direct, repeatable)
        if call is None:
            return
        if type(self) is Compiled:
            self.__class__ = type("Compiled", (Compiled,), {"__module__": Compiled.__module__})
        type(self).__call__ = call  # type: ignore[method-assign]

    def _profiled(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call while a profile is on: by a built-in with clocks, unless an option asks for the longer way."""
        if config.debug_nans:
            return self._call(*args, **kwargs)
        if self._untimed:
            with self._lock:
                while self._untimed:
                    self._timed.add(*self._untimed.pop(0))
        return self._timed.taker(*args, **kwargs)

    def dsl_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inside another trace the function is traced along, not called."""
        trace = current_trace()
        assert trace is not None
        return trace.whole(lambda: call_traced(self._fn, *args, **kwargs))

    def dsl_wraps(self) -> tuple[Any, ...]:
        """What is outside of a trace if this is."""
        return (self._fn,)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundCompiled(self, instance)

    def __reduce__(self) -> Any:
        name = getattr(self._fn, "__qualname__", "")
        if named(getattr(self._fn, "__module__", None), name) is self:
            return name  # `@jit` on a function of a module: found under its name again
        return _unpickle, (self._fn, self._options)

    def __repr__(self) -> str:
        return f"<dsl.jit of {getattr(self._fn, '__qualname__', self._fn)}>"

    # -- compiling -------------------------------------------------------------------------------------------------

    def _entry_of(self, args: Any, kwargs: Any) -> tuple[Lowered, Arguments, bool]:
        try:
            arguments = self._take_apart(args, kwargs, self._needs)
            return self._entry(arguments, args, kwargs)
        except Exception as error:
            raise shortened(error)  # noqa: B904 - it is the same error

    def _take_apart(self, args: Any, kwargs: Any, needs: Needs) -> Arguments:
        """Bind a call and describe it: objects by their classes or, where tracing saw more of them, as these very objects."""
        arguments = self._signature.take_apart(args, kwargs, needs)
        arguments.function = self._fn
        if arguments.is_open and arguments.family in self._pinned:
            return arguments.pinned()
        return arguments

    def _entry(
        self, arguments: Arguments, args: Any, kwargs: Any
    ) -> tuple[Lowered, Arguments, bool]:
        """Return the graph for a call, the arguments as it takes them, and whether it was compiled just now."""
        found, _ = self._find(arguments)
        if found is not None:
            if self._uninstalled:
                self._install_taken()
            return found, arguments, False
        with self._lock:
            found, failure = self._find(arguments)
            if found is not None:  # another thread compiled it meanwhile
                return found, arguments, False
            found = self._take_over(arguments)
            if found is not None:
                return found, arguments, False
            self._misses += 1
            try:
                return *self._compile_for(arguments, failure, args, kwargs), True
            except _PinnedError:
                self._pinned.add(arguments.family)
                self._misses -= 1
                arguments = arguments.pinned()
        return self._entry(arguments, args, kwargs)

    def _take_over(self, arguments: Arguments) -> Lowered | None:
        """Return what was compiled for another function of the same code, if it serves this one's objects."""
        for taken in _KIN.fitting(key_of(self._fn, self._options), arguments):
            if taken.entry.traced.guard_failure(arguments) is None:
                self._hits += 1
                self._taken.append(taken.entry.reason)
                self._uninstalled.append(taken)
                family = self._families.setdefault(arguments.family, Family())
                if taken.pattern is not None:
                    family.add(taken.pattern, taken.entry)
                else:
                    self._keep(arguments, taken.entry)
                    family.seen = family.seen or Pattern.fixed(arguments.sizes)
                self._last_key = arguments.key
                return taken.entry
        return None

    def _install_taken(self) -> None:
        """Let built-ins take the calls of what was taken over, once there is a second one."""
        with self._lock:
            while self._uninstalled:
                taken = self._uninstalled.pop(0)
                made = taken.entry.executable
                if isinstance(made, Executable) and made.direct is not None:
                    self._install(made.direct, taken.pattern, taken.entry.optimized)

    def _offer(self, arguments: Arguments, pattern: Pattern | None, entry: Lowered) -> None:
        """Let other functions of the same code take over what was compiled, if it may serve their objects."""
        if has_kin(entry.traced.roles, entry.traced.guards):
            kept = Taken(arguments.key, arguments.family, pattern, entry)
            _KIN.add(key_of(self._fn, self._options), kept)

    def _compile_for(
        self, arguments: Arguments, failure: str | None, args: Any, kwargs: Any
    ) -> tuple[Lowered, Arguments]:
        """Compile for a call, with numbers outside that have changed as inputs if that can be."""
        self._news = self._loosen(arguments)
        reason = self._why(arguments, failure)
        try:
            return self._compile_some_way(arguments, reason, args, kwargs)
        except _PinnedError:
            raise
        except Exception:
            reason = self._why(arguments, failure)
            tight = self._compile_tightly(arguments, reason, args, kwargs)
            if tight is None:
                raise
            return tight

    def _loosen(self, arguments: Arguments) -> dict[Any, Any]:
        """Note which numbers outside have changed since graphs for such a call were made: they become inputs. Return the new ones."""
        changed: dict[Any, Any] = {}
        kin = _KIN.fitting(key_of(self._fn, self._options), arguments)
        for entry in (*self._candidates(arguments), *(taken.entry for taken in kin)):
            changed.update(entry.traced.changed_numbers(arguments))
        new = {place: name for place, name in changed.items() if place not in self._fixed}
        self._loose.update(new)
        return new

    def _compile_tightly(
        self, arguments: Arguments, reason: str, args: Any, kwargs: Any
    ) -> tuple[Lowered, Arguments] | None:
        """Compile for the value of a number that was an input, or of all: tracing may need it. None if that does not help."""
        loose = self._loose
        some = list(loose)[:_MOST_TRIED]
        ways = dict.fromkeys([*((place,) for place in some), tuple(loose)]) if loose else ()
        for places in ways:
            self._loose = {p: name for p, name in loose.items() if p not in places}
            try:
                found = self._compile_some_way(arguments, reason, args, kwargs)
            except _PinnedError:
                raise
            except Exception:
                continue
            self._fixed.update((place, loose[place]) for place in places)
            return found
        self._loose = loose
        return None

    def _find(self, arguments: Arguments) -> tuple[Lowered | None, str | None]:
        """Return the graph for a call, or what outside the function keeps the last one from being it."""
        failure = None
        for entry in self._candidates(arguments):
            failure = entry.traced.guard_failure(arguments)
            if failure is None:
                self._hits += 1
                return entry, None
        return None, failure

    def _candidates(self, arguments: Arguments) -> Iterator[Lowered]:
        """Yield what was compiled for the very sizes of a call, then what takes other sizes too."""
        yield from self._entries.get(arguments.key, ())
        family = self._families.get(arguments.family)
        if family is not None:
            yield from family.admitting(arguments.sizes)

    def _compile_some_way(
        self, arguments: Arguments, reason: str, args: Any, kwargs: Any
    ) -> tuple[Lowered, Arguments]:
        """Compile with Python numbers as inputs or, where tracing needs their values, for these values."""
        try:
            return self._compile_some_sizes(arguments, reason), arguments
        except _PinnedError:
            raise
        except Exception as error:
            complaint = latest = error
            tried = arguments.key
            needs = self._needs.more(error)  # another thread may have raised them meanwhile
            while needs is not None:
                again = self._take_apart(args, kwargs, needs)
                if again.key == tried:
                    needs = needs.more(latest)
                    continue
                found, _ = self._find(again)
                if found is not None:
                    return found, again
                why = f"{reason}; {needs.which()} needed while tracing ({_first_line(error)})"
                try:
                    entry = self._compile_some_sizes(again, why)
                except DslError as other:
                    complaint = other if _tells_more(other, complaint) else complaint
                    latest, tried, needs = other, again.key, needs.more(other)
                    continue
                self._needs = needs
                return entry, again
            if complaint is error:
                raise
            raise complaint from None

    def _compile_some_sizes(self, arguments: Arguments, reason: str) -> Lowered:
        """Compile for all sizes that this call and those before it are cases of or, where tracing needs sizes, for these."""
        family = self._families.get(arguments.family) or Family()
        sizes, again, refused = arguments.sizes, arguments.key in self._entries, family.refused
        for pattern in family.patterns(sizes, self._options["dynamic"], again):
            if family.seen is not None and any(family.seen.splits(sizes)):
                # Sizes that were equal differ now. If they must not, this raises NumPy's error.
                trace_call(self._fn, arguments, self._name)
            try:
                entry = self._compile(
                    arguments, self._widened(reason, arguments, family, pattern), pattern
                )
            except _PinnedError:
                raise
            except Exception as error:
                refused = _first_line(error)
                continue
            family.add(pattern, entry)
            break
        else:
            if refused:
                reason += f"; compiled for these sizes alone, since tracing needs them: {refused}"
            entry = self._compile(arguments, reason)
            self._keep(arguments, entry)
            family.seen, family.refused = family.seen or Pattern.fixed(sizes), refused
        self._families[arguments.family] = family
        self._last_key = arguments.key
        if arguments.has_objects or arguments.is_open:
            self._forget_others(arguments.family)
        return entry

    def _keep(self, arguments: Arguments, entry: Lowered) -> None:
        """Keep what was compiled for the sizes of a call; of many for objects of one class, the latest."""
        entries = self._entries.setdefault(arguments.key, [])
        entries.append(entry)
        if arguments.is_open:
            del entries[:-_MOST_OBJECTS]

    def _forget_others(self, family: Any) -> None:
        """Of what is compiled for objects keep the latest: an object, and all that it holds, would live as long as the function."""
        self._objects.pop(family, None)
        self._objects[family] = None
        if len(self._objects) <= _MOST_OBJECTS:
            return
        oldest = next(iter(self._objects))
        del self._objects[oldest]
        self._families.pop(oldest, None)
        for key in [key for key in self._entries if family_of(key) == oldest]:
            del self._entries[key]
        self._loose, self._fixed = {}, {}
        del self._untimed[:-_MOST_BUILTINS]

    def _compile_after(
        self, error: Exception, entry: Lowered, arguments: Arguments
    ) -> Lowered | None:
        """Compile for the sizes of a call that raised in a graph for many sizes.

        Such a graph finds out about sizes that do not fit when it runs and has no words for it, and it assumes a little:
        that the taps of a filter are not longer than the signal. The graph for these sizes raises as NumPy does, or runs.
        None if it must not run, since effects of the call that raised would happen twice, or if it would raise the same: an
        error of this kind at this place did before, and has nothing to do with sizes. What the graph did not raise, but a
        signal's handler or a deadline while it ran, stands too.
        """
        mark = _mark_of(error)
        if entry.pattern is None or mark is None or mark in entry.confirmed:
            return None
        if arguments.key in self._entries:  # a first call that was handed on: it has been done
            return None
        reason = f"these sizes alone, since the graph for many sizes raised {_first_line(error)}"
        try:
            with self._lock:
                narrow = self._compile(arguments, reason)
                self._keep(arguments, narrow)
        except _PinnedError:
            return None
        except Exception as found:
            raise shortened(found) from None
        return narrow if _repeatable(entry.optimized) else None

    def _compile(
        self, arguments: Arguments, reason: str, pattern: Pattern | None = None
    ) -> Lowered:
        name = self._name
        log("trace", "%s: %s", name, reason)
        start = time.perf_counter()
        with events.span("compile", "trace", self._place, {"function": name}):
            traced = trace_call(self._fn, arguments, name, pattern, loose=self._loose)
            if traced.equated and not _repeatable(traced.graph):
                traced = trace_call(
                    self._fn, arguments, name, pattern, cautious=True, loose=self._loose
                )
        if traced.pinned and arguments.is_open:
            raise _PinnedError
        times = {"trace": time.perf_counter() - start}
        if traced.variables:
            traced.claim = Claim(
                [v for v, _ in traced.variables], [v for v, on in traced.variables if on]
            )
        for item in traced.captures:
            log(
                "capture",
                "%s: the %s `%s` (%d bytes) is a hidden input",
                name,
                "array" if item.number is None else "number",
                item.name,
                item.nbytes,
            )
        _dump(traced.graph, "00_traced")
        optimized = optimize(traced.graph, times)
        exact = pattern is None or pattern.strides
        made = executable(traced, optimized, arguments, self._options, exact_strides=exact)
        if isinstance(made, Executable):
            times.update(made.times)
            if made.direct is not None:
                self._install(made.direct, pattern, optimized)
        read = {item.key for item in traced.captures if item.number is not None}
        names = dict.fromkeys(
            f"`{name}`" for place, name in self._news.items() if place[-1] in read
        )
        if names:
            reason += f"; from now on calls read {', '.join(names)}"
        self._news = {}
        log("compile", "%s: %s", name, ", ".join(f"{k} {1e3 * v:.1f} ms" for k, v in times.items()))
        log("compile", "%s: %s", name, reason)
        self._reasons.append(reason)
        entry = Lowered(name, traced, optimized, reason, times, made, pattern=pattern)
        self._offer(arguments, pattern, entry)
        return entry

    def _why(
        self,
        arguments: Arguments,
        failure: str | None,
    ) -> str:
        if failure is not None:
            log("guards", "%s: %s", self._name, failure)
            return f"something outside the function changed: {failure}"
        last = self._last_key
        if last is None:
            return "first call"
        if last[0] != arguments.key[0]:
            return "the arguments have another structure"
        changes = [
            f"argument {path} was {old}, now {new}"
            for path, old, new in zip(arguments.paths, last[1], arguments.key[1], strict=True)
            if old != new
        ]
        fixed = [
            f"static argument {n} was {o!r}, now {v!r}"
            for (n, v), (_, o) in zip(arguments.key[2], last[2], strict=True)
            if v != o
        ]
        text = "; ".join(changes + fixed)
        if any(map(_differ_in_small_sizes, last[1], arguments.key[1])):
            text += ": sizes 0 and 1 are compiled for themselves"
        return text or "the same array is passed for different arguments than before"

    @staticmethod
    def _widened(
        reason: str, arguments: Arguments, family: Family[Lowered], pattern: Pattern
    ) -> str:
        """Say why a graph is compiled that takes more sizes than those of the call."""
        if family.seen is None:
            return f"{reason}; all sizes but 0 and 1 are symbolic (dynamic=True)"
        if family.seen is pattern:
            return reason
        return what_changed(arguments, family.seen, pattern)

    # -- looking inside ----------------------------------------------------------------------------------------------

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Compile for these arguments without running, and return what was made."""
        if self._here() is not self:
            return self._here().lower(*args, **kwargs)
        return self._entry_of(args, kwargs)[0]

    def ir(self, *args: P.args, **kwargs: Any) -> str:  # type: ignore[valid-type]
        """Return the IR for these arguments as text; `stage=` chooses one of `STAGES`."""
        stage = kwargs.pop("stage", "optimized")
        return self.lower(*args, **kwargs).text(stage)

    def cache_info(self) -> CacheInfo:
        """Return how many calls found a compiled graph, how many did not, and how many graphs there are."""
        wide = sum(len(family.entries) for family in self._families.values())
        compiled = sum(map(len, self._entries.values())) + wide
        hits = self._hits + self._builtins.hits() + self._timed.hits()
        return CacheInfo(max(0, hits), self._misses, compiled)

    def explain(self) -> str:
        """Say why the function was compiled, each time."""
        lines = [f"{self._name}: compiled {len(self._reasons)} times"]
        lines += [f"  {k + 1}. {reason}" for k, reason in enumerate(self._reasons)]
        whose = "taken over from another function of the same code"
        lines += [f"  {whose}: {reason}" for reason in self._taken]
        slow = sorted({line for entry in self._compiled() for line in entry.fallbacks()})
        if slow:
            lines.append("without native code, run by NumPy: " + "; ".join(slow))
        lines += dict.fromkeys(f"on a GPU: {note}" for e in self._compiled() for note in e.notes())
        return "\n".join(lines)

    def _compiled(self) -> Iterator[Lowered]:
        for entries in self._entries.values():
            yield from entries
        for family in self._families.values():
            yield from (entry for _, entry in family.entries)


class _Builtins:
    """Built-ins that take calls as they are: the newest hands those that it declines to the one before, the first to `last`.

    A repeatable call that fails goes to `last` too, which knows better words, or does not fail.
    """

    def __init__(
        self, last: Callable[..., Any], signature: inspect.Signature, fn: Any, timed: bool = False
    ) -> None:
        self.last, self.signature, self.fn, self.timed = last, signature, fn, timed
        self.made: list[Any] = []
        self.before = 0  # hits of those that are gone, without first calls
        self.taker = last

    def add(self, direct: Direct, repeatable: bool) -> Any:
        """Make a built-in and return what to call, or None if there cannot be one."""
        if len(self.made) >= _MOST_BUILTINS:
            self.before = self.hits()
            self.made, self.taker = [], self.last
        retry = self.last if repeatable else None
        found = direct.make(self.taker, retry, self.signature, self.fn, self.timed)
        if found is None:
            return None
        call, counted = found
        self.made.append(counted)
        self.taker = call.__func__ if isinstance(call, staticmethod) else call
        return call

    def hits(self) -> int:
        """Return how many calls were taken."""
        return self.before + sum(map(count_hits, self.made))


class BoundCompiled:
    """A compiled method with its instance, which is what Python's bound methods are to whoever looks at it."""

    dsl_traces_along = True

    def __init__(self, compiled: Compiled[Any, Any], instance: Any) -> None:
        vars(self).update(compiled._face)
        self._compiled, self._instance = compiled, instance

    @property
    def __self__(self) -> Any:
        return self._instance

    @property
    def __func__(self) -> Compiled[Any, Any]:
        return self._compiled

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._fn)

    @property
    def _fn(self) -> Callable[..., Any]:
        return types.MethodType(self._compiled._fn, self._instance)

    @property
    def _static(self) -> tuple[str, ...]:
        return self._compiled._static

    @property
    def _options(self) -> dict[str, Any]:
        return self._compiled._options

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundCompiled):
            return NotImplemented
        return self._compiled is other._compiled and self._instance is other._instance

    def __hash__(self) -> int:
        return hash((id(self._compiled), id(self._instance)))

    def __reduce__(self) -> Any:
        return BoundCompiled, (self._compiled, self._instance)

    def __repr__(self) -> str:
        return f"{self._compiled!r} of {self._instance!r}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(self._instance, *args, **kwargs)

    def dsl_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As for `Compiled`."""
        return self._compiled.dsl_inline((self._instance, *args), kwargs)

    def dsl_wraps(self) -> tuple[Any, ...]:
        """As for `Compiled`."""
        return self._compiled, self._compiled._fn, self._instance

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """As for `Compiled`."""
        return self._compiled.lower(self._instance, *args, **kwargs)

    def ir(self, *args: Any, **kwargs: Any) -> str:
        """As for `Compiled`."""
        return self._compiled.ir(self._instance, *args, **kwargs)

    def cache_info(self) -> CacheInfo:
        """As for `Compiled`."""
        return self._compiled.cache_info()

    def explain(self) -> str:
        """As for `Compiled`."""
        return self._compiled.explain()


def _names(given: Iterable[str] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _is_direct(entry: Lowered) -> bool:
    """Tell whether a built-in can run the call that an entry was just compiled for.

    Guards are not asked for that call: tracing may have changed what they look at, and then each look would compile anew.
    """
    made = entry.executable
    return isinstance(made, Executable) and made.direct is not None and not entry.traced.guards


def _run_instead(narrow: Lowered, arguments: Arguments, wide: Lowered, first: Exception) -> Any:
    """Run the graph for these sizes alone; what it raises in the words of the one for many sizes is confirmed for that one."""
    try:
        return run(narrow, arguments)
    except Exception as error:
        if (type(error), str(error)) == (type(first), str(first)):
            wide.confirmed.add(_mark_of(first))
        raise


def _tells_more(other: DslError, complaint: Exception) -> bool:
    """Tell whether what tracing with values came to is what to report: a mistake, or something elsewhere, as values are no cure."""
    if isinstance(other, _MISTAKES):
        return True
    return isinstance(complaint, NonConcreteError) and other.location != complaint.location


def _mark_of(error: Exception) -> Any:
    """Return the kind of an error that a graph raised and its place in the function; None if no graph did."""
    if isinstance(error, MemoryError):
        return MemoryError
    place = error.location if isinstance(error, DslError) else None
    notes = tuple(getattr(error, "__notes__", ()))
    return (type(error), place, notes) if place or notes else None


def _repeatable(graph: Graph) -> bool:
    """Tell whether a run that raised has left no effects behind."""
    return touched(graph) <= {"assert"}


def _differ_in_small_sizes(one: Leaf, other: Leaf) -> bool:
    alike = (one.dtype, len(one.shape)) == (other.dtype, len(other.shape))
    return alike and [n for n in one.shape if n < 2] != [n for n in other.shape if n < 2]


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def named(module: str | None, path: str) -> Any:
    """Return what a module holds under a name, None if nothing."""
    found: Any = sys.modules.get(module or "")
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _unpickle(fn: Callable[..., Any], options: dict[str, Any]) -> Compiled[Any, Any]:
    """Return a function compiled; the same object each time, as workers of a pool get it with every task."""
    made: dict[str, Compiled[Any, Any]] = getattr(fn, "__dict__", {}).setdefault(_UNPICKLED, {})
    key = repr(sorted(options.items()))
    if key not in made:
        made[key] = Compiled(fn, **options)
    return made[key]


@overload
def jit(fn: Callable[P, R], /) -> Compiled[P, R]: ...
@overload
def jit(
    fn: None = None, /, *, static_argnames: Iterable[str] | str = (), dynamic: bool | None = None, fastmath: bool = False,
    device: str | None = None, donate: Iterable[str] = (),
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...  # fmt: skip
def jit(fn: Any = None, /, **options: Any) -> Any:
    """Compile a NumPy function: trace it on its first call for each kind of arguments, then run the dataflow graph.

    The first call is compiled for its sizes, a call with other sizes for all sizes of the dims that differ. With
    `dynamic=True` sizes are symbolic from the first call on; with `dynamic=False` each shape is compiled for itself. `donate`
    names arguments that the caller reads no more: their memory may be taken for results, of which no use is made yet.

    >>> import numpy as np
    >>> @jit
    ... def total(x):
    ...     return np.sin(x).sum()
    >>> float(total(np.zeros(3)))
    0.0
    """
    unknown = set(options) - {"static_argnames", "dynamic", "fastmath", "device", "donate"}
    if unknown:
        raise ConfigError(f"jit has no option {', '.join(sorted(unknown))}")
    if options.get("device") is not None:
        wanted = DeviceName.parse(options["device"])
        if wanted.rank is not None or wanted.kind not in ("cpu", "cuda", "cuda-emulator"):
            raise DeviceError(
                f"a function cannot be compiled for the device {options['device']!r}",
                remedy="say 'cpu', 'cuda:0' or 'cuda-emulator:0'; for other ranks use `dsl.device` in the function",
            )
    if fn is None:
        return functools.partial(jit, **options)
    if isinstance(fn, (Compiled, BoundCompiled)):
        return Compiled(fn._fn, **{**fn._options, **options}) if options else fn
    if not callable(fn) or isinstance(fn, type):
        raise UnsupportedError(f"jit takes a function, got {fn!r}")
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
        from dsl.frontend.convert import convert
        from dsl.frontend.runtime import Runtime

        convert(fn, Runtime(fn))
    return Compiled(fn, **options)


def run_eagerly(traced: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Trace a library function on real arrays and run it at once."""
    key = (traced, tuple(sorted(kwargs)))
    if key not in _eager:
        _eager[key] = Compiled(_Closed(traced))
    return _eager[key](*args, **kwargs)


class _Closed:
    """A library function as something to compile: its options that are not arrays are static."""

    dsl_traced = True  # also where compiling is switched off: there is no other way to run it

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn)

    def dsl_inline(self, args: Any, kwargs: Any) -> Any:
        """Called from the trace."""
        return self.fn(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


_eager: dict[Any, Compiled[Any, Any]] = {}
library.RUN_EAGERLY.append(run_eagerly)
_ = (functions, types)
