"""The options of dsl: one table, read from the environment, from code, or for the length of a `with` block.

In: environment variables `DSL_…`, `config.update(...)`, `config.override(...)`. Out: typed attributes of `config`.
Afterwards the innermost `override` wins, then `update`, then the environment, then the default. An environment
variable is read and checked when its option is first used, and not again until `config.reset()`. An `override`
holds for the current thread or task only; `update` holds for the process.

`dsl/__init__.py` does `from dsl.config import config`, so users write `dsl.config.update("logs", "passes")`.

>>> with config.override(verify="each", unroll_limit=8):
...     config.unroll_limit
8
>>> config.unroll_limit
64
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, NoReturn, TypeVar, cast, get_args, overload

from dsl.errors import ConfigError

__all__ = [
    "OPTIONS", "TOPICS", "Config", "Kind", "Option", "config", "did_you_mean", "launched_local_rank", "launched_rank",
    "launched_ranks",
]  # fmt: skip

T = TypeVar("T")

Backend = Literal["native", "interpreter"]
Verify = Literal["off", "results", "each"]
OnOff = Literal["on", "off"]
CudaMpi = Literal["off", "on", "auto"]

TOPICS: dict[str, str] = {
    "trace": "one line per trace of a function, and why it was traced",
    "compile": "time spent in each phase of a compile",
    "passes": "time, and node counts before and after, of each pass",
    "guards": "why a compiled graph could not be reused for a call",
    "capture": "arrays from outside the function that became hidden inputs",
    "unroll": "loops that were unrolled, and why",
    "cache": "compiled code that was found on disk, stored, refused or removed",
    "checkpoints": "checkpoints that were saved, passed over or removed",
    "placement": "devices that nodes asked for and did not get, and why",
}
"""What `logs` can show. `dsl.logs` writes the lines; the names stand here because they are the option's values."""


# --- Kinds: what an option takes -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of option: `expected` in words, and `parse`, which raises ValueError for anything else.

    `parse` takes what code passes as well as the text of an environment variable.
    """

    expected: str
    parse: Callable[[object], T]


_FLAGS = {"1": True, "true": True, "on": True, "yes": True}
_FLAGS |= {"0": False, "false": False, "off": False, "no": False, "": False}


def _parse_flag(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    if value is True or value is False:
        return value
    raise ValueError


def _parse_path(value: object) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise ValueError


def _parse_cache_dir(value: object) -> str | None:
    return "off" if value == "" else _parse_path(value)


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def _parse_size(value: object) -> int:
    if not isinstance(value, str):
        return _whole_number(value, least=0)
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    number = text.rstrip("KMGT")
    if (unit := text[len(number) :]) not in _UNITS:
        raise ValueError
    return _whole_number(number, least=0) << _UNITS[unit]


def _whole_number(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    number = int(value)
    if number < least:
        raise ValueError
    return number


def _parse_topics(value: object) -> frozenset[str]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable):
        raise ValueError
    names = {str(name).strip() for name in value} - {""}
    for name in sorted(names - TOPICS.keys() - {"all", "help"}):
        raise ValueError(f"unknown topic {name!r}{did_you_mean(name, [*TOPICS, 'all', 'help'])}")
    return frozenset(names - {"all"} | (TOPICS.keys() if "all" in names else set()))


def _parse_limit(value: object) -> int:
    return _whole_number(value, least=0)


def _parse_threads(value: object) -> int | None:
    return None if value is None or value == "" else _whole_number(value, least=1)


def _parse_count(value: object) -> int:
    return _whole_number(value, least=1)


def _parse_device(value: object) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda", "cuda-emulator"):
        return value
    raise ValueError


def _parse_verify(value: object) -> Verify:
    return cast(Verify, _one_of(get_args(Verify), value))


def _parse_backend(value: object) -> Backend:
    return cast(Backend, _one_of(get_args(Backend), value))


def _parse_on_off(value: object) -> OnOff:
    return cast(OnOff, _one_of(get_args(OnOff), value))


def _parse_cuda_mpi(value: object) -> CudaMpi:
    return cast(CudaMpi, _one_of(get_args(CudaMpi), value))


def _one_of(words: tuple[str, ...], value: object) -> str:
    if isinstance(value, str) and value in words:
        return value
    raise ValueError


FLAG = Kind("a switch: 1 or 0, on or off, true or false", _parse_flag)
PATH = Kind("a path", _parse_path)
CACHE_DIR = Kind("a path, or 'off'", _parse_cache_dir)
SIZE = Kind("a size: a whole number of bytes, or one followed by K, M, G or T", _parse_size)
LIMIT = Kind("a whole number, 0 or more", _parse_limit)
THREADS = Kind("a whole number, 1 or more", _parse_threads)
COUNT = Kind("a whole number, 1 or more", _parse_count)
DEVICE = Kind("cpu, cuda:0 or cuda-emulator:0", _parse_device)
TOPIC_LIST = Kind("topics separated by commas (DSL_LOGS=help lists them)", _parse_topics)
VERIFY = Kind("'off', 'results' or 'each'", _parse_verify)
BACKEND = Kind("'native' or 'interpreter'", _parse_backend)
ON_OFF = Kind("'on' or 'off'", _parse_on_off)
CUDA_MPI = Kind("'off', 'on' or 'auto'", _parse_cuda_mpi)


# --- Options -------------------------------------------------------------------------------------


class Option(Generic[T]):
    """One option: its name, environment variable, kind, default and a sentence; reads as a typed attribute.

    `since` names the feature that first reads the option; it is empty when the option is read today.
    """

    name: str
    env: str

    def __init__(self, kind: Kind[T], default: T, doc: str, since: str = "") -> None:
        self.kind, self.default, self.doc, self.since = kind, default, doc, since

    def __set_name__(self, owner: type[Config], name: str) -> None:
        self.name, self.env = name, f"DSL_{name.upper()}"
        OPTIONS[name] = self

    @overload
    def __get__(self, instance: None, owner: type[Config]) -> Option[T]: ...
    @overload
    def __get__(self, instance: Config, owner: type[Config]) -> T: ...
    def __get__(self, instance: Config | None, owner: type[Config]) -> Option[T] | T:
        return self if instance is None else cast(T, instance._value(self))

    def check(self, value: object, where: str) -> T:
        """Return `value` in the option's type; `where` is how the user spelled the option."""
        try:
            return self.kind.parse(value)
        except ValueError as error:
            # int() has its own words for bad text; ours name what is expected.
            detail = str(error) if str(error).startswith("unknown") else ""
            message = f"{where}={value!r}: {detail or f'expected {self.kind.expected}'}"
        raise ConfigError(message)

    def from_environment(self) -> T:
        """Return the value of the environment variable, or the default when it is not set."""
        text = os.environ.get(self.env)
        return self.default if text is None else self.check(text, self.env)


