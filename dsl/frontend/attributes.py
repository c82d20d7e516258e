"""Attributes and methods of objects, read and assigned.

Properties of the user's classes are converted. What a branch or a loop assigns is noted in its scope with the old value, so that
it is undone there and becomes a result.
"""

from __future__ import annotations

import builtins
import copy
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import BranchError, UnsupportedError
from dsl.frontend.calls import BUILTINS, CALLED, call
from dsl.frontend.captures import fill, from_outside, is_numeric
from dsl.frontend.choices import note_change, note_reading
from dsl.frontend.convert import MUTATORS, is_converted
from dsl.frontend.leaves import the_trace
from dsl.frontend.list_methods import DEQUE_METHODS
from dsl.frontend.lists import TracedList
from dsl.frontend.objects import was_made_here
from dsl.frontend.operators import augmented
from dsl.frontend.optional import TracedOptional
from dsl.frontend.roles import Declared, Own, Presence, stands_in
from dsl.frontend.scopes import Trace, current_trace, here
from dsl.frontend.state import (
    held_by,
    is_mutable,
    is_opaque,
    open_attribute,
    setter_of,
    undefined_attribute,
)
from dsl.frontend.traced import Traced
from dsl.frontend.trees import OBJECTS, forwarded
from dsl.frontend.user_code import (
    declared,
    is_generated_method,
    is_users,
    own_method,
    owner_of,
)

__all__ = [
    "attribute_to_change",
    "augment_attribute",
    "delete_attribute",
    "find_method",
    "read_attribute",
    "set_attribute",
]


def read_attribute(obj: Any, name: str) -> Any:
    """Read an attribute."""
    note_reading(obj)
    if name == "__class__" and isinstance(obj, (Traced, TracedList)):
        return BUILTINS[type](obj)
    if type(obj) is super and current_trace() is not None:
        return _of_bases(obj, name)
    found = declared(type(obj), name)
    own = own_method(found, "__get__")
    if own is not None and current_trace() is not None and _is_managed(obj, found, name):
        return call(own, found, obj, type(obj))
    kept = isinstance(found, functools.cached_property)
    getter = getattr(found, "func" if kept else "fget", None)
    if (
        isinstance(getter, types.FunctionType)
        and is_users(getter)
        and current_trace() is not None
        and not (kept and name in vars(obj))
    ):
        if kept and _is_outside(the_trace(), obj) and not _is_ours(the_trace(), obj, name):
            from_outside(vars(obj), name, None)
        _note_class(type(obj), name, found)
        made = call(getter, obj)
        if kept and len(the_trace().scopes) == 1:  # what a branch computes is not there after it
            set_attribute(obj, name, made)
        return made
    try:
        value = forwarded(_attribute(forwarded(obj), name))
    except AttributeError:
        _note_presence(obj, name)  # somebody may catch it
        raise
    trace = current_trace()
    if trace is None or isinstance(obj, Traced):
        return value
    note_reading(obj)
    if _is_variable(obj, name, value):
        trace.outside.setdefault(id(obj), obj)
    is_outside = _is_outside(trace, obj)
    if isinstance(value, np.ndarray) or (is_outside and not _is_ours(trace, obj, name)):
        # `look_up` takes the key of a dict for that of an item, and must not compute a property that is gone.
        apart = isinstance(obj, dict) or kept or _is_assigned_by_class(trace, obj, name)
        holder = vars(obj) if apart and name in getattr(obj, "__dict__", ()) else obj
        return from_outside(holder, name, value)
    if is_mutable(value) and name not in getattr(obj, "__dict__", {}):
        return _of_class(obj, name, value)
    return value


def _of_bases(bases: Any, name: str) -> Any:
    """Read what the classes have that an object's class inherits from; calls ask for it again."""
    obj, cls, beyond = bases.__self__, bases.__self_class__, bases.__thisclass__
    if name.startswith("__"):
        return getattr(bases, name)
    key = Declared(name, beyond)
    found = key.found_in(cls)
    if _has_getter(found):
        _note_class(cls, key, found)
        return call(found.fget, obj)
    value = getattr(bases, name)
    if found is value:
        return from_outside(cls, key, value) if is_users(cls) else value
    _note_class(cls, key, found)
    return value


