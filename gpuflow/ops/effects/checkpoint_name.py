"""checkpoint_name: name values, so that a checkpoint policy can select them.

Tests: tests/control/test_remat.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, Eqn
from gpuflow.core.lowering import Layout
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData
from gpuflow.core.views import View
from gpuflow.ops.define import define, unary_transpose


def checkpoint_name(x: Any, name: str) -> Any:
    """Name ``x``, for policies such as ``checkpoint_policies.save_only_these_names``.

    Args:
        x: a pytree of arrays.
        name: any string; several values may share one.

    Returns:
        The same pytree.

    Raises:
        TypeError: if ``name`` is not a string.
    """
    check(
        isinstance(name, str),
        lambda: (
            f"[checkpoint_name] the name must be a string; got {name!r}. Fix: checkpoint_name"
            '(x, "name").'
        ),
    )
    return tree.tree_map(lambda leaf: name_p.bind(leaf, name=name), x)


def _shape(aval: ShapedArray, *, name: str) -> ShapedArray:
    del name
    return aval


def _impl(xp: Any, array: Any, *, name: str) -> Any:
    del xp, name
    return array


def _jvp(primals: Any, tangents: Any, *, name: str) -> tuple[Any, Any]:
    return name_p.bind(primals[0], name=name), tangents[0]


def _batch(axis: AxisData, operands: Any, dims: Any, *, name: str) -> tuple[Any, int]:
    del axis
    return name_p.bind(operands[0], name=name), dims[0]


def _view(view: View, out: ShapedArray, *, name: str) -> View:
    del out, name
    return view


def _links(operand: ShapedArray, out: ShapedArray, *, name: str) -> list[tuple[int, int]]:
    del operand, name
    return [(d, d) for d in range(out.ndim)]


def _simplify(eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder) -> list[Atom]:
    """Remove names, which the compiler does not use."""
    del definition, build
    return list(eqn.inputs)


name_p = define(
    "name",
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    transpose=unary_transpose(lambda ct, aval, name: ct),
    batch=_batch,
    lower=Layout(_view, _links),
    simplify=_simplify,
)