OPTIONS: dict[str, Option[Any]] = {}
"""Every option by name, in the order of the table; filled by the body of `Config`."""


class Config:
    """The options in force. There is one instance, `dsl.config`.

    >>> with config.override(num_threads=1):
    ...     config.num_threads
    1
    """

    logs = Option(
        TOPIC_LIST, frozenset(), "Topics to log to stderr, `all`, or `help` for the list of topics."
    )
    dump_ir_to = Option(
        PATH, None, "Directory that receives the graph as text after each stage and each pass."
    )
    disable_jit = Option(FLAG, False, "Run decorated functions as plain Python and NumPy.")
    backend = Option(
        BACKEND,
        "native",
        "What runs compiled functions: machine code, or the reference interpreter.",
    )
    verify = Option(
        VERIFY, "results", "Verify graphs: never, when a pipeline ends, or after each pass."
    )
    unroll_limit = Option(
        LIMIT, 64, "Longest Python loop that is unrolled when its body needs Python values."
    )
    traceback_filtering = Option(
        ON_OFF, "on", "Leave the frames of dsl itself out of tracebacks, or keep them."
    )
    bounds_checks = Option(
        ON_OFF,
        "on",
        "Check indices when compiled code runs; without, one out of bounds is undefined.",
    )
    num_threads = Option(
        THREADS,
        None,
        "Threads of compiled code; by default OMP_NUM_THREADS, then the CPUs the process may use.",
    )
    cpu_devices = Option(
        COUNT,
        1,
        "CPU devices of a process, cpu:0 and on; parts of a graph on different ones run at the same time.",
    )
    device = Option(
        DEVICE,
        None,
        "Where functions run that do not say: cpu, cuda:0, or cuda-emulator:0; read when a function is compiled.",
    )
    cuda_graphs = Option(
        ON_OFF,
        "off",
        "Record programs on a GPU that always launch the same as CUDA graphs, and issue those again.",
    )
    cuda_mpi = Option(
        CUDA_MPI,
        "off",
        "Pass arrays of a GPU to MPI as they are; `auto` asks the MPI library whether it takes them.",
    )
    mpi_timeout = Option(
        COUNT,
        300,
        "Seconds that a rank waits for others before it gives up and says what it waits for.",
    )
    mpi_shared_memory = Option(
        FLAG,
        True,
        "Let ranks of one machine reach each other over memory that they share, rather than by messages of MPI.",
    )
    cache_dir = Option(
        CACHE_DIR,
        None,
        "Directory of compiled code kept between processes, or `off`; by default the user's cache directory.",
    )
    cache_size = Option(
        SIZE,
        1 << 30,
        "Size of that directory above which what was not used for longest is removed; 0 keeps nothing.",
    )
    debug_nans = Option(
        FLAG,
        False,
        "Raise at the user's line that first made a NaN, in a function or its gradient.",
    )
    trace = Option(
        PATH,
        None,
        "File, or directory of one file per process, that receives a timeline of what ran.",
    )

    __slots__ = ("_environment", "_lock", "_overrides", "_updates", "_watchers")

    def __init__(self) -> None:
        self._environment: dict[str, object] = {}
        self._updates: dict[str, object] = {}
        self._watchers: list[tuple[str, Callable[[], None]]] = []
        self._lock = threading.Lock()
        self._overrides: ContextVar[Mapping[str, object]] = ContextVar(
            "dsl.config", default=MappingProxyType({})
        )

    @overload
    def update(self, name: str, value: object, /) -> None: ...
    @overload
    def update(self, /, **options: object) -> None: ...
    def update(self, /, *pair: object, **options: object) -> None:
        """Set options for the whole process: `update("logs", "trace")` or `update(logs="trace", verify="each")`.

        When one of several values is refused, none is set.
        """
        if len(pair) not in (0, 2):
            raise TypeError("config.update takes a name and a value, or keywords")
        checked = _check({str(pair[0]): pair[1]} if pair else {}) | _check(options)
        with self._lock:
            self._updates = self._updates | checked
        self._tell(checked)

    @contextmanager
    def override(self, /, **options: object) -> Generator[None]:
        """Set options until the end of a `with` block, for this thread or task only."""
        token = self._overrides.set({**self._overrides.get(), **_check(options)})
        try:
            self._tell(options)
            yield
        finally:
            self._overrides.reset(token)
            self._tell(options)

    def reset(self) -> None:
        """Forget every `update`, and read the environment afresh."""
        self._forget()
        with suppress(ConfigError):  # whoever reads the option is told of a bad value
            self._tell(OPTIONS)
        self._forget()  # what watchers read; the environment may change before somebody else reads it

    def _forget(self) -> None:
        with self._lock:
            self._environment, self._updates = {}, {}

    def watch(self, name: str, function: Callable[[], None]) -> None:
        """Call `function` whenever the option may have changed, in the thread that changed it."""
        self._watchers.append((name, function))

    def is_overridden(self, name: str) -> bool:
        """Return whether an `override` of this thread or task holds the option."""
        return name in self._overrides.get()

    def _tell(self, names: Iterable[str]) -> None:
        for name, function in self._watchers:
            if name in names:
                function()

    def _value(self, option: Option[Any]) -> object:
        for layer in (self._overrides.get(), self._updates, self._environment):
            if option.name in layer:
                return layer[option.name]
        value = self._environment[option.name] = option.from_environment()
        return value

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _UnknownOption(_unknown(name))

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            _refuse_assignment(name, value)
        object.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        return [*OPTIONS, "is_overridden", "override", "reset", "update", "watch"]

    def __repr__(self) -> str:
        return f"config({', '.join(f'{name}={getattr(self, name)!r}' for name in OPTIONS)})"


