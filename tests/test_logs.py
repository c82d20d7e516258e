"""Log lines appear for the topics asked for, once, on stderr."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys

import pytest

from dsl import logs
from dsl.config import config
from dsl.errors import ConfigError
from dsl.logs import TOPICS, enabled, help_text, log, show_help_if_asked


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DSL_LOGS", raising=False)
    config.reset()
    logs._show_help.cache_clear()
    yield
    config.reset()


def stderr_of(code: str, **env: str) -> str:
    """Run Python code in a new process and return what it wrote to stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DSL_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | env, capture_output=True, text=True, timeout=60
    )
    return done.stderr


def test_nothing_is_written_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    log("passes", "cse: %d nodes", 9)
    assert capsys.readouterr() == ("", "")


def test_a_topic_asked_for_is_written_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(logs="passes"):
        log("passes", "cse: %d nodes -> %d", 12, 9)
        log("trace", "not asked for")
    assert capsys.readouterr() == ("", "[dsl.passes] cse: 12 nodes -> 9\n")


def test_all_means_every_topic(capsys: pytest.CaptureFixture[str]) -> None:
    config.update("logs", "all")
    for topic in TOPICS:
        log(topic, "line")
    assert capsys.readouterr().err.splitlines() == [f"[dsl.{topic}] line" for topic in TOPICS]


def test_the_environment_variable_names_topics(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSL_LOGS", "trace, guards")
    log("guards", "argument 'x': rank 1, compiled for 2")
    assert capsys.readouterr().err == "[dsl.guards] argument 'x': rank 1, compiled for 2\n"


def test_enabled_tells_whether_a_message_is_worth_making() -> None:
    with config.override(logs="capture"):
        assert enabled("capture")
        assert not enabled("trace")


def test_a_line_is_written_once_even_when_the_root_logger_has_a_handler() -> None:
    code = "import logging; logging.basicConfig(); from dsl.logs import log\n"
    code += "log('trace', 'first'); log('trace', 'second')"
    assert stderr_of(code, DSL_LOGS="trace") == "[dsl.trace] first\n[dsl.trace] second\n"


def test_a_handler_of_the_user_gets_the_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dsl").addHandler(handler)
    try:
        with config.override(logs="unroll"):
            log("unroll", "loop of %d", 3)
    finally:
        logging.getLogger("dsl").removeHandler(handler)
    assert seen == ["loop of 3"]
    assert capsys.readouterr().err == "[dsl.unroll] loop of 3\n"


def test_an_unknown_topic_in_a_call_is_refused_even_when_nothing_is_logged() -> None:
    with pytest.raises(ConfigError, match=re.escape("topic 'pases'; did you mean 'passes'?")):
        log("pases", "message")


def test_an_unknown_topic_in_the_environment_is_refused_at_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSL_LOGS", "trace,gards")
    show_help_if_asked()  # what `import dsl` does: no error yet
    with pytest.raises(ConfigError) as caught:
        log("trace", "message")
    assert str(caught.value) == (
        "DSL_LOGS='trace,gards': unknown topic 'gards'; did you mean 'guards'?"
    )


def test_help_lists_every_topic_with_its_sentence() -> None:
    text = help_text()
    assert text.startswith("DSL_LOGS takes these topics")
    for topic, doc in TOPICS.items():
        assert re.search(rf"^  {topic} +{re.escape(doc)}$", text, re.MULTILINE)


def test_help_is_shown_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSL_LOGS", "help")
    show_help_if_asked()
    show_help_if_asked()
    log("trace", "message")
    assert capsys.readouterr() == ("", help_text() + "\n")


def test_help_asked_for_in_code_is_shown_at_the_first_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config.update(logs="help")
    log("trace", "message")
    log("trace", "message")
    assert capsys.readouterr().err == help_text() + "\n"


def test_help_is_not_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    show_help_if_asked()
    assert capsys.readouterr().err == ""


def test_help_can_be_had_together_with_topics(capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(logs="help,trace"):
        log("trace", "message")
        log("passes", "not asked for")
    assert capsys.readouterr().err == f"[dsl.trace] message\n{help_text()}\n"


def test_importing_dsl_shows_the_help() -> None:
    assert stderr_of("import dsl", DSL_LOGS="help") == help_text() + "\n"
    assert stderr_of("import dsl", DSL_LOGS="trace") == ""


def test_the_logging_module_is_not_loaded_for_topics_nobody_asked_for() -> None:
    code = "import sys; from dsl.logs import log; before = 'logging' in sys.modules\n"
    code += "log('trace', 'x'); assert before or 'logging' not in sys.modules"
    assert stderr_of(code) == ""