def _has_getter(found: Any) -> bool:
    getter = getattr(found, "fget", None)
    return (
        isinstance(found, property) and isinstance(getter, types.FunctionType) and is_users(getter)
    )


def _note_class(cls: type, key: str | Declared, found: Any) -> None:
    """Guard that a class of the user's still has the same function or property under a name."""
    if not is_users(cls) or not isinstance(found, _FOUND_IN_CLASSES):
        return
    plain = getattr(found, "__func__", None) or getattr(found, "fget", None) or found
    if isinstance(plain, types.FunctionType) and is_converted(plain):
        return  # of a class that the function makes
    if isinstance(key, str) and isinstance(found, (classmethod, staticmethod)):
        key = Declared(key)
    from_outside(cls, key, found)


_FOUND_IN_CLASSES = (
    types.FunctionType, classmethod, staticmethod, property, functools.cached_property,
)  # fmt: skip


def _is_outside(trace: Trace, obj: Any) -> bool:
    """Tell whether an object was there before the trace; one that came from nobody knows where is noted."""
    if id(obj) in trace.outside:
        return True
    if trace.roles.of(obj) is not None:
        trace.outside[id(obj)] = obj
        return True
    if stands_in(obj) and not trace.is_known(obj):
        trace.roles.note_native(obj)
    return False


def _is_variable(obj: Any, name: str, value: Any) -> bool:
    """Tell whether a module or a class of the user's holds what was read of it, which may change between calls."""
    if isinstance(obj, types.ModuleType):
        return is_users(obj)
    return isinstance(obj, type) and is_users(obj) and declared(obj, name) is value


def _is_ours(trace: Trace, obj: Any, name: str) -> bool:
    """Tell whether the function has assigned an attribute: what it holds now is not what later calls find there."""
    owner = owner_of(obj, name)
    key = id(owner), name
    ours = any(
        key in scope.attributes and id(scope.attributes[key][2]) not in scope.opened
        for scope in trace.scopes
    )
    if ours and owner is not obj:
        _note_no_own(obj, name, owner)
    return ours


def _note_no_own(obj: Any, name: str, owner: type) -> None:
    """Guard that an attribute is that of a class further up: another object, or a class before it, may have one of its own."""
    if isinstance(own := getattr(obj, "__dict__", None), dict):
        from_outside(own, name, None)
    bases = obj.__mro__ if isinstance(obj, type) else type(obj).__mro__
    for base in bases[: bases.index(owner)]:
        if is_users(base):
            from_outside(base, Own(name), None)


def _is_assigned_by_class(trace: Trace, obj: Any, name: str) -> bool:
    """Tell whether the function has assigned an attribute of the class of an object: that of the object must stay its own."""
    if not trace.has_assigned_class:
        return False
    keys = {(id(base), name) for base in type(obj).__mro__}
    return any(not keys.isdisjoint(scope.attributes) for scope in trace.scopes)


def _of_class(obj: Any, name: str, value: Any) -> Any:
    """Take a list or dict of a class, which all its instances share, as what was there before."""
    for base in type(obj).__mro__:
        if vars(base).get(name) is value:
            return from_outside(base, name, value, earlier=True)
    return value


def _is_managed(obj: Any, descriptor: Any, name: str) -> bool:
    """Tell whether Python asks a descriptor for an attribute, and not the instance itself."""
    return hasattr(type(descriptor), "__set__") or name not in getattr(obj, "__dict__", {})


def _attribute(obj: Any, name: str) -> Any:
    """Read an attribute; of one that branches left without a value, say why."""
    missing = undefined_attribute(obj, name)
    if missing.reason and not hasattr(obj, name):
        missing.fail()
    return getattr(obj, name)


