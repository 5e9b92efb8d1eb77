"""From a traced program to a bound plan: the passes, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.config import config
from gpuflow.compiler.debugging import show
from gpuflow.compiler.fuse import clone_cheap
from gpuflow.compiler.plan import Plan, Template, bind, make_template, template_key
from gpuflow.compiler.program import (
    Pass,
    cse,
    dce,
    hoist_array_literals,
    inline,
    simplify,
)
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr, check_jaxpr

PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify),
    ("cse", cse),
    ("dce", dce),
    ("clone", clone_cheap),
    ("drop cloned", dce),
)

_templates: dict[Any, Template] = {}
_MOST_TEMPLATES = 1024


def compile_plan(
    jaxpr: ClosedJaxpr, donated: Sequence[int] = ()
) -> tuple[Plan, list[Any]]:
    """The bound plan of a program, and values of inputs that were added behind its own.

    Args:
        jaxpr: the program.
        donated: positions of inputs whose memory outputs may take.
    """
    program, values = hoist_array_literals(inline(jaxpr.jaxpr))
    _report("inline", program)
    for name, rewrite in PASSES:
        program = rewrite(program)
        _report(name, program)
    return bind(_template(program), program, [program.invars[k] for k in donated]), values


def _template(program: Jaxpr) -> Template:
    key = template_key(program)
    template = _templates.get(key) if key is not None else None
    if template is None:
        template = make_template(program)
        if key is not None:
            if len(_templates) >= _MOST_TEMPLATES:
                _templates.clear()
            _templates[key] = template
    return template


def _report(name: str, program: Jaxpr) -> None:
    if config.environment.check:
        check_jaxpr(program)
    show(2, f"after {name}", lambda: str(program))
