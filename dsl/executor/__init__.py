"""Runs graphs by tokens: `Executor`."""

from dsl.executor.executor import Executor

__all__ = ["Executor"]