def attribute_to_change(obj: Any, name: str) -> Any:
    """Read an attribute in order to change the list or dict that it holds; regions remember what was in it."""
    trace = current_trace()
    held = getattr(obj, name, None)
    if trace is not None and is_opaque(held) and len(trace.scopes) > 1:
        _refuse_opaque(obj, name, held)
    is_tree = _is_tree(trace, obj) or was_made_here(obj)
    mine = is_mutable(held) and not is_tree and not OBJECTS[0].is_made(held)
    if trace is not None and mine and (len(trace.scopes) > 1 or id(obj) in trace.outside):
        open_attribute(trace.scopes[-1], obj, name)
        fill(held, obj, name)
        trace.stand_ins.refuse_change(found := read_attribute(obj, name))
        return found
    return read_attribute(obj, name)


def _is_tree(trace: Trace | None, obj: Any) -> bool:
    """Tell whether an object is a dataclass that was passed or made here: a tree of its fields, which go where it goes."""
    if not hasattr(obj, "__dataclass_fields__"):
        return False
    return trace is None or id(obj) not in trace.outside


def _refuse_opaque(obj: Any, name: str, held: Any) -> None:
    """Refuse to change a set, or its like, of an object from outside in a branch or loop, which would not be undone."""
    if not was_made_here(obj):
        raise BranchError(
            f"the {type(held).__name__} `{name}` changes in a branch or loop that the data decides",
            location=here(),
            remedy="use a list, a dict with all its keys, or an array of flags",
        )


def find_method(obj: Any, name: str) -> Any:
    """What is called: a method, perhaps that of a `deque`, for which a list may stand, or what a property returns."""
    held = forwarded(obj)
    (note_change if name in MUTATORS else note_reading)(held)
    if isinstance(held, TracedOptional) and held.structure.type is not None:
        return functools.partial(_call_inside, held, name)
    if name in DEQUE_METHODS and isinstance(held, (list, TracedList)):
        return functools.partial(DEQUE_METHODS[name], held)
    found = declared(type(obj), name)
    if isinstance(found, (property, functools.cached_property)) or own_method(found, "__get__"):
        return read_attribute(obj, name)
    trace = current_trace()
    if trace is not None and type(obj) is super:
        return read_attribute(obj, name)
    if trace is not None and isinstance(obj, type):
        _note_class(obj, name, declared(obj, name))
    if isinstance(obj, types.ModuleType) and is_users(obj):
        return read_attribute(obj, name)
    if trace is not None and id(obj) in trace.outside and is_users(type(obj)):
        return _method_outside(trace, obj, name, found)
    return getattr(obj, name)


def _method_outside(trace: Trace, obj: Any, name: str, found: Any) -> Any:
    """Return a method of an object from outside; calls ask whether it is still the one of its class, if it was."""
    own = getattr(obj, "__dict__", None)
    if isinstance(own, dict) and not _is_ours(trace, obj, name):
        if name in own:
            return read_attribute(obj, name)
        from_outside(own, name, None)
    _note_class(type(obj), name, found)
    return getattr(obj, name)


