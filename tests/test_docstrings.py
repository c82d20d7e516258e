"""Every public name has a docstring with an example, and the examples do what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest

import dsl

PUBLIC = {name: getattr(dsl, name) for name in dsl.__all__}
MODULES = {
    module.__name__: module
    for value in PUBLIC.values()
    if (module := value if isinstance(value, ModuleType) else inspect.getmodule(value)) is not None
}
EXTRA = ("dsl.runtime.queues", "dsl.config", "dsl.session.session")


@pytest.mark.parametrize("name", [n for n, v in PUBLIC.items() if not isinstance(v, ModuleType)])
def test_a_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(PUBLIC[name]) or "")


@pytest.mark.parametrize("name", sorted({*MODULES, *EXTRA}))
def test_the_examples_are_true(name: str) -> None:
    module: Any = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
