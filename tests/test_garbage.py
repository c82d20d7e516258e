"""What is there when a trace begins is left out of collections until it ends, and no longer."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import dsl
from dsl.frontend.garbage import aside


def test_objects_are_set_aside_for_as_long_as_the_outermost_trace() -> None:
    with aside():
        with aside():
            assert gc.get_freeze_count()
        assert gc.get_freeze_count()
    assert not gc.get_freeze_count()
    dsl.jit(lambda x: x + 1)(np.ones(3))
    assert not gc.get_freeze_count()


def test_what_somebody_else_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        with aside():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_child_process_knows_nothing_of_traces_of_other_threads() -> None:
    inside, done = threading.Event(), threading.Event()

    def trace() -> None:
        with aside():
            inside.set()
            done.wait()

    thread = threading.Thread(target=trace)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        os._exit(bool(gc.get_freeze_count()))
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0
    assert not gc.get_freeze_count()
