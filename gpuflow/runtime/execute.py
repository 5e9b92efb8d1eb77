"""Executables: compiled plans that run on Arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.core.jaxpr import ClosedJaxpr


def executable_of(jaxpr: ClosedJaxpr, donated: tuple[bool, ...]) -> Callable[..., list[Any]]:
    """The executable of a program, made once."""
    del donated

    def run(operands: Sequence[Any]) -> list[Any]:
        return jaxpr(*operands)

    return run
