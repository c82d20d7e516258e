"""Options and fixtures shared by all tests."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless", action="store_true", help="rewrite golden files with what the tests got"
    )
    parser.addoption(
        "--device",
        help="run compiled functions there: cuda:0, or cuda-emulator:0 (see docs/cuda.md)",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("DSL_VERIFY", "each")  # users' graphs are verified at the end alone
    device = config.getoption("--device")
    if device:  # in the environment, so that it holds in the processes that tests start as well
        os.environ["DSL_DEVICE"] = device if ":" in device else f"{device}:0"


@pytest.fixture(scope="session")
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten instead of compared."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture(scope="session")
def gpu_name(request: pytest.FixtureRequest) -> str:
    """The device that tests of GPUs run on: the emulator, or what `--device` names."""
    return str(request.config.getoption("--device") or "cuda-emulator:0")
