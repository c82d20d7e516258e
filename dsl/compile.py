"""The pipeline, top to bottom: trace a function, improve its graph, run it; and the object that `dsl.jit` returns.

    traced -> canonicalize, fold, simplify, cse, licm, dce -> optimized -> lower_control -> lowered

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from dsl.config import config
from dsl.errors import ConfigError, DslError, UnsupportedError
from dsl.frontend import functions, library
from dsl.frontend.runtime import call as call_traced
from dsl.frontend.scopes import current_trace
from dsl.frontend.signature import Arguments, Signature
from dsl.frontend.tracing import TracedFunction, trace_call
from dsl.ir.graph import Graph
from dsl.ir.interpret import interpret
from dsl.ir.verify import verify
from dsl.logs import log
from dsl.passes.canonicalize import canonicalize
from dsl.passes.cse import cse
from dsl.passes.dce import dce
from dsl.passes.fold import fold
from dsl.passes.licm import licm
from dsl.passes.lower_control import lower_control
from dsl.passes.simplify import simplify

__all__ = ["STAGES", "CacheInfo", "Compiled", "Lowered", "jit", "optimize"]

P = ParamSpec("P")
R = TypeVar("R")

Pass = Callable[[Graph], Graph]

# Folding first makes constants of what tracing computed about shapes; simplify feeds cse; licm wants cse's sharing and may
# put in front of a loop what is there already, which cse then merges; dce
# removes what the others left behind.
PASSES: tuple[Pass, ...] = (canonicalize, fold, simplify, cse, licm, canonicalize, cse, dce)
STAGES = ("traced", "optimized", "lowered")


def optimize(graph: Graph, times: dict[str, float] | None = None) -> Graph:
    """Run all passes on a structured graph."""
    _check(graph, "traced")
    for number, step in enumerate(PASSES):
        start = time.perf_counter()
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
        graph = improved
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

    folder = Path(target) / graph.name.strip("<>")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{label}.ir").write_text(print_graph(graph, locations=True))


class CacheInfo(NamedTuple):
    """How often calls found a compiled graph."""

    hits: int
    misses: int
    entries: int


@dataclass
class Lowered:
    """A function compiled for one description of its arguments: its graph at each stage."""

    name: str
    traced: TracedFunction
    optimized: Graph
    reason: str
    times: dict[str, float]
    executable: Callable[[list[Any]], list[Any]]
    stages: dict[str, Graph] = field(default_factory=dict)

    def graph(self, stage: str = "optimized") -> Graph:
        """Return the graph at a stage."""
        if stage == "traced":
            return self.traced.graph
        if stage == "optimized":
            return self.optimized
        if stage == "lowered":
            return self.stages.setdefault(stage, lower_control(self.optimized))
        later = ("placed", "partitioned", "kernels", "llvm", "asm", "ptx")
        if stage in later:
            raise UnsupportedError(
                f"the stage {stage!r} is not built yet",
                remedy=f"the stages today are {', '.join(STAGES)}",
            )
        raise ConfigError(
            f"there is no stage {stage!r}", remedy=f"the stages are {', '.join(STAGES)}"
        )

    def text(self, stage: str = "optimized", *, locations: bool = True) -> str:
        """Return the IR of a stage as text."""
        from dsl.ir.text import print_graph

        return print_graph(self.graph(stage), locations=locations)

    def dot(self, stage: str = "lowered") -> str:
        """Return the graph of a stage in Graphviz's language."""
        from dsl.ir.draw import dot

        return dot(self.graph(stage))

    def show(self, stage: str = "optimized") -> Any:
        """Return a self-contained picture: shown as HTML in a notebook, `.html` holds the text, `.save(path)` writes it."""
        from dsl.ir.draw import Picture

        return Picture(self.graph(stage))


