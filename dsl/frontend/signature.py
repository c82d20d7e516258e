"""Calls: bind arguments, take their trees apart, and describe them by a key under which a compiled graph is kept."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsl.errors import StaticArgumentError, UnsupportedError
from dsl.frontend.roles import OfClass, stands_in
from dsl.frontend.traced import supported_dtype
from dsl.frontend.trees import Structure, flatten, leaves_with_paths
from dsl.ir.remote import Remote
from dsl.ir.sameness import Exact, identity
from dsl.ir.types import Shape, dtype_name

__all__ = ["Arguments", "Leaf", "Same", "Signature", "signature_of"]


@dataclass(frozen=True)
class Leaf:
    """The description of one argument leaf: what a compiled graph depends on."""

    kind: str  # "array", "scalar", "python" or "static"
    dtype: Any = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    value: Any = None

    def __str__(self) -> str:
        if self.kind == "static":
            return (
                f"{self.value!r}"
                if isinstance(self.value, OfClass)
                else f"the value {self.value!r}"
            )
        if self.kind == "python":
            return f"a Python {np.dtype(self.dtype).type(0).item().__class__.__name__}"
        return self.text(
            self.shape, "" if self.strides is None else f" with strides {self.strides}"
        )

    def text(self, shape: Shape, more: str = "") -> str:
        """Describe an array of this dtype."""
        return f"{dtype_name(self.dtype)}[{', '.join(map(str, shape))}]{more}"

    @property
    def family(self) -> Any:
        """What sizes of at least 2 and strides do not change: the kind, the dtype, the rank, whether it is contiguous."""
        small = tuple(size if size < 2 else None for size in self.shape)
        return (self.kind, self.dtype, small, self.strides is None, self.value)


@dataclass
class Arguments:
    """One call's arguments, taken apart.

    Calls with equal keys have arguments of the same types, sizes, strides and static values. Calls with equal families
    have arguments that differ in sizes of at least 2 and in strides alone.
    """

    bound: dict[str, Any]
    structure: Structure
    leaves: list[Any]
    paths: list[str]
    key: tuple[Any, ...]
    function: Any = None
    found: Any = None  # a traced function that takes the call, and the objects that play its roles

    @property
    def described(self) -> tuple[Leaf, ...]:
        found: tuple[Leaf, ...] = self.key[1]
        return found

    @functools.cached_property
    def family(self) -> tuple[Any, ...]:
        return family_of(self.key)

    def pinned(self) -> Arguments:
        """Return the same described by the very objects that are passed, not by their classes."""
        structure, described, fixed, aliases = self.key
        pairs = zip(described, self.leaves, strict=True)
        same = tuple(
            replace(leaf, value=Same(item)) if isinstance(leaf.value, OfClass) else leaf
            for leaf, item in pairs
        )
        return replace(self, key=(structure, same, fixed, aliases), found=None)

    @property
    def is_open(self) -> bool:
        """Whether objects are described by their classes."""
        return any(isinstance(leaf.value, OfClass) for leaf in self.described)

    @property
    def has_objects(self) -> bool:
        """Whether a graph for such a call is one for certain objects."""
        values = (leaf.value for leaf in self.described)
        return any(isinstance(v, Same) and not isinstance(v.item, _PLAIN) for v in values)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all array arguments in a row."""
        return tuple(size for leaf in self.described for size in leaf.shape)

    def shapes(self, dims: Shape) -> list[Shape]:
        """Return the dims of all array arguments in a row as a shape for each leaf."""
        left = iter(dims)
        return [tuple(next(left) for _ in leaf.shape) for leaf in self.described]


def family_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what calls have in common that differ in sizes and strides alone."""
    structure, described, fixed, aliases = key
    return (structure, tuple(leaf.family for leaf in described), fixed, aliases)


@dataclass(frozen=True)
class Needs:
    """Numbers whose values tracing needs: those of some arguments; at level 1 all integers, at level 2 Python's floats too.

    An argument that has NumPy's name for an axis is one of them whatever is done with it.
    """

    arguments: frozenset[str] = frozenset(("axis", "axes"))
    level: int = 0

    def level_of(self, path: str) -> int:
        """Return the level for the leaf at a path."""
        needed = path in self.arguments or path.partition("[")[0] in self.arguments
        return 2 if needed else self.level

    def which(self) -> str:
        """Say what is needed, for a sentence."""
        names = sorted(self.arguments - Needs().arguments)
        if self.level or not names:
            return "the values of Python numbers are"
        return f"the value{'s' * (len(names) > 1)} of {', '.join(f'`{n}`' for n in names)} {'are' if len(names) > 1 else 'is'}"

    def more(self, error: Exception) -> Needs | None:
        """Return what else is needed after an error: the argument that it names, else the next level."""
        named = getattr(error, "argument", None)
        if named is not None and named not in self.arguments:
            return Needs(self.arguments | {named}, self.level)
        return Needs(self.arguments, self.level + 1) if self.level < 2 else None


class Signature:
    """How a function's arguments are bound, and which of them are static."""

    def __init__(self, fn: Callable[..., Any], static: tuple[str, ...]) -> None:
        self.name, self.signature = getattr(fn, "__name__", "main"), signature_of(fn)
        self.require("static_argnames", static)
        self.static = set(static)

    def require(self, option: str, names: Iterable[str]) -> None:
        """Refuse names of an option that are no parameters."""
        unknown = [name for name in names if name not in self.signature.parameters]
        if unknown:
            raise StaticArgumentError(
                f"{option} names {', '.join(unknown)}, but `{self.name}` takes {', '.join(self.signature.parameters)}",
                remedy="name parameters of the function",
            )

    def take_apart(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], needs: Needs | None = None
    ) -> Arguments:
        """Bind a call and describe its leaves: which Python numbers are static is up to `needs`."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        values = dict(bound.arguments)
        dynamic = {name: value for name, value in values.items() if name not in self.static}
        leaves, structure = flatten(dynamic)
        paths = [_pretty(path) for path, _ in leaves_with_paths(dynamic)]
        needs = needs or Needs()
        described = tuple(map(describe, leaves, map(needs.level_of, paths), paths))
        fixed = tuple(
            (name, self._static(name, values[name])) for name in values if name in self.static
        )
        return Arguments(
            values, structure, leaves, paths, (structure, described, fixed, _aliases(leaves))
        )

    @staticmethod
    def _static(name: str, value: Any) -> Exact:
        try:
            hash(value)
        except TypeError:
            raise StaticArgumentError(
                f"the static argument `{name}` is a {type(value).__name__}, which cannot be hashed",
                remedy="pass a tuple instead of a list, or an object with `__hash__` and `__eq__`; arrays cannot be static",
            ) from None
        return Exact(value)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function; of a ufunc the operands alone, since it does not take the defaults of its options."""
    if not isinstance(fn, np.ufunc):
        return inspect.signature(fn)
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(f"x{k}", kind) for k in range(fn.nin)])


