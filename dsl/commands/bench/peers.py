"""The contenders: how each builds a function, takes NumPy arguments, is called, and gives NumPy results back.

`Peer` is NumPy, which needs nothing; the others differ from it in a few lines each. A peer is made once per run, which
imports it and sets its options; `start` then compiles something small, so that the first case does not pay for loading
a compiler.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

import dsl
from dsl.commands.bench.case import Function, Way
from dsl.commands.bench.load import case_named
from dsl.config import config
from dsl.errors import ConfigError, DeviceError

__all__ = ["NAMES", "Dsl", "Peer", "llvm_compiles", "make_peers", "version"]


class Peer:
    """NumPy: the program as it stands."""

    module = "numpy"
    compiles = False

    def __init__(self) -> None:
        self.names = self.load()

    def load(self) -> dict[str, Any]:
        """Import the peer, set its options, and return what the names in its functions stand for."""
        return {"np": np}

    def start(self) -> None:
        """Load the compiler."""
        self.build(Way(double))(self.give(np.ones(8)))

    def cold(self, *, again: bool) -> AbstractContextManager[None]:
        """Surround a first call, so that it finds nothing compiled; `again` when the case was compiled before."""
        self.forget()
        return nullcontext()

    def forget(self) -> None:
        """Drop what earlier compiles left behind."""

    def build(self, way: Way) -> Function:
        """Return something new to call."""
        return self.compile(bind(way.function, self), **way.options)

    def compile(self, function: Function, **options: Any) -> Function:
        return function

    def give(self, argument: Any) -> Any:
        """Return an argument in the form that the peer's users have it in."""
        return argument

    def wait(self, result: Any) -> Any:
        """Return a result when it is there."""
        return result

    def take(self, result: Any) -> Any:
        """Return one array of a result as NumPy's."""
        return result

    def call_text(self, names: Iterable[str], result: Any) -> str:
        """Return the expression that is timed."""
        return f"call({', '.join(names)})"


class Dsl(Peer):
    """This project. `cache` is where its compiled code is kept for a second process."""

    module = "dsl"
    compiles = True

    def __init__(self, cache: Path) -> None:
        super().__init__()
        self.cache = cache

    def build(self, way: Way) -> Function:
        # As it is: a bound function is not the one that its file defines.
        return dsl.jit(**way.options)(way.function)

    def start(self) -> None:
        case = case_named(
            "heat-f64-500"
        )  # a user's function with a loop; the size is not the one measured
        self.build(case.ways["dsl"])(*case.make_inputs(quick=True))

    @contextmanager
    def cold(self, *, again: bool) -> Iterator[None]:
        """The first time the code goes to `cache`, which has that of other cases only; then to empty folders."""
        gc.collect()  # what the last try compiled is found in memory while anything refers to it
        if not again:
            yield
            return
        with tempfile.TemporaryDirectory() as folder, config.override(cache_dir=folder):
            yield


class Numba(Peer):
    module = "numba"
    compiles = True

    def load(self) -> dict[str, Any]:
        self.numba = importlib.import_module("numba")
        return {"np": np, "numba": self.numba, "prange": self.numba.prange}

    def start(self) -> None:
        for parallel in (False, True):
            self.build(Way(double_each, parallel=parallel))(np.ones(8))

    def compile(self, function: Function, **options: Any) -> Function:
        compiled: Function = self.numba.njit(**options)(function)
        return compiled


class Jax(Peer):
    module = "jax"
    compiles = True
    platform: str | None = "cpu"

    def load(self) -> dict[str, Any]:
        if self.platform is not None:
            os.environ.setdefault("JAX_PLATFORMS", self.platform)
        self.jax = importlib.import_module("jax")
        self.jax.config.update("jax_enable_x64", True)
        jnp = importlib.import_module("jax.numpy")
        return {"np": jnp, "jnp": jnp, "jax": self.jax}

    def forget(self) -> None:
        self.jax.clear_caches()

    def compile(self, function: Function, **options: Any) -> Function:
        compiled: Function = self.jax.jit(function, **options)
        return compiled

    def give(self, argument: Any) -> Any:
        if not isinstance(argument, np.ndarray):
            return argument
        return self.wait(self.names["jnp"].array(argument))

    def wait(self, result: Any) -> Any:
        return self.jax.block_until_ready(result)

    def take(self, result: Any) -> Any:
        return np.asarray(result)

    def call_text(self, names: Iterable[str], result: Any) -> str:
        # The method is quicker than the function, which looks through a tree.
        call = super().call_text(names, result)
        one = not isinstance(result, tuple | list)
        return f"{call}.block_until_ready()" if one else f"wait({call})"


class Torch(Peer):
    module = "torch"

    def load(self) -> dict[str, Any]:
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(cores())
        self.torch.set_grad_enabled(False)
        return {"np": np, "torch": self.torch}

    def give(self, argument: Any) -> Any:
        if not isinstance(argument, np.ndarray):
            return argument
        return self.torch.from_numpy(argument)

    def take(self, result: Any) -> Any:
        return result.numpy() if hasattr(result, "numpy") else result


class TorchCompile(Torch):
    compiles = True

    def load(self) -> dict[str, Any]:
        names = super().load()
        importlib.import_module("torch._inductor.config").force_disable_caches = True  # type: ignore[attr-defined]
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
        return names

    def forget(self) -> None:
        self.torch._dynamo.reset()

    def compile(self, function: Function, **options: Any) -> Function:
        compiled: Function = self.torch.compile(function, **options)
        return compiled


NAMES: dict[str, type[Peer]] = {
    "numpy": Peer, "numba": Numba, "jax": Jax, "torch": Torch, "torch.compile": TorchCompile,
}  # fmt: skip


def make_peers(
    names: Iterable[str], known: Mapping[str, type[Peer]], ours: Dsl
) -> tuple[dict[str, Peer], dict[str, str]]:
    """Return dsl and the peers that are there, and of the others, by name, why they are not."""
    peers: dict[str, Peer] = {"dsl": ours}
    missing: dict[str, str] = {}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no peer {name!r}; there are: {', '.join(known)}")
        if importlib.util.find_spec(known[name].module) is None:
            missing[name] = "not installed"
            continue
        try:
            peers[name] = known[name]()
        except DeviceError as error:
            missing[name] = str(error)
    return peers, missing


def version(peer: Peer) -> str:
    """Return the version of a peer."""
    return str(importlib.import_module(peer.module).__version__)


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def llvm_compiles() -> int | None:
    """Return how often this process compiled with LLVM, or None if dsl did not count it."""
    jit = sys.modules.get("dsl.codegen.cpu.jit")
    stats = getattr(dsl, "cache_stats", None) or getattr(jit, "stats", None)
    return stats().llvm_compiles if stats is not None else None


# --- Binding names -------------------------------------------------------------------------------


def bind(function: Function, peer: Peer) -> Function:
    """Return the function with `np`, `jnp`, `torch` and so on meaning what the peer says.

    So one source runs over NumPy and, with `np` as `jax.numpy`, over JAX; and no peer is imported that does not run.
    Functions that it calls are not bound.
    """
    if not isinstance(function, FunctionType):
        return function
    bound = FunctionType(
        function.__code__,
        function.__globals__ | peer.names,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def double(x: Any) -> Any:
    return x + x


def double_each(x: Any) -> Any:
    out = np.empty_like(x)
    for i in prange(x.size):  # type: ignore[name-defined]  # noqa: F821
        out[i] = x[i] + x[i]
    return out
