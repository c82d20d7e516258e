"""Params, constants, sizes, effects; structured control flow has rules of its own in `dsl.autodiff`."""

from __future__ import annotations

from dsl.ir.derivative import Derivative, constant, derive, undifferentiable

derive("identity", Derivative(lambda a, node, gs: gs, lambda a, node, ts: ts))
derive("stop_gradient", constant("that is what it is for"))
for _name in ("param", "const"):
    derive(_name, constant("no inputs"))
derive("dim_size", constant("a size"))
derive("print", constant("no outputs"))
derive("assert", constant("no outputs"))
derive("keep", constant("no outputs"))
for _name in (
    "read_variable",
    "dequeue",
    "dequeue_many",
    "dequeue_up_to",
    "queue_size",
    "recv",
    "restore",
):
    derive(_name, constant("no inputs that are numbers"))
for _name in ("enqueue", "enqueue_many", "close_queue", "send", "save"):
    derive(_name, constant("no outputs"))
derive("program", undifferentiable("it is compiled"))
for _name in ("update_variable", "scatter_variable"):
    derive(_name, constant("what a variable holds is not a function of what is written"))
for _name in (
    "cond",
    "while",
    "scan",
    "recording_while",
    "recording_scan",
    "checkpoint",
    "custom_vjp",
    "custom_jvp",
):
    derive(_name, undifferentiable("its regions are differentiated"))
for _name in ("switch", "merge", "loop_merge", "enter", "exit", "next_iteration", "loop_cond"):
    derive(_name, undifferentiable("flat control flow is raised to structured control flow first"))