def _pretty(path: str) -> str:
    """Turn `['x'][0]` into `x[0]`."""
    name, _, rest = path.removeprefix("['").partition("']")
    return name + rest


def describe(leaf: Any, static_level: int = 0, path: str = "") -> Leaf:
    """Describe one leaf."""
    if isinstance(leaf, np.ndarray):
        if type(leaf) is not np.ndarray and not isinstance(leaf, np.memmap):
            raise UnsupportedError(
                f"the argument `{path}` is a {type(leaf).__name__}",
                remedy="pass a plain array: `np.asarray(x)`",
            )
        dtype = supported_dtype(leaf.dtype)
        return Leaf("array", dtype, leaf.shape, None if leaf.flags.c_contiguous else leaf.strides)
    if isinstance(leaf, Remote):
        return Leaf(leaf.kind, leaf.dtype, leaf.shape, leaf.strides)
    if is_on_device(leaf):
        dtype = supported_dtype(np.dtype(leaf.dtype))
        return Leaf("array", dtype, tuple(leaf.shape), None, Same(device_name(leaf)))
    if isinstance(leaf, _FIXED[static_level]):
        return Leaf("static", value=Same(leaf))
    if (
        isinstance(leaf, np.generic)
        and type(leaf) is leaf.dtype.type
        and leaf.dtype.kind in "biufcV"
    ):
        return Leaf("scalar", supported_dtype(leaf.dtype))
    fits = not isinstance(leaf, int) or -(2**63) <= leaf < 2**63
    if type(leaf) in (int, float, complex) and fits:
        return Leaf("python", np.dtype(np.int64 if isinstance(leaf, int) else type(leaf)))
    # Numbers of classes derived from these, such as members of an `IntEnum`, have methods and attributes that tracing is to see.
    return Leaf("static", value=OfClass(type(leaf)) if stands_in(leaf) else Same(leaf))


def is_number(item: Any) -> bool:
    """Tell whether an object is a number that can be an input of a graph."""
    return isinstance(item, (int, float, complex, np.generic)) and describe(item).kind in (
        "python",
        "scalar",
    )


def is_on_device(leaf: Any) -> bool:
    """Tell whether an object is an array of a GPU: CuPy's, one that says so by CUDA's array interface, or an emulated one."""
    return hasattr(leaf, "dsl_device") or hasattr(leaf, "__cuda_array_interface__")


def device_name(leaf: Any) -> str:
    """Return the name of the device that an array of a GPU is on."""
    named = getattr(leaf, "dsl_device", None)
    return named or f"cuda:{int(getattr(getattr(leaf, 'device', None), 'id', None) or 0)}"


_FIXED = (bool, (int, np.integer), (int, float, complex, np.integer))
"""The numbers that are static at each level of `Needs`."""

_PLAIN = (str, bytes, type, np.dtype, bool, int, float, complex, np.generic)


class Same:
    """An object as a key: by equality where it hashes, else by identity."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same):
            return False
        if self.item is other.item:
            return True
        return isinstance(self.item, _PLAIN) and identity(self.item) == identity(other.item)

    def __hash__(self) -> int:
        return hash(identity(self.item)) if isinstance(self.item, _PLAIN) else id(self.item)

    def __repr__(self) -> str:
        return repr(self.item)


def _aliases(leaves: list[Any]) -> tuple[int, ...]:
    """For each array leaf, the position of the first leaf that is the same object; empty when all differ."""
    first: dict[int, int] = {}
    places = tuple(
        first.setdefault(id(leaf), k) if isinstance(leaf, (np.ndarray, Remote)) else k
        for k, leaf in enumerate(leaves)
    )
    return () if all(k == place for k, place in enumerate(places)) else places
