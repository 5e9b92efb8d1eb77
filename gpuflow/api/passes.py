"""The two passes of reverse mode as two functions, each compiled once.

Tests: tests/transforms/test_passes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.api.derivatives import _argnums, vjp
from gpuflow.api.programs import jit
from gpuflow.base.arguments import as_argnums
from gpuflow.base.util import safe_zip
from gpuflow.control.jit_options import check_callable
from gpuflow.core.argument_kinds import explained


@explained
def fwd_and_bwd(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool = False,
    jitted: bool = True,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the forward and the backward pass of ``fun`` as two functions.

    Args:
        fun: a function of arrays or trees.
        argnums: the positional arguments to differentiate; a tuple returns a tuple of cotangents.
        has_aux: whether ``fun`` returns ``(out, aux)``; aux is not differentiated.
        jitted: whether to compile both functions.

    Returns:
        ``fwd(*args, **kwargs) -> (out, residuals)``, followed by aux with ``has_aux``; and
        ``bwd(residuals, cotangent) -> cotangents``.

    Example:
        >>> fwd, bwd = gf.fwd_and_bwd(lambda x: x**3, argnums=0)
        >>> y, residuals = fwd(2.0)
        >>> y, bwd(residuals, 1.0)
        (Array(8., dtype=float32, weak_type=True), Array(12., dtype=float32, weak_type=True))
    """
    check_callable(fun, "fwd_and_bwd")
    named = as_argnums("fwd_and_bwd", "argnums", argnums)

    def fwd(*args: Any, **kwargs: Any) -> Any:
        positions = _argnums(named, len(args), "fwd_and_bwd")

        def selected(*values: Any) -> Any:
            full = list(args)
            for position, value in safe_zip(positions, values):
                full[position] = value
            return fun(*full, **kwargs)

        return vjp(selected, *[args[position] for position in positions], has_aux=has_aux)

    def bwd(residuals: Any, cotangent: Any) -> Any:
        cotangents = residuals(cotangent)
        return cotangents if isinstance(named, tuple) else cotangents[0]

    return (jit(fwd), jit(bwd)) if jitted else (fwd, bwd)
