"""Calls from traced code: each function by its traced meaning, the user's functions and classes converted.

Functions of Python come with their meanings in `BUILTINS`, methods of lists in `LIST_METHODS`, those of NumPy from the library. Other
modules fill these tables and need `call` themselves; `runtime` imports them all. Outside of a trace `call` is a plain call.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.errors import NonConcreteError, SourceError, UnsupportedError
from dsl.frontend import formatting
from dsl.frontend.accesses import noting
from dsl.frontend.array_likes import as_arrays, as_blocks, has_array
from dsl.frontend.branches import is_missing
from dsl.frontend.captures import adopt, arrays_of, capture, from_outside, is_numeric, watched
from dsl.frontend.choices import note_reading
from dsl.frontend.convert import convert, is_converted
from dsl.frontend.iterators import as_cursor, rest_of
from dsl.frontend.leaves import the_trace
from dsl.frontend.library import CREATORS, has_traced, implementation, unsupported
from dsl.frontend.objects import is_plain_type, note_made
from dsl.frontend.optional import TracedOptional, unwrap
from dsl.frontend.own_items import CALL, given_items
from dsl.frontend.roles import stands_in
from dsl.frontend.scopes import Scope, current_trace, here
from dsl.frontend.state import Undefined, is_mutable, open_attribute
from dsl.frontend.traced import _FUNCTIONS, Traced, lift
from dsl.frontend.trees import forwarded
from dsl.frontend.ufuncs import COMPOSED, SPECIAL, special_function
from dsl.frontend.user_code import (
    is_polynomial,
    is_traced_code,
    is_users,
    own_method,
    package_of,
)

__all__ = ["BUILTINS", "CALLED", "LIST_METHODS", "RUNTIME", "call", "converted"]

BUILTINS: dict[Any, Callable[..., Any]] = {}
"""Functions and classes of Python and NumPy, and what traced code calls in their place."""
CALLED: dict[type, Callable[..., Any]] = {}
"""Classes of Python's whose instances are called, and what traced code calls with them."""
LIST_METHODS: dict[str, Callable[..., Any]] = {}
"""Methods of Python's lists that compare items, which may be traced, take a place, or may make a list a traced one."""
RUNTIME: list[Callable[[types.FunctionType], Any]] = []
"""Makes what a converted function calls; set by `runtime`."""
_ASKS = {
    builtins.abs: "__abs__", builtins.len: "__len__", builtins.float: "__float__", builtins.int: "__int__",
    builtins.round: "__round__", builtins.bool: "__bool__", builtins.complex: "__complex__", builtins.reversed: "__reversed__",
}  # fmt: skip
"""Builtins, and the methods by which they ask an object of the user's."""
_ITERATORS = {
    builtins.iter, builtins.zip, builtins.enumerate, builtins.reversed, builtins.map, builtins.filter, np.ndindex,
    np.ndenumerate, np.nditer, itertools.accumulate,
}  # fmt: skip
"""What makes iterators."""


# Builtins that go through items, and whether it is open how far, or when.
_TAKES: dict[Any, bool] = {
    builtins.list: False, builtins.sum: False, builtins.min: False, builtins.max: False, builtins.sorted: False,
    np.fromiter: False, math.prod: False, math.fsum: False, functools.reduce: False,
    builtins.zip: True, builtins.enumerate: True, builtins.map: True, builtins.filter: True, itertools.accumulate: True,
}  # fmt: skip
_HARMLESS = {
    builtins.list, builtins.tuple, builtins.zip, builtins.enumerate, builtins.reversed, builtins.map, builtins.filter,
    builtins.len, builtins.isinstance, builtins.type, builtins.getattr, builtins.setattr, builtins.hasattr, builtins.vars,
    builtins.iter, builtins.next, builtins.super, builtins.sum, builtins.min, builtins.max, builtins.sorted, builtins.any,
    builtins.all, builtins.range, object.__setattr__, functools.reduce, builtins.callable, builtins.issubclass,
    functools.partial, builtins.bool, builtins.float, builtins.int, builtins.abs,
}  # fmt: skip
"""Builtins that see nothing of an object that is not guarded, and not which object it is."""
_KEEPING = {
    "append",
    "appendleft",
    "extend",
    "insert",
    "pop",
    "popleft",
    "copy",
    "items",
    "keys",
    "values",
    "clear",
    "reverse",
}
"""Methods of lists, deques and dicts that put objects in and take them out."""
_READERS = {np.take, np.take_along_axis}
"""Functions that read where the user says."""


