"""`python -m dsl dump module:function ARG...`: a function at each stage, from the traced graph to the plan of kernels.

The later stages are long and are printed when asked for: `--stage llvm`, `--stage asm`. An argument is a type such as
`f64[3,4]`, which stands for an array of zeros, or a Python literal such as `3` or `"same"`; `name=ARG` gives a keyword
argument.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.compile import Compiled, jit
from dsl.config import config, did_you_mean
from dsl.errors import ConfigError
from dsl.ir.types import BY_NAME
from dsl.lowered import GRAPHS

__all__ = ["argument", "find", "run"]


def run(
    target: str, words: Sequence[str], stages: Sequence[str] = (), *, locations: bool = True
) -> int:
    """Print `target` for these arguments at some stages: by default every graph and, if there is one, the plan of kernels."""
    stages = stages or [*GRAPHS, *(["kernels"] if config.backend == "native" else [])]
    args, kwargs = arguments(words)
    compiled = find(target)
    try:
        inspect.signature(compiled).bind(*args, **kwargs)
    except TypeError as error:
        shape = "python -m dsl dump module:function f64[3,4] 5 name=2.0"
        raise ConfigError(
            f"{target}: {error}", remedy=f"give one argument each, as in `{shape}`"
        ) from None
    lowered = compiled.lower(*args, **kwargs)
    for stage in stages:
        print(f"# {target}, {stage}\n{lowered.text(stage, locations=locations)}\n")
    return 0


def find(target: str) -> Compiled[..., Any]:
    """Return the function that `module:function` or `module:Class.method` names, compiled."""
    module, colon, path = target.partition(":")
    if not colon or not path:
        raise ConfigError(f"{target!r} does not name a function", remedy="write module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {module!r}: {error}") from None
    for name in path.split("."):
        if not hasattr(found, name):
            known = [n for n in dir(found) if not n.startswith("_")]
            raise ConfigError(f"{module} has no {path!r}{did_you_mean(name, known)}")
        found = getattr(found, name)
    compiled: Compiled[..., Any] = jit(_function(found, target))
    return compiled


def _function(found: Any, target: str) -> Callable[..., Any]:
    if not callable(found):
        raise ConfigError(f"{target} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def arguments(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Sort the words of the command line into arguments by place and by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        named = re.fullmatch(r"([A-Za-z_]\w*)=(.+)", word)
        if named:
            kwargs[named[1]] = argument(named[2])
        else:
            args.append(argument(word))
    return args, kwargs


def argument(text: str) -> Any:
    """Return zeros of the type, or the value of the literal, that `text` spells.

    >>> argument("f32[2]"), argument("(1, 2)")
    (array([0., 0.], dtype=float32), (1, 2))
    """
    spelled = re.fullmatch(r"(\w+)\[([\d,\s]*)\]", text)
    if spelled:
        if spelled[1] not in BY_NAME:
            raise ConfigError(f"{text}: no dtype {spelled[1]!r}{did_you_mean(spelled[1], BY_NAME)}")
        shape = tuple(int(size) for size in spelled[2].split(",") if size.strip())
        return np.zeros(shape, BY_NAME[spelled[1]])
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ConfigError(
            f"{text!r} is neither a type such as f64[3,4] nor a Python literal"
        ) from None
