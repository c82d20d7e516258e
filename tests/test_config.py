"""Options come from the environment, from `update` and from `override`; what is wrong is refused with a remedy."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from dsl.config import OPTIONS, config, did_you_mean
from dsl.errors import ConfigError, DslError

DEBUGGING = Path(__file__).parent.parent / "docs" / "debugging.md"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch):
    for option in OPTIONS.values():
        monkeypatch.delenv(option.env, raising=False)
    config.reset()
    yield
    config.reset()


# --- The table -----------------------------------------------------------------------------------


def test_the_options_and_their_defaults() -> None:
    assert {name: getattr(config, name) for name in OPTIONS} == {
        "logs": frozenset(),
        "dump_ir_to": None,
        "disable_jit": False,
        "backend": "native",
        "verify": "results",
        "unroll_limit": 64,
        "traceback_filtering": "on",
        "bounds_checks": "on",
        "num_threads": None,
        "cpu_devices": 1,
        "device": None,
        "cuda_graphs": "off",
        "cuda_mpi": "off",
        "mpi_timeout": 300,
        "mpi_shared_memory": True,
        "cache_dir": None,
        "cache_size": 1 << 30,
        "debug_nans": False,
        "trace": None,
    }


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_has_a_variable_and_a_sentence(name: str) -> None:
    option = OPTIONS[name]
    assert option.env == f"DSL_{name.upper()}"
    assert option.doc.endswith(".")
    assert option.kind.expected


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_documented_with_an_example(name: str) -> None:
    text = DEBUGGING.read_text(encoding="utf-8")
    option = OPTIONS[name]
    assert f"## `{option.env}`" in text
    assert f"{option.env}=" in text
    section = text.partition(f"## `{option.env}`")[2].partition("\n## ")[0]
    assert option.since in section


def test_options_not_read_yet_say_what_will_read_them() -> None:
    later = {name: option.since for name, option in OPTIONS.items() if option.since}
    assert later == {}


# --- Where a value comes from --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("logs", "trace,passes", {"trace", "passes"}),
        ("logs", " trace , guards,", {"trace", "guards"}),
        ("logs", "", set()),
        ("dump_ir_to", "out", "out"),
        ("dump_ir_to", "", None),
        ("disable_jit", "1", True),
        ("disable_jit", "off", False),
        ("disable_jit", "TRUE", True),
        ("debug_nans", "0", False),
        ("verify", "each", "each"),
        ("unroll_limit", "0", 0),
        ("num_threads", "4", 4),
        ("num_threads", "", None),
        ("traceback_filtering", "off", "off"),
    ],
)
def test_environment(name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS[name].env, text)
    assert getattr(config, name) == value


def test_update_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSL_UNROLL_LIMIT", "3")
    assert config.unroll_limit == 3
    config.update("unroll_limit", 5)
    assert config.unroll_limit == 5


def test_the_environment_is_read_once_until_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.unroll_limit == 64
    monkeypatch.setenv("DSL_UNROLL_LIMIT", "3")
    assert config.unroll_limit == 64
    config.reset()
    assert config.unroll_limit == 3


def test_update_takes_a_pair_or_keywords() -> None:
    config.update("logs", "trace,passes")
    config.update(dump_ir_to=Path("out"), verify="off", disable_jit=True)
    assert config.logs == {"trace", "passes"}
    assert (config.dump_ir_to, config.verify, config.disable_jit) == ("out", "off", True)


def test_logs_takes_an_iterable_and_all() -> None:
    config.update(logs=["trace"])
    assert config.logs == {"trace"}
    config.update(logs="all")
    assert config.logs >= {"trace", "compile", "passes", "guards", "capture", "unroll"}
    assert "all" not in config.logs


def test_override_holds_for_its_block_and_nests() -> None:
    config.update(unroll_limit=1)
    with config.override(unroll_limit=2, verify="each"):
        with config.override(unroll_limit=3):
            assert (config.unroll_limit, config.verify) == (3, "each")
        assert config.unroll_limit == 2
    assert (config.unroll_limit, config.verify) == (1, "results")


def test_override_ends_when_its_block_raises() -> None:
    with pytest.raises(KeyError), config.override(unroll_limit=2):
        raise KeyError
    assert config.unroll_limit == 64


def test_an_override_can_set_a_default_again() -> None:
    config.update(dump_ir_to="out", num_threads=2)
    with config.override(dump_ir_to=None, num_threads=None):
        assert (config.dump_ir_to, config.num_threads) == (None, None)


def test_an_override_is_not_seen_by_other_threads() -> None:
    seen: list[int] = []
    with config.override(unroll_limit=2):
        thread = threading.Thread(target=lambda: seen.append(config.unroll_limit))
        thread.start()
        thread.join()
    assert seen == [64]


def test_overrides_of_tasks_that_take_turns_stay_apart() -> None:
    async def read(limit: int) -> list[int]:
        seen = []
        with config.override(unroll_limit=limit):
            for _ in range(3):
                seen.append(config.unroll_limit)
                await asyncio.sleep(0)
        return seen

    async def both() -> list[list[int]]:
        return await asyncio.gather(read(1), read(2))

    assert asyncio.run(both()) == [[1, 1, 1], [2, 2, 2]]


def test_repr_shows_every_option() -> None:
    with config.override(unroll_limit=7):
        text = repr(config)
    assert text.startswith("config(logs=")
    assert "unroll_limit=7" in text
    assert all(f"{name}=" in text for name in OPTIONS)


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [("log", "logs"), ("dump_ir", "dump_ir_to"), ("nthreads", "num_threads"), ("DSL_LOGS", "logs")],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, near: str) -> None:
    message = f"unknown option {name!r}; did you mean {near!r}?"
    for use in (
        lambda: config.update(name, 1),
        lambda: config.update(**{name: 1}),
        lambda: config.override(**{name: 1}).__enter__(),
        lambda: getattr(config, name),
        lambda: setattr(config, name, 1),
    ):
        with pytest.raises(ConfigError) as caught:
            use()
        assert str(caught.value) == message


def test_an_unknown_name_like_no_other_lists_the_options() -> None:
    with pytest.raises(ConfigError, match=r"'qqq'; there are: logs, dump_ir_to, .*trace$"):
        config.update(qqq=1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("unroll_limit", "many", "expected a whole number, 0 or more"),
        ("unroll_limit", "-1", "expected a whole number, 0 or more"),
        ("num_threads", "0", "expected a whole number, 1 or more"),
        ("verify", "all", "expected 'off', 'results' or 'each'"),
        ("traceback_filtering", "false", "expected 'on' or 'off'"),
        ("disable_jit", "maybe", "expected a switch: 1 or 0, on or off, true or false"),
        ("logs", "trace,pases", "unknown topic 'pases'; did you mean 'passes'?"),
    ],
)
def test_bad_values_name_the_variable_or_the_option(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as caught:
        config.update(name, value)
    assert str(caught.value) == f"{name}={value!r}: {message}"

    monkeypatch.setenv(OPTIONS[name].env, value)
    for _ in range(2):  # every use complains, not just the first
        with pytest.raises(ConfigError) as caught:
            getattr(config, name)
        assert str(caught.value) == f"{OPTIONS[name].env}={value!r}: {message}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unroll_limit", 2.5),
        ("unroll_limit", True),
        ("unroll_limit", None),
        ("num_threads", -2),
        ("disable_jit", 2),
        ("dump_ir_to", 3),
        ("verify", True),
        ("logs", 3),
    ],
)
def test_values_of_the_wrong_type_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=.*: expected "):
        config.update(name, value)


def test_when_one_value_is_bad_none_is_set() -> None:
    with pytest.raises(ConfigError):
        config.update(unroll_limit=2, verify="never")
    assert config.unroll_limit == 64


def test_assignment_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"write config\.update\(verify='each'\)"):
        config.verify = "each"  # type: ignore[assignment,misc]
    assert config.verify == "results"


def test_update_with_a_name_alone_is_refused() -> None:
    with pytest.raises(TypeError, match="a name and a value, or keywords"):
        config.update("logs")  # type: ignore[call-overload]


def test_config_errors_are_value_errors_of_dsl() -> None:
    assert issubclass(ConfigError, DslError)
    assert issubclass(ConfigError, ValueError)


def test_hasattr_works() -> None:
    assert hasattr(config, "logs")
    assert not hasattr(config, "log")
    assert not hasattr(config, "__wrapped__")


def test_did_you_mean() -> None:
    assert did_you_mean("pases", ["passes", "trace"]) == "; did you mean 'passes'?"
    assert did_you_mean("zzz", ["passes", "trace"]) == "; there are: passes, trace"


def test_dsl_config_is_the_object() -> None:
    import dsl

    assert dsl.config is config