def converted(fn: types.FunctionType) -> types.FunctionType:
    """Return `fn` converted, with a runtime of its own."""
    return fn if is_converted(fn) else convert(fn, RUNTIME[0](fn))


def call(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call `fn` from traced code: NumPy's functions by their traced meaning, the user's functions converted."""
    if current_trace() is None:
        return fn(*args, **kwargs)
    if isinstance(fn, Undefined):
        fn.fail()
    fn, args = _forwarded_method(fn), tuple(map(forwarded, args))
    for argument in args:
        note_reading(argument)
        if is_missing(argument):
            argument.fail()
    try:
        special = BUILTINS.get(fn)
    except TypeError:
        special = None
    if special is not None and args:
        own = own_method(args[0], _ASKS.get(fn, ""))
        if own is not None:
            return call(own, *args, **kwargs)
    roles = the_trace().roles
    if special is not None:
        if fn not in _HARMLESS or (fn is builtins.isinstance and _asks_by_itself(args[1:])):
            roles.note_native(*args, *kwargs.values())
        if fn is builtins.reversed:
            args = tuple(map(_in_places, args))
        return _call_builtin(fn, special, args, kwargs)
    if isinstance(fn, np.ufunc):
        roles.note_native(*args)
        return _call_ufunc(fn, as_arrays(args), kwargs)
    if isinstance(getattr(fn, "__self__", None), np.ufunc):
        roles.note_native(*args)
        return _call_ufunc_method(fn, as_arrays(args), kwargs)
    if any(isinstance(a, TracedOptional) for a in args) and not isinstance(fn, types.FunctionType):
        args = tuple(map(unwrap, args))
    meaning = implementation(fn)
    if meaning is not None:
        roles.note_native(*args, *kwargs.values())
        args = tuple([watched(a) if _holds_arrays(a) else a for a in args])
        args = as_blocks(args) if fn is np.block else as_arrays(args)
        kwargs = {name: as_arrays(value) for name, value in kwargs.items()}
        if fn in CREATORS or has_traced(args) or has_traced(kwargs) or has_array(args):
            return _call_library(meaning, fn in _READERS, args, kwargs)
        return adopt(fn(*args, **kwargs))
    if is_polynomial(getattr(fn, "__wrapped__", None)):
        fn = fn.__wrapped__
    _note_wrapped(fn)
    if isinstance(fn, types.FunctionType):
        return _call_function(fn, args, kwargs)
    if isinstance(fn, types.MethodType) and not isinstance(fn.__self__, Traced):
        if id(fn) in the_trace().outside:
            from_outside(fn, "__func__", fn.__func__)
            from_outside(fn, "__self__", fn.__self__)
        _note_met(fn.__self__)
        return call(fn.__func__, fn.__self__, *args, **kwargs)
    if isinstance(fn, type):
        return _construct(fn, args, kwargs)
    return _call_object(fn, args, kwargs)


def _asks_by_itself(classes: Any) -> bool:
    """Tell whether `isinstance` looks at more than the class of an object, as protocols and metaclasses do."""
    if isinstance(classes, tuple):
        return any(map(_asks_by_itself, classes))
    return not is_plain_type(classes) or getattr(classes, "_is_protocol", False)


def _in_places(item: Any) -> Any:
    """Return the items of an object that `reversed` takes out by their places."""
    count, get = own_method(item, "__len__"), own_method(item, "__getitem__")
    if count is None or get is None:
        return item
    return [call(get, item, k) for k in range(call(count, item))]


def _note_wrapped(fn: Any) -> None:
    """What a callable from outside wraps is outside, too: the function in a compiled one, or in a derivative."""
    outside = the_trace().outside
    if id(fn) not in outside:
        return
    for held in _wrapped_by(fn):
        if held is not None and id(held) not in outside:
            outside[id(held)] = held
            _note_wrapped(held)


def _wrapped_by(fn: Any) -> Sequence[Any]:
    wraps = getattr(type(fn), "dsl_wraps", None)
    if wraps:
        return wraps(fn)  # type: ignore[no-any-return]
    if isinstance(fn, types.MethodType):  # `call` looks at its object
        return ()
    if isinstance(fn, functools.partial):
        return (fn.func,)
    if isinstance(fn, np.vectorize):
        return (fn.pyfunc,)
    if isinstance(fn, types.FunctionType):  # the library's own are not converted
        return _contents(fn) if package_of(fn) == "dsl" else ()
    return (getattr(fn, "__self__", None),)


def _contents(fn: types.FunctionType) -> list[Any]:
    """Return what the closure of a function holds that is called, or calls something."""
    held = [cell.cell_contents for cell in fn.__closure__ or ()]
    return [item for item in held if callable(item) or hasattr(type(item), "dsl_wraps")]


def _holds_arrays(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and has_array(item)


def _forwarded_method(fn: Any) -> Any:
    """Return the method of a traced list for that of the Python list which it was."""
    owner = getattr(fn, "__self__", None)
    held = forwarded(owner)
    return fn if held is owner else getattr(held, fn.__name__)


CALL.append(call)


# -- Python and NumPy ---------------------------------------------------------------------------------------------


def _call_builtin(fn: Any, special: Any, args: Any, kwargs: Any) -> Any:
    """Call a builtin by its traced meaning; iterators give it their items, and what stands for an iterator becomes one."""
    if fn is not builtins.isinstance:
        args = given_items(fn, [watched(unwrap(a)) for a in args])
    if fn in _TAKES and len(set(map(id, args))) == len(args):
        args = tuple(rest_of(a, lost=_TAKES[fn]) for a in args)
    result = special(*args, **kwargs)
    return as_cursor(result) if fn in _ITERATORS else result


def _call_library(fn: Any, reads: bool, args: Any, kwargs: Any) -> Any:
    """Call a function of NumPy; what it reads on its own account is in bounds, so that nobody has to check what it does not use."""
    with noting(reads):
        return fn(*args, **kwargs)


def _call_ufunc(fn: np.ufunc, args: Any, kwargs: Any) -> Any:
    if has_array(args) and not has_traced(args):
        args = tuple(lift(a) if isinstance(a, np.ndarray) else a for a in args)
    if has_traced(args) or has_traced(kwargs):
        special, composed = SPECIAL.get(fn.__name__), COMPOSED.get(fn.__name__)
        if (special or composed) and kwargs:
            raise UnsupportedError(
                f"scipy.special.{fn.__name__} with {', '.join(kwargs)}= is not supported on traced values",
                location=here(),
                remedy="assign its result: `y[...] = f(x)`",
            )
        if special is not None:
            return special_function(special, *args)
        if composed is not None:
            return composed(fn, *args)
    return adopt(fn(*args, **kwargs))


def _call_ufunc_method(fn: Any, args: Any, kwargs: Any) -> Any:
    """`np.maximum.reduce(...)` and its like, for which NumPy looks for arrays in its arguments and not in lists of them."""
    if fn.__name__ != "at":  # a tuple of indices is not an array
        args = tuple(_FUNCTIONS["array"](a) if _lists_traced(a) else a for a in args)
    return adopt(fn(*args, **kwargs))


def _lists_traced(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and has_traced(item)


# -- functions ----------------------------------------------------------------------------------------------------


def _call_function(fn: types.FunctionType, args: Any, kwargs: Any) -> Any:
    trace = the_trace()
    if not is_converted(fn) and is_users(fn):
        _watch_defaults(fn)
    elif is_converted(fn) and len(trace.scopes) > 1:
        _open_defaults(fn, trace.scopes[-1])
    if trace.trial and is_users(fn):
        with trace.calling(fn):
            return _run_function(fn, args, kwargs)
    return _run_function(fn, args, kwargs)


def _watch_defaults(fn: types.FunctionType) -> None:
    """Remember the defaults of a function from outside, and the lists and dicts among them, which are there at every call."""
    if id(fn) in the_trace().outside:
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(fn, name):
                from_outside(fn, name, getattr(fn, name), as_is=True)
    for holder in (fn.__defaults__ or (), fn.__kwdefaults__ or {}):
        for key, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if is_mutable(item):
                from_outside(holder, key, item, earlier=True, as_is=True)


def _open_defaults(fn: types.FunctionType, scope: Scope) -> None:
    """Remember the lists and dicts that are defaults of a function, which it may change, before a branch or loop calls it."""
    for name in ("__defaults__", "__kwdefaults__"):
        held = getattr(fn, name) or ()
        if any(is_mutable(item) for item in (held.values() if isinstance(held, dict) else held)):
            open_attribute(scope, fn, name)


def _run_function(fn: types.FunctionType, args: Any, kwargs: Any) -> Any:
    if is_converted(fn) or not is_traced_code(fn, (*args, *kwargs.values())):
        if not is_converted(fn):
            _note_native(fn, args, kwargs)
        _refuse_random(fn)
        _refuse_statistics(fn, args)
        if package_of(fn) == "scipy" and (has_traced(args) or has_traced(kwargs)):
            from dsl.frontend.functions.scipy import call_scipy

            return adopt(call_scipy(fn, args, kwargs))
        if not is_converted(fn) and package_of(fn) == "numpy" and has_traced(args):
            try:
                return fn(*args, **kwargs)
            except NonConcreteError:
                raise unsupported(fn) from None
        result = fn(*args, **kwargs)
        if not is_converted(fn):
            _made(result)
        return result if is_converted(fn) or package_of(fn) == "dsl" else adopt(result)
    args, kwargs = _with_default_arrays(fn, args, kwargs)
    return converted(fn)(*args, **kwargs)


def _note_native(fn: Any, args: Any, kwargs: Any) -> None:
    """Note what a function that is not traced is given; those of dsl call the user's functions as traced code does."""
    given = (*args, *kwargs.values())
    if package_of(fn) == "dsl":
        given = tuple(a for a in given if not isinstance(a, types.MethodType))
    the_trace().roles.note_native(*given, arrays=package_of(fn) != "dsl")


def _note_met(*items: Any) -> None:
    """Note objects that nothing traced has led to, such as that of `dsl.grad(model.loss)`: they were there before."""
    trace = the_trace()
    for item in items:
        if stands_in(item) and not trace.is_known(item):
            trace.outside[id(item)] = item
            trace.roles.pinned = True


def _made(result: Any) -> Any:
    """Note an object that code which is not traced has made."""
    if stands_in(result) and not (trace := the_trace()).is_known(result):
        trace.roles.made[id(result)] = result
    return result


def _with_default_arrays(fn: types.FunctionType, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments with arrays among the defaults, which are inputs, where a call leaves them out."""
    held = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    if not any(isinstance(item, np.ndarray) for item in held):
        return args, kwargs
    try:
        bound = inspect.signature(fn, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError:  # which the call raises, too
        return args, kwargs
    left = [name for name in bound.signature.parameters if name not in bound.arguments]
    bound.apply_defaults()
    for name in left:
        item = bound.arguments[name]
        if isinstance(item, np.ndarray):
            bound.arguments[name] = lift(item)
    return bound.args, bound.kwargs


_STATISTICS = {
    "mean": "np.mean(x)", "fmean": "np.mean(x)", "median": "np.median(x)", "stdev": "np.std(x, ddof=1)", "pstdev": "np.std(x)",
    "variance": "np.var(x, ddof=1)", "pvariance": "np.var(x)", "quantiles": "np.quantile(x, q)",
    "correlation": "np.corrcoef(x, y)[0, 1]", "covariance": "np.cov(x, y)[0, 1]", "geometric_mean": "np.exp(np.mean(np.log(x)))",
    "harmonic_mean": "1 / np.mean(1 / x)", "linear_regression": "np.polyfit(x, y, 1)",
}  # fmt: skip


def _refuse_statistics(fn: Any, args: Any) -> None:
    """Refuse the functions of `statistics`, which want Python's numbers, and name NumPy's."""
    remedy = _STATISTICS.get(fn.__name__) if fn.__module__ == "statistics" else None
    if remedy is not None and has_traced(args):
        raise UnsupportedError(
            f"statistics.{fn.__name__} takes Python's numbers, which traced values are not",
            location=here(),
            remedy=f"use `{remedy}`",
        )


def _refuse_random(fn: Any) -> None:
    module = getattr(fn, "__module__", None) or ""
    if module.startswith(("numpy.random", "random")):
        name = getattr(fn, "__name__", "this function")
        raise UnsupportedError(
            f"{module}.{name} inside a compiled function would give the same numbers at every call",
            location=here(),
            remedy="use `dsl.random` with an explicit key, or draw the numbers outside and pass them in",
        )


# -- classes ------------------------------------------------------------------------------------------------------


def _construct(cls: type, args: Any, kwargs: Any) -> Any:
    """Make an instance; a Python `__init__` of the user's is converted."""
    if cls is np.ndarray:
        return _FUNCTIONS["empty"](
            *args[:2], **{k: v for k, v in kwargs.items() if k in ("shape", "dtype")}
        )
    if cls is np.errstate and "raise" in kwargs.values():
        raise UnsupportedError(
            "np.errstate(...='raise') has no effect on compiled code",
            location=here(),
            remedy="test for the bad values (`if np.any(b == 0): raise ...`)",
        )
    if issubclass(cls, np.generic) and has_traced(args):
        return lift(args[0]).astype(cls) if args else cls()
    if _is_plain_dataclass(cls):
        return _construct_dataclass(cls, args, kwargs)
    init: Any = getattr(cls, "__init__")  # noqa: B009
    new: Any = cls.__new__
    is_dataclass = hasattr(cls, "__dataclass_fields__")
    is_open = is_plain_type(cls) and new is object.__new__ and not is_dataclass
    if is_open and init is object.__init__ and is_users(cls):
        the_trace().roles.note_native(*args, *kwargs.values(), arrays=True)
        made = cls(*args, **kwargs)
        note_made(made)
        return made
    if cls not in _HARMLESS and not (
        is_open and isinstance(init, types.FunctionType) and is_traced_code(init, args)
    ):
        the_trace().roles.note_native(*args, *kwargs.values(), arrays=True)
    if not is_open or not isinstance(init, types.FunctionType) or not is_traced_code(init, args):
        return _made(cls(*given_items(cls, args), **kwargs))
    try:
        made = converted(init)
    except SourceError:
        the_trace().roles.note_native(*args, *kwargs.values(), arrays=True)
        return _made(cls(*args, **kwargs))
    obj: Any = object.__new__(cls)
    note_made(obj)
    made(obj, *args, **kwargs)
    return obj


def _is_plain_dataclass(cls: Any) -> bool:
    """Tell whether a class has the `__init__` that `dataclass` wrote."""
    params = cls.__dict__.get("__dataclass_params__")
    return params is not None and params.init and type(cls) is type


def _construct_dataclass(cls: Any, args: Any, kwargs: Any) -> Any:
    """Make a dataclass; its default factories and its `__post_init__` are called as traced code calls functions."""
    given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments
    made = {
        f.name: call(f.default_factory)
        for f in dataclasses.fields(cls)
        if f.init and f.default_factory is not dataclasses.MISSING and f.name not in given
    }
    obj = object.__new__(cls)
    the_trace().roles.made[id(obj)] = obj
    if hasattr(cls, "__post_init__"):
        (_hide_finish if cls.__dictoffset__ else _derive_finish)(cls, obj)
    cls.__init__(obj, *args, **kwargs, **made)
    return obj


def _hide_finish(cls: Any, obj: Any) -> None:
    """Let `__init__`, which looks for `__post_init__` on the instance, find there one that is traced."""

    def finish(*rest: Any) -> None:
        del vars(obj)["__post_init__"]
        call(cls.__post_init__, obj, *rest)

    vars(obj)["__post_init__"] = finish


def _derive_finish(cls: Any, obj: Any) -> None:
    """Do the same for an instance that has only slots, by a class of the same layout that it is of until then."""

    def finish(self: Any, *rest: Any) -> None:
        object.__setattr__(self, "__class__", cls)
        call(cls.__post_init__, self, *rest)

    derived = type(cls.__name__, (cls,), {"__slots__": (), "__post_init__": finish})
    object.__setattr__(obj, "__class__", derived)


_DICT_READERS = ("get", "values", "items", "copy")


def _read_dict(held: dict[Any, Any], name: str, args: Any) -> Any:
    """Call a method of a dict from outside."""
    if name == "get" and len(args) in (1, 2):
        key, default = (*args, None)[:2]
        return from_outside(held, key, held[key]) if key in held else default
    return getattr(arrays_of(held), name)(*args)


def _call_partial(fn: functools.partial[Any], args: Any, kwargs: Any) -> Any:
    given, named = fn.args, fn.keywords
    if id(fn) in the_trace().outside:
        given = tuple(from_outside(given, k, item) for k, item in enumerate(given))
        named = arrays_of(from_outside(fn, "keywords", named))
    _note_met(*given, *named.values())
    return call(fn.func, *given, *args, **{**named, **kwargs})


# -- other objects ------------------------------------------------------------------------------------------------


def _call_object(fn: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(fn, functools.partial):
        return _call_partial(fn, args, kwargs)
    if type(fn) in CALLED:
        return CALLED[type(fn)](fn, *args, **kwargs)
    inner = getattr(type(fn), "dsl_inline", None)
    if inner is not None:
        if not getattr(fn, "dsl_traces_along", False):
            _note_native(type(fn), args, kwargs)
        return inner(fn, args, kwargs)
    method = getattr(type(fn), "__call__", None)  # noqa: B004
    if isinstance(method, types.FunctionType) and (is_users(method) or is_polynomial(method)):
        _note_met(fn)
        if id(fn) in the_trace().outside:
            from_outside(type(fn), "__call__", method)
        return call(method, fn, *args, **kwargs)
    if isinstance(fn, np.vectorize) and (has_traced(args) or has_traced(kwargs)):
        from dsl.frontend import folds

        return folds.vectorized(fn, args, kwargs)
    owner = getattr(fn, "__self__", None)
    if not (type(owner) in (list, dict, collections.deque) and fn.__name__ in _KEEPING):
        the_trace().roles.note_native(owner, *args, *kwargs.values(), arrays=True)
    if isinstance(fn, types.MethodWrapperType) and fn.__name__ == "__setattr__":
        return call(object.__setattr__, owner, *args)
    if type(owner) is list and fn.__name__ in ("extend", "sort"):
        return LIST_METHODS[fn.__name__](owner, *args, **kwargs)
    if type(owner) is list and fn.__name__ in LIST_METHODS and has_traced([owner, args]):
        return LIST_METHODS[fn.__name__](owner, *args, **kwargs)
    if (
        isinstance(owner, dict)
        and id(owner) in the_trace().outside
        and fn.__name__ in _DICT_READERS
    ):
        return _read_dict(owner, fn.__name__, args)
    if isinstance(owner, (dict, list)) and fn.__name__ == "__getitem__":
        return call(operator.getitem, owner, *args)
    if isinstance(owner, np.ndarray) and is_numeric(owner) and id(fn) in the_trace().outside:
        return call(getattr(capture(fn, "__self__", owner), fn.__name__), *args, **kwargs)
    if isinstance(owner, str) and fn.__name__ == "join" and len(args) == 1:
        args = (list(args[0]),)
    if isinstance(owner, str) and formatting.has_text_values((*args, *kwargs.values())):
        method = formatting.STRING_METHODS.get(fn.__name__)
        return formatting.refuse() if method is None else method(owner, *args, **kwargs)
    for module in (type(owner).__module__, getattr(fn, "__module__", None) or ""):
        if module.startswith("numpy.random") or module == "random":
            name = getattr(fn, "__name__", "")
            _refuse_random(types.SimpleNamespace(__module__=module.split("._")[0], __name__=name))
    if isinstance(owner, Traced):
        reads = fn.__name__ in ("take", "item", "__getitem__")
        return adopt(_call_library(fn, reads, args, kwargs))
    result, outside = adopt(fn(*args, **kwargs)), the_trace().outside
    if (id(fn) in outside or id(owner) in outside) and is_users(type(result)):
        outside.setdefault(id(result), result)  # such as what a `weakref` is of
        if getattr(fn, "__name__", None) not in _KEEPING:
            the_trace().roles.note_native(result)  # calls do not find it at a place
    return result
