"""Effects: printing, assertions, variables, queues, files, tokens between devices.

An effect happens in program order with the others on its resource, and exactly as often as the program comes by.
Values are formatted by Python's `str.format`, arrays as NumPy prints them and rank-0 values as NumPy scalars.

Variables and queues are named by an attribute; the `Environment` of a step says which they are. Reading a variable gives
its contents at that moment, whatever is written later. `update_variable` and `scatter_variable` are atomic; their output
is the value afterwards. Ops on a queue wait without holding a thread. `send` and `recv` are made by partitioning: a token,
dead or alive, goes from the one to the other with the same key, in the same iteration of the same frames.
"""

from __future__ import annotations

import builtins
import string
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.errors import InternalError, TypeRuleError
from dsl.ir.environment import Cancel, Done, Environment
from dsl.ir.ops.rules import ANY, BOOLS, Attrs, Inputs, operands, refuse, require_rank
from dsl.ir.registry import Trait, given_type, op
from dsl.ir.types import I64, TensorType, scalar

EFFECT, CHECKED, BLOCKING, FLAT = Trait.EFFECT, Trait.CHECKED, Trait.BLOCKING, Trait.FLAT


def _check_values(name: str, values: Inputs) -> None:
    operands(name, values, **{f"value{k}": ANY for k in range(len(values))})