class Compiled(Generic[P, R]):
    """A function that is traced, improved and run as a dataflow graph. Made by `dsl.jit`."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        static_argnames: Iterable[str] | str = (),
        dynamic: bool | None = None,
        **options: Any,
    ) -> None:
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._static = names
        self._options = {"static_argnames": names, "dynamic": dynamic, **options}
        self._signature = Signature(fn, names)
        self._entries: dict[Any, list[Lowered]] = {}
        self._reasons: list[str] = []
        self._static_level = 0
        self._hits = self._misses = 0
        self._lock = threading.RLock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if config.disable_jit:
            return self._fn(*args, **kwargs)
        if current_trace() is not None:
            return self.dsl_inline(args, kwargs)  # type: ignore[no-any-return]
        arguments = self._signature.take_apart(args, kwargs, static_level=self._static_level)
        entry, arguments = self._entry(arguments, args, kwargs)
        return _run(entry, arguments)  # type: ignore[no-any-return]

    def dsl_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inside another trace the function is traced along, not called."""
        return call_traced(self._fn, *args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundCompiled(self, instance)

    def __reduce__(self) -> Any:
        name = getattr(self._fn, "__qualname__", "")
        if _named(getattr(self._fn, "__module__", None), name) is self:
            return name  # `@jit` on a function of a module: found under its name again
        return _unpickle, (self._fn, self._options)

    def __repr__(self) -> str:
        return f"<dsl.jit of {getattr(self._fn, '__qualname__', self._fn)}>"

    # -- compiling -------------------------------------------------------------------------------------------------

    def _entry(self, arguments: Arguments, args: Any, kwargs: Any) -> tuple[Lowered, Arguments]:
        found, _ = self._find(arguments)
        if found is not None:
            return found, arguments
        with self._lock:
            found, failure = self._find(arguments)
            if found is not None:  # another thread compiled it meanwhile
                return found, arguments
            self._misses += 1
            reason = self._why(arguments, failure)
            arguments, entry = self._compile_some_way(arguments, reason, args, kwargs)
            self._entries.setdefault(arguments.key, []).append(entry)
            return entry, arguments

    def _find(self, arguments: Arguments) -> tuple[Lowered | None, str | None]:
        failure = None
        for entry in self._entries.get(arguments.key, ()):
            failure = entry.traced.guard_failure(arguments)
            if failure is None:
                self._hits += 1
                return entry, None
        return None, failure

    def _compile_some_way(
        self, arguments: Arguments, reason: str, args: Any, kwargs: Any
    ) -> tuple[Arguments, Lowered]:
        """Compile with Python numbers as inputs or, where tracing needs their values, for these values."""
        try:
            return arguments, self._compile(arguments, reason)
        except Exception as error:
            for level in range(self._static_level + 1, 3):
                again = self._signature.take_apart(args, kwargs, static_level=level)
                if again.key == arguments.key:
                    continue
                why = f"{reason}; the values of Python numbers are needed while tracing ({_first_line(error)})"
                try:
                    entry = self._compile(again, why)
                except DslError:
                    continue
                self._static_level = level
                return again, entry
            raise

    def _compile(self, arguments: Arguments, reason: str) -> Lowered:
        name = getattr(self._fn, "__name__", "main")
        log("trace", "%s: %s", name, reason)
        start = time.perf_counter()
        traced = trace_call(self._fn, arguments, name)
        times = {"trace": time.perf_counter() - start}
        for item in traced.captures:
            log(
                "capture",
                "%s: the array `%s` (%d bytes) is a hidden input",
                name,
                item.name,
                item.array.nbytes,
            )
        _dump(traced.graph, "00_traced")
        optimized = optimize(traced.graph, times)
        log("compile", "%s: %s", name, ", ".join(f"{k} {1e3 * v:.1f} ms" for k, v in times.items()))
        self._reasons.append(reason)
        return Lowered(
            name, traced, optimized, reason, times, functools.partial(interpret, optimized)
        )

    def _why(self, arguments: Arguments, failure: str | None) -> str:
        if failure is not None:
            log("guards", "%s: %s", self._fn.__name__, failure)
            return f"something outside the function changed: {failure}"
        if not self._entries:
            return "first call"
        last = next(reversed(self._entries))
        if last[0] != arguments.key[0]:
            return "the arguments have another structure"
        changes = [
            f"argument {path} was {old}, now {new}"
            for path, old, new in zip(arguments.paths, last[1], arguments.key[1], strict=True)
            if old != new
        ]
        fixed = [
            f"static argument {n} was {o[1]!r}, now {v[1]!r}"
            for (n, v), (_, o) in zip(arguments.key[2], last[2], strict=True)
            if v != o
        ]
        return (
            "; ".join(changes + fixed)
            or "the same array is passed for different arguments than before"
        )

    # -- looking inside ----------------------------------------------------------------------------------------------

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Compile for these arguments without running, and return what was made."""
        arguments = self._signature.take_apart(args, kwargs, static_level=self._static_level)
        return self._entry(arguments, args, kwargs)[0]

    def ir(self, *args: P.args, **kwargs: Any) -> str:  # type: ignore[valid-type]
        """Return the IR for these arguments as text; `stage=` chooses one of `traced`, `optimized`, `lowered`."""
        stage = kwargs.pop("stage", "optimized")
        return self.lower(*args, **kwargs).text(stage)

    def cache_info(self) -> CacheInfo:
        """Return how many calls found a compiled graph, how many did not, and how many graphs there are."""
        return CacheInfo(self._hits, self._misses, sum(map(len, self._entries.values())))

    def explain(self) -> str:
        """Say why the function was compiled, each time."""
        lines = [f"{self._fn.__name__}: compiled {len(self._reasons)} times"]
        return "\n".join(lines + [f"  {k + 1}. {reason}" for k, reason in enumerate(self._reasons)])


class BoundCompiled:
    """A compiled method with its instance."""

    def __init__(self, compiled: Compiled[Any, Any], instance: Any) -> None:
        self._compiled, self._instance = compiled, instance
        functools.update_wrapper(self, compiled._fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(self._instance, *args, **kwargs)

    def dsl_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As for `Compiled`."""
        return self._compiled.dsl_inline((self._instance, *args), kwargs)

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


def _run(entry: Lowered, arguments: Arguments) -> Any:
    try:
        return entry.traced.run(entry.executable, arguments)
    except Exception as error:
        if config.traceback_filtering == "on":
            raise _filtered(error) from error.__cause__
        raise


def _filtered(error: Exception) -> Exception:
    """Drop this library's frames from the traceback of an error that the user's data caused."""
    return error.with_traceback(None)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _named(module: str | None, path: str) -> Any:
    found: Any = sys.modules.get(module or "")
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _unpickle(fn: Callable[..., Any], options: dict[str, Any]) -> Compiled[Any, Any]:
    return Compiled(fn, **options)


@overload
def jit(fn: Callable[P, R], /) -> Compiled[P, R]: ...
@overload
def jit(
    fn: None = None, /, *, static_argnames: Iterable[str] | str = (), dynamic: bool | None = None, fastmath: bool = False,
    device: str | None = None, donate: Iterable[str] = (),
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...  # fmt: skip
def jit(fn: Any = None, /, **options: Any) -> Any:
    """Compile a NumPy function: trace it on its first call for each kind of arguments, then run the dataflow graph.

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
    if options.get("device") not in (None, "cpu", "cpu:0"):
        raise UnsupportedError(
            f"there is no device {options['device']!r} yet",
            remedy="leave `device` out, or say 'cpu:0'",
        )
    if fn is None:
        return functools.partial(jit, **options)
    if isinstance(fn, Compiled):
        return fn
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