def _call_inside(held: TracedOptional, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method, which may change its object, of what may be None."""
    words = f"has no attribute '{name}'"
    return held.change(
        lambda value: call(getattr(value, name), *args, **kwargs), words, "AttributeError"
    )


def set_attribute(obj: Any, name: str, value: Any) -> None:
    """Assign an attribute; regions remember the old value."""
    trace = current_trace()
    note_change(obj)
    if isinstance(obj, TracedOptional):
        words = f"has no attribute '{name}'"
        return obj.change(lambda held: set_attribute(held, name, value), words, "AttributeError")  # type: ignore[no-any-return]
    own = own_method(obj, "__setattr__")
    if own is not None and trace is not None and not is_generated_method(own):
        return call(own, obj, name, value)  # type: ignore[no-any-return]
    return _set_plainly(obj, name, value)


def _set_plainly(obj: Any, name: str, value: Any) -> None:
    """`object.__setattr__(obj, name, value)`: properties and descriptors of the user's are converted."""
    trace = current_trace()
    setter = _setter(obj, name)
    if setter is not None and trace is not None:
        return call(setter, obj, value)  # type: ignore[no-any-return]
    if (
        trace is not None
        and not _is_tree(trace, obj)
        and not isinstance(obj, Traced)
        and not was_made_here(obj)
    ):
        old = held_by(obj, name)
        scope = trace.scopes[-1]
        if isinstance(obj, (type, types.ModuleType)) and is_users(obj):
            trace.outside.setdefault(id(obj), obj)
            trace.has_assigned_class = True
        if owner_of(obj, name) is not obj:
            trace.inherited[id(obj), name] = obj
        scope.attributes.setdefault((id(obj), name), (obj, name, old))
    setter_of(type(obj))(obj, name, value)


def _setter(obj: Any, name: str) -> Callable[..., Any] | None:
    """Return what the user wrote to assign a property, or what a descriptor of the user's manages."""
    held = declared(type(obj), name)
    setter = getattr(held, "fset", None)
    if isinstance(setter, types.FunctionType) and is_users(setter):
        return setter
    own = own_method(held, "__set__")
    return functools.partial(call, own, held) if own is not None else None


def augment_attribute(obj: Any, name: str, op: str, value: Any) -> None:
    """`obj.name op= value`."""
    set_attribute(obj, name, augmented(read_attribute(obj, name), op, value))


def delete_attribute(obj: Any, name: str) -> None:
    """`del obj.name`."""
    trace = current_trace()
    if trace is not None and id(obj) in trace.outside:
        raise UnsupportedError(
            f"the attribute `{name}` of an object from outside of the function is deleted",
            location=here(), remedy="assign None to it, or delete it in the caller",
        )  # fmt: skip
    delattr(obj, name)


# -- by name --------------------------------------------------------------------------------------------------------------


def _getattr(obj: Any, name: str, *default: Any) -> Any:
    """`getattr(obj, name, default)`."""
    is_method = callable(getattr(type(obj), name, None))
    try:
        return find_method(obj, name) if is_method else read_attribute(obj, name)
    except AttributeError:
        if default:
            _note_presence(obj, name)
            return default[0]
        raise


def _hasattr(obj: Any, name: str) -> bool:
    _note_presence(obj, name)
    return hasattr(obj, name)


def _note_presence(obj: Any, name: str) -> None:
    """Guard whether an object from outside has an attribute."""
    trace = current_trace()
    if trace is not None and id(obj) in trace.outside and not _is_ours(trace, obj, name):
        from_outside(Presence(obj), name, hasattr(obj, name))


def _vars(obj: Any) -> Any:
    return read_attribute(obj, "__dict__")


def _dir(obj: Any) -> list[str]:
    _note_all(obj)
    return dir(obj)


def _copied(obj: Any) -> Any:
    _note_all(obj)
    made = copy.copy(obj)
    if (trace := current_trace()) is not None and stands_in(made):
        trace.roles.made[id(made)] = made
    return made


def _note_all(obj: Any) -> None:
    """Guard all attributes of an object from outside, and make arrays among them inputs."""
    trace = current_trace()
    held = getattr(obj, "__dict__", None)
    if trace is not None and id(obj) in trace.outside and isinstance(held, dict):
        from_outside(obj, "__dict__", held, as_is=True)
        for name, value in held.items():
            if is_numeric(value):
                from_outside(obj, name, value)


def _attributes(getter: Any, obj: Any) -> Any:
    """Call an `operator.attrgetter`."""
    found = [functools.reduce(_getattr, name.split("."), obj) for name in getter.__reduce__()[1]]
    return tuple(found) if len(found) > 1 else found[0]


def _call_method(caller: Any, obj: Any) -> Any:
    """Call an `operator.methodcaller`."""
    made, given = caller.__reduce__()
    if not isinstance(made, functools.partial):
        return call(find_method(obj, given[0]), *given[1:])
    return call(find_method(obj, made.args[0]), *given, **made.keywords)


BUILTINS.update({
    builtins.getattr: _getattr, builtins.setattr: set_attribute, builtins.delattr: delete_attribute,
    object.__setattr__: _set_plainly, builtins.hasattr: _hasattr, builtins.vars: _vars, builtins.dir: _dir, copy.copy: _copied,
})  # fmt: skip
CALLED.update({operator.attrgetter: _attributes, operator.methodcaller: _call_method})
