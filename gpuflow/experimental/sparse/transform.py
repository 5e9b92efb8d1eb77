"""Functions of dense arrays as functions of sparse ones: their programs, evaluated with BCOO.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.api.programs import ensure_compile_time_eval, make_jaxpr
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn, Literal
from gpuflow.core.primitive import Primitive
from gpuflow.core.trace import Tracer
from gpuflow.experimental.sparse import layout, products
from gpuflow.experimental.sparse.base import JAXSparse
from gpuflow.experimental.sparse.bcoo import BCOO
from gpuflow.experimental.sparse.bcsr import BCSR
from gpuflow.ops.contractions.dot_general import dot_general_p
from gpuflow.ops.elementwise.arithmetic import add_p, div_p, mul_p, neg_p, sub_p
from gpuflow.ops.indexing.dynamic_slices import dynamic_slice_p
from gpuflow.ops.layout.axes import broadcast_in_dim_p, reduce_sum_p, reshape_p, squeeze_p
from gpuflow.ops.layout.concatenate import concatenate_p
from gpuflow.ops.layout.rev import rev_p
from gpuflow.ops.layout.slicing import slice_p
from gpuflow.ops.layout.transpose import transpose_p
from gpuflow.tree_util import tree_flatten, tree_structure, tree_unflatten

zip = safe_zip


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """Return ``f`` as a function that accepts and returns BCOO arrays too.

    Args:
        f: a function of dense arrays. Elementwise functions of a sparse array that are not 0 at 0,
            and operations without a sparse form, raise an error. Keyword arguments are not traced.
        use_tracer: accepted as in JAX; there is one implementation.
    """
    del use_tracer

    @wraps(f)
    def sparse(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree_flatten(args, is_leaf=_is_sparse)
        leaves = [leaf.to_bcoo() if isinstance(leaf, BCSR) else leaf for leaf in leaves]
        avals = [
            ShapeDtypeStruct(leaf.shape, leaf.dtype) if _is_sparse(leaf) else leaf
            for leaf in leaves
        ]

        def dense(*leaves: Any) -> Any:
            return f(*tree_unflatten(structure, leaves), **kwargs)

        program, out = make_jaxpr(dense, return_shape=True)(*avals)
        return tree_unflatten(tree_structure(out), _evaluated(program, leaves))

    return sparse


def _is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


def _evaluated(program: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    jaxpr = program.jaxpr
    env = dict(zip(jaxpr.constvars, program.consts))
    env.update(zip(jaxpr.invars, operands))

    def read(atom: Any) -> Any:
        return atom.operand if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        values = [read(atom) for atom in eqn.inputs]
        if any(_is_sparse(value) for value in values):
            outs = _of_sparse(eqn, values)
        else:
            outs = eqn.primitive.bind(*values, **eqn.params)
            outs = outs if eqn.primitive.multiple_results else [outs]
        env.update(zip(eqn.outputs, outs))
    return [read(atom) for atom in jaxpr.outvars]


def _of_sparse(eqn: Eqn, values: Sequence[Any]) -> Sequence[Any]:
    primitive = eqn.primitive
    rule = _RULES.get(primitive)
    if rule is not None:
        return [rule(*values, **eqn.params)]
    if primitive.lower.jaxpr is not None:
        return _evaluated(primitive.lower.program(eqn), values)
    sparse = [value for value in values if _is_sparse(value)]
    rest = [value for value in values if not _is_sparse(value)]
    check(
        primitive.lower.is_elementwise
        and len(sparse) == 1
        and all(not isinstance(x, Tracer) and aval_of(x).ndim == 0 for x in rest)
        and _keeps_zero(eqn, values),
        lambda: (
            f"[sparsify] the operation must have a sparse form; got {primitive.name} of "
            f"{', '.join(map(repr, values))}. Fix: sparse.todense."
        ),
        NotImplementedError,
    )
    return [sparse[0].mapped(lambda data: _with_data(eqn, values, data))]


def _with_data(eqn: Eqn, values: Sequence[Any], data: Any) -> Any:
    """An elementwise operation with an array for the sparse operand."""
    operands = [data if _is_sparse(value) else value for value in values]
    return eqn.primitive.bind(*operands, **eqn.params)


def _keeps_zero(eqn: Eqn, values: Sequence[Any]) -> bool:
    """Whether an elementwise function is 0 at 0."""
    with ensure_compile_time_eval():
        zeros = [jnp.zeros((), value.dtype) for value in values if _is_sparse(value)]
        return not np.any(np.asarray(_with_data(eqn, values, zeros[0])))


def _transposed(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    return layout.bcoo_transpose(mat, permutation=permutation)


def _summed(mat: BCOO, *, axes: Sequence[int]) -> Any:
    return mat.sum(axes, dtype=mat.dtype) if axes else mat


def _concatenated(*operands: Any, dimension: int) -> BCOO:
    check(
        all(_is_sparse(x) for x in operands),
        lambda: (
            f"[sparsify] concatenate must have sparse operands alone; got {operands}. Fix: "
            "BCOO.fromdense."
        ),
        NotImplementedError,
    )
    return layout.bcoo_concatenate(operands, dimension=dimension)


def _dynamic_slice(mat: BCOO, *starts: Any, slice_sizes: Sequence[int]) -> BCOO:
    return layout.bcoo_dynamic_slice(mat, starts, slice_sizes)


def _divided(mat: Any, divisor: Any) -> Any:
    if not _is_sparse(mat):
        raise NotImplementedError(
            f"[sparsify] the divisor must be dense; got {divisor!r}. Fix: sparse.todense."
        )
    return mat / divisor


def _multiplied(lhs: Any, rhs: Any) -> Any:
    if _is_sparse(lhs) and not _is_sparse(rhs):
        return lhs * rhs
    return rhs * lhs if not _is_sparse(lhs) else lhs * rhs


def _slices(mat: BCOO, **params: Any) -> BCOO:
    return layout.bcoo_slice(mat, **params)


_RULES: dict[Primitive, Callable[..., Any]] = {
    add_p: operator.add,
    sub_p: operator.sub,
    mul_p: _multiplied,
    div_p: _divided,
    neg_p: operator.neg,
    dot_general_p: products.bcoo_dot_general,
    transpose_p: _transposed,
    reduce_sum_p: _summed,
    reshape_p: layout.bcoo_reshape,
    squeeze_p: layout.bcoo_squeeze,
    slice_p: _slices,
    broadcast_in_dim_p: layout.bcoo_broadcast_in_dim,
    rev_p: layout.bcoo_rev,
    concatenate_p: _concatenated,
    dynamic_slice_p: _dynamic_slice,
}