# --- Messages ------------------------------------------------------------------------------------


class _UnknownOption(ConfigError, AttributeError):
    """An option is read that does not exist: an AttributeError too, so that `hasattr` works."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or the list of known names.

    >>> did_you_mean("pases", ["passes", "trace"])
    "; did you mean 'passes'?"
    """
    import difflib  # only on the way to an error

    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"


def _unknown(name: str) -> str:
    return f"unknown option {name!r}{did_you_mean(name.lower().removeprefix('dsl_'), OPTIONS)}"


def _check(options: Mapping[str, object]) -> dict[str, object]:
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(_unknown(name))
    return {name: OPTIONS[name].check(value, name) for name, value in options.items()}


def _refuse_assignment(name: str, value: object) -> NoReturn:
    if name not in OPTIONS:
        raise ConfigError(_unknown(name))
    raise ConfigError(
        f"options are not assigned to; write config.update({name}={value!r}), "
        f"or config.override({name}={value!r}) in a `with` statement"
    )


# --- The launcher's part of the environment ------------------------------------------------------

_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
)  # fmt: skip
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")


def launched_rank() -> int | None:
    """Return the rank that a launcher of MPI gave this process, or None; MPI is not started for the sake of it."""
    return next((int(os.environ[name]) for name in _RANK if name in os.environ), None)


def launched_local_rank() -> int | None:
    """Return the number of this process among those that a launcher of MPI started on this machine, or None."""
    return next((int(os.environ[name]) for name in _LOCAL_RANK if name in os.environ), None)


def launched_ranks() -> int:
    """Return how many processes the launcher of MPI started, or 1."""
    return next((int(os.environ[name]) for name in _RANKS if name in os.environ), 1)


config = Config()