class _Formatter(string.Formatter):
    """`str.format` with three formats more: an array as a list of Python `numbers`, of NumPy's `scalars`, or as an `array` of no axes."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "numbers":
            return str(value.tolist())
        if format_spec == "array":
            return repr(np.asarray(value))
        return str(list(value)) if format_spec == "scalars" else format(value, format_spec)


def _formatted(template: str, values: tuple[np.ndarray, ...]) -> str:
    return _Formatter().vformat(template, [np.asarray(value)[()] for value in values], {})


def _check_template(name: str, template: str, values: Inputs) -> None:
    """Refuse a template that asks for more values than there are, before the program runs."""
    try:
        template.format(*(_Anything() for _ in values))
    except (IndexError, KeyError, ValueError) as error:
        raise TypeRuleError(
            f"{name}: {template!r} does not fit {len(values)} values: {error}"
        ) from None


class _Anything:
    """A value that accepts every format."""

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: object) -> _Anything:
        return self


def _print_type(inputs: Inputs, attrs: Attrs) -> tuple[()]:
    _check_values("print", inputs)
    _check_template("print", attrs["template"], inputs)
    return ()


def _print(*values: np.ndarray, template: str, end: str) -> tuple[()]:
    sys.stdout.write(_formatted(template, values) + end)
    return ()


def _assert_type(inputs: Inputs, attrs: Attrs) -> tuple[()]:
    (pred,) = operands("assert", inputs[:1], pred=BOOLS)
    require_rank("assert", "pred", pred, 0)
    _check_values("assert", inputs[1:])
    _check_template("assert", attrs["message"], inputs[1:])
    if _exception(attrs["error"]) is None:
        refuse("assert", "error", "the name of a known exception", repr(attrs["error"]))
    return ()


def _keep_type(inputs: Inputs, attrs: Attrs) -> tuple[()]:
    _check_values("keep", inputs)
    return ()


# Exceptions that are not built in, by the name under which programs raise them.
_errors: dict[str, type[BaseException]] = {"LinAlgError": np.linalg.LinAlgError}


def known_error(error: type[BaseException]) -> str:
    """Return a name for an exception class that `assert` nodes can raise."""
    name: str = error.__name__
    if getattr(builtins, name, None) is not error:
        _errors[name] = error
    return name


def _exception(name: str) -> type[BaseException] | None:
    found: Any = _errors.get(name) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _assert(pred: np.ndarray, *values: np.ndarray, message: str, error: str) -> tuple[()]:
    if not pred:
        raise (_exception(error) or AssertionError)(_formatted(message, values))
    return ()


op("print", "*values ->", doc="Write `template` formatted with the values, and `end`, to stdout.",
   type=_print_type, numpy=_print, traits={EFFECT}, resource="print")  # fmt: skip
op("assert", "pred, *values ->", doc="Raise the built-in `error` with `message` unless pred is true.",
   type=_assert_type, numpy=_assert, traits={EFFECT, CHECKED}, resource="assert")  # fmt: skip
op("keep", "*values ->", doc="Compute the values though nothing uses them, for the exceptions that this may raise.",
   type=_keep_type, numpy=lambda *values: (), traits={EFFECT, CHECKED}, resource="assert")  # fmt: skip


# -- variables -----------------------------------------------------------------------------------------------------


def _outside(*values: Any, variable: str = "", how: str = "set") -> Any:
    raise InternalError("this op acts on its environment")


def _of_queue(*values: Any, queue: str, cancel: bool = False) -> Any:
    raise InternalError("this op acts on its environment")


def _of_key(*values: Any, key: str) -> Any:
    raise InternalError("this op acts on its environment")


def _of_file(*values: Any, path: str, names: tuple[str, ...]) -> Any:
    raise InternalError("this op acts on its environment")


_HOW = ("set", "add", "subtract")


def _check_how(name: str, attrs: Attrs) -> None:
    if attrs["how"] not in _HOW:
        refuse(name, "how", " or ".join(_HOW), repr(attrs["how"]))


def _update_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    _check_how("update_variable", attrs)
    (value,) = operands("update_variable", inputs, value=ANY)
    return value


def _read(environment: Environment, attrs: Attrs, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return (environment.find(attrs["variable"]).snapshot(),)


def _update(environment: Environment, attrs: Attrs, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return (environment.find(attrs["variable"]).update(attrs["how"], inputs[0]),)


def _scatter(environment: Environment, attrs: Attrs, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return (environment.find(attrs["variable"]).scatter(attrs["how"], *inputs),)


op("read_variable", "-> x", doc="The contents of a variable.", type=given_type, numpy=_outside, traits={EFFECT},
   resource="variable {variable}", act=_read)  # fmt: skip
op("update_variable", "x -> y", doc="Set, add to or subtract from a variable; the result is its value afterwards.",
   type=_update_type, numpy=_outside, traits={EFFECT}, resource="variable {variable}", act=_update)  # fmt: skip
op("scatter_variable", "indices, updates -> y", doc="Set, add to or subtract from rows of a variable, one index after the other.",
   type=given_type, numpy=_outside, traits={EFFECT, CHECKED}, resource="variable {variable}", act=_scatter)  # fmt: skip


# -- queues --------------------------------------------------------------------------------------------------------


def _on_queue(verb: str) -> Callable[..., Cancel]:
    def begin(environment: Environment, attrs: Attrs, inputs: Sequence[Any], done: Done) -> Cancel:
        cancelling = attrs.get("cancel")
        return environment.find(attrs["queue"]).begin(  # type: ignore[no-any-return]
            "cancel_and_close" if cancelling else verb, inputs, done
        )

    return begin


def _size(environment: Environment, attrs: Attrs, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return (np.int64(environment.find(attrs["queue"]).size()),)


def _queue_op(name: str, signature: str, doc: str, verb: str, type: Any = given_type) -> None:
    op(name, signature, doc=doc, type=type, numpy=_of_queue, traits={EFFECT, BLOCKING, CHECKED},
       resource="queue {queue}", begin=_on_queue(verb))  # fmt: skip


_queue_op(
    "enqueue",
    "*components ->",
    "Put an element into a queue, waiting for room.",
    "enqueue",
    lambda i, a: (),
)
_queue_op(
    "enqueue_many",
    "*components ->",
    "Put the rows of a batch into a queue.",
    "enqueue_many",
    lambda i, a: (),
)
_queue_op(
    "dequeue", "-> *components", "Take an element out of a queue, waiting for one.", "dequeue"
)
_queue_op("dequeue_many", "n -> *components", "Take `n` elements out as one batch.", "dequeue_many")
_queue_op(
    "dequeue_up_to",
    "n -> *components",
    "Take `n` elements out, or what a closed queue has left.",
    "dequeue_up_to",
)
_queue_op("close_queue", "->", "Let nothing more into a queue.", "close", lambda i, a: ())
op("queue_size", "-> n", doc="How many elements a queue has.", type=lambda i, a: scalar(I64), numpy=_of_queue,
   traits={EFFECT}, resource="queue {queue}", act=_size)  # fmt: skip


# -- devices -------------------------------------------------------------------------------------------------------


def _by_executor(environment: Environment, attrs: Attrs, inputs: Sequence[Any], done: Done) -> Any:
    raise InternalError("tokens between devices are the business of an executor")


op("send", "x ->", doc="Give a token to the `recv` with the same key on another device.", type=lambda i, a: (),
   numpy=_of_key, traits={EFFECT, BLOCKING, FLAT}, resource="key {key}", begin=_by_executor)  # fmt: skip
op("recv", "-> x", doc="The token of the `send` with the same key on another device.", type=given_type,
   numpy=_of_key, traits={EFFECT, BLOCKING, FLAT}, resource="key {key}", begin=_by_executor)  # fmt: skip


# -- files ---------------------------------------------------------------------------------------------------------


def _save(environment: Environment, attrs: Attrs, inputs: Sequence[Any]) -> tuple[()]:
    environment.service("checkpoints").save(
        attrs["path"], dict(zip(attrs["names"], inputs, strict=True))
    )
    return ()


def _restore(environment: Environment, attrs: Attrs, inputs: Sequence[Any]) -> tuple[Any, ...]:
    found = environment.service("checkpoints").restore(attrs["path"], attrs["names"])
    return tuple(found[name] for name in attrs["names"])


op("save", "*values ->", doc="Write values under names to a checkpoint file.", type=lambda i, a: (), numpy=_of_file,
   traits={EFFECT, CHECKED}, resource="file {path}", act=_save)  # fmt: skip
op("restore", "-> *values", doc="Read values by name from a checkpoint file.", type=given_type, numpy=_of_file,
   traits={EFFECT, CHECKED}, resource="file {path}", act=_restore)  # fmt: skip


# -- programs ------------------------------------------------------------------------------------------------------


def _of_program(*values: Any, name: str, run: object) -> Any:
    raise InternalError("this op acts on its environment")


def _run(environment: Environment, attrs: Attrs, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(attrs["run"](environment, inputs))


op("program", "*inputs -> *outputs", doc="A compiled part of a graph, with the variables that it touches to itself.",
   type=given_type, numpy=_of_program, traits={EFFECT, CHECKED}, resource="program {name}", act=_run)  # fmt: skip
