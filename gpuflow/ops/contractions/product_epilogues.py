"""Matrix products with an epilogue, as GPU libraries support them, and their patterns.

``dot_general_epilogue`` is one call for a product, a bias and an activation, which may store its
operand for the gradient; or for a backward product followed by the derivative of the activation,
with the sums that are the gradient of the bias. Only the compiler inserts it
(compiler/passes/epilogues.py), if the target has such calls.

Tests: tests/targets/cuda/test_gpu_epilogues.py, tests/ops/test_device_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Product
from gpuflow.core.epilogues import Epilogue, aux_type, with_epilogue
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.epilogue_rules import FusedCall, Match, Matcher
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.ops.contractions.products import (
    accumulator_dtype,
    free_dims,
    product_block,
    product_flops,
    product_of_arrays,
    product_shape,
)
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.arithmetic import max as maximum
from gpuflow.ops.elementwise.comparison import gt
from gpuflow.ops.elementwise.select import select_n_p
from gpuflow.ops.layout.axes import reduce_sum
from gpuflow.ops.special.gelu import gelu_share, gelu_slope
from gpuflow.ops.written_out import traced_once

# --- the op --------------------------------------------------------------------------------


def _split(params: dict[str, Any]) -> tuple[Epilogue, dict[str, Any]]:
    """The epilogue, and the params of the product."""
    return params["epilogue"], {k: value for k, value in params.items() if k != "epilogue"}


def _shape(lhs: ShapedArray, rhs: ShapedArray, *others: ShapedArray, **params: Any) -> Any:
    del others
    epilogue, product = _split(params)
    out = product_shape(lhs, rhs, **product)
    row_dims = _row_dims(lhs, product)
    if epilogue.keeps:
        columns = out.shape[row_dims:]
        sizes = int(np.prod(out.shape[:row_dims])), int(np.prod(columns))
        return [out, ShapedArray(*aux_type(epilogue, *sizes, out.dtype))]
    if epilogue.gradient and epilogue.bias:
        return [out, ShapedArray(out.shape[row_dims:], out.dtype)]
    return [out]


def _row_dims(lhs: ShapedArray, params: dict[str, Any]) -> int:
    """The number of dimensions of the result that are rows."""
    (contract, _), (batch, _) = params["dimension_numbers"]
    return len(free_dims(lhs.ndim, contract, batch))


def _impl(xp: Any, lhs: Any, rhs: Any, *others: Any, **params: Any) -> list[Any]:
    epilogue, product = _split(params)
    wide = {**product, "preferred_element_type": accumulator_dtype(lhs.dtype, lhs.dtype)}
    result = product_of_arrays(xp, lhs, rhs, **wide)
    row_dims = _row_dims(ShapedArray(lhs.shape, lhs.dtype), product)
    rows, columns = result.shape[:row_dims], result.shape[row_dims:]
    matrix = result.reshape(int(np.prod(rows)), int(np.prod(columns)))
    if epilogue.gradient:
        out, extra = with_epilogue(xp, epilogue, matrix, aux=others[0])
    else:
        vector = others[0].reshape(-1) if epilogue.bias else None
        out, extra = with_epilogue(xp, epilogue, matrix, vector)
    outs = [out.reshape(result.shape).astype(lhs.dtype)]
    if epilogue.keeps:
        outs.append(extra if epilogue.activation == "relu" else extra.astype(lhs.dtype))
    elif extra is not None:
        outs.append(extra.reshape(columns).astype(lhs.dtype))
    return outs


def _block(ins: Sequence[ShapedArray], outs: Sequence[ShapedArray], params: Any) -> Product:
    epilogue, product = _split(params)
    return product_block(ins[:2], outs[:1], product, epilogue)


def _flops(ins: Sequence[ShapedArray], outs: Sequence[ShapedArray], params: Any) -> int:
    return product_flops(ins[:2], outs[:1], _split(params)[1])


dot_general_epilogue_p = define(
    "dot_general_epilogue",
    shape=_shape,
    impl=_impl,
    lower=Library(flops=_flops, what=_block),
    multiple_results=True,
)


# --- patterns ------------------------------------------------------------------------------

# ``z`` is the result of a product, or its sum with a bias; ``source`` that of the backward product,
# the cotangent of the activation. The gradients are those of gpuflow.nn.


def _zero(z: Any) -> Any:
    return np.zeros((), aval_of(z).dtype)[()]


def _relu_and_gradient(z: Any, source: Any) -> tuple[Any, Any]:
    return maximum(z, _zero(z)), select_n_p.bind(gt(z, _zero(z)), _zero(z), source)


def _gelu_and_gradient(z: Any, source: Any) -> tuple[Any, Any]:
    share = gelu_share(z)
    return mul(z, share), mul(source, gelu_slope(z, share))


def _column_sums(x: Any, *, row_dims: int) -> list[Any]:
    return [reduce_sum(x, tuple(range(row_dims)))]


_BIASES = (lambda z, bias: [add(z, bias)], lambda z, bias: [add(bias, z)])
_FORWARD = {
    "relu": (
        lambda z: [maximum(z, _zero(z))],
        lambda z: [maximum(_zero(z), z)],
    ),
    "gelu": (lambda z: [mul(z, gelu_share(z))],),
}
_WITH_GRADIENT = {"relu": _relu_and_gradient, "gelu": _gelu_and_gradient}
_PLACEHOLDER_SIZE = 128  # any size gives the same equations


def _pattern(function: Callable[..., Any], like: ShapedArray, count: int, **params: Any) -> Jaxpr:
    """The program of a function of ``count`` arrays of the rank and dtype of ``like``."""
    aval = ShapedArray((_PLACEHOLDER_SIZE,) * like.ndim, like.dtype)
    return traced_once(function, (aval,) * count, tuple(params.items())).jaxpr


# --- the rule ------------------------------------------------------------------------------


@record
class _Biased:
    """A product with its bias, if it has one.

    Attributes:
        product, last: the product, and the addition of the bias, else the product.
        operands: operands of both.
        has_bias: whether there is a bias.
        z: the result.
    """

    product: Eqn
    last: Eqn
    operands: tuple[Any, ...]
    has_bias: bool
    z: Var

    def fused(self, build: EqnBuilder, epilogue: Epilogue, out: Var) -> FusedCall:
        """The call that replaces ``out``, inserted where all operands are defined."""
        result = _call(build, self.product, self.operands, epilogue)[0]
        return FusedCall(self.last, build.eqns[-1], self.product, {out: result})


def fuse_epilogue(eqn: Eqn, matcher: Matcher, build: EqnBuilder) -> Sequence[FusedCall]:
    """Calls for a product and its readers: none, one, or a forward and backward pair.

    Args:
        eqn: the product.
        matcher: matches the equations around it.
        build: as for ``simplify`` rules.
    """
    if not _is_matrix_product(eqn):
        return ()
    biased = _biased(eqn, matcher)
    for activation in _FORWARD:
        fused = _forward(biased, activation, matcher, build)
        fused = fused or _with_gradient(biased, activation, matcher, build)
        if fused:
            return fused
    if biased.has_bias and not matcher.is_read_by_kernels(biased.z):
        return (biased.fused(build, Epilogue(bias=True), biased.z),)
    return ()


def _call(
    build: EqnBuilder, product: Eqn, operands: Sequence[Any], epilogue: Epilogue
) -> Sequence[Var]:
    """The outputs of a new call."""
    outs: Sequence[Var] = build.apply(
        dot_general_epilogue_p, *operands, epilogue=epilogue, **product.params
    )
    return outs


def _biased(eqn: Eqn, matcher: Matcher) -> _Biased:
    (product,), row_dims = eqn.outputs, _row_dims(eqn.inputs[0].aval, eqn.params)
    for function in _BIASES:
        match = matcher.match(_pattern(function, product.aval, 2), (product,))
        if match is None or not matcher.are_read_only_by((product,), match.eqns):
            continue
        if match.operands[0] is product:
            continue
        if _is_bias(match.operands[0].aval, product.aval, row_dims):
            operands = (*eqn.inputs, *match.operands)
            return _Biased(eqn, match.eqns[-1], operands, True, match.outs[0])
    return _Biased(eqn, eqn, eqn.inputs, False, product)


def _forward(
    biased: _Biased, activation: str, matcher: Matcher, build: EqnBuilder
) -> Sequence[FusedCall]:
    """A product with an activation that is its only reader."""
    for function in _FORWARD[activation]:
        match = matcher.match(_pattern(function, biased.z.aval, 1), (biased.z,))
        if match is not None and _is_alone(matcher, (biased.z,), match):
            epilogue = Epilogue(activation, biased.has_bias)
            return (biased.fused(build, epilogue, match.outs[0]),)
    return ()


def _with_gradient(
    biased: _Biased, activation: str, matcher: Matcher, build: EqnBuilder
) -> Sequence[FusedCall]:
    """A product with its activation, and the backward product through the activation."""
    pattern = _pattern(_WITH_GRADIENT[activation], biased.z.aval, 2)
    match = matcher.match(pattern, (biased.z,))
    source = None if match is None else matcher.definition(match.operands[0])
    if match is None or source is None or source is biased.product:
        return ()
    if not _is_like(source, biased.product):
        return ()
    if not _is_alone(matcher, (biased.z, *match.operands), match):
        return ()
    epilogue = Epilogue(activation, biased.has_bias, keeps=True)
    forward = biased.fused(build, epilogue, match.outs[0])
    _, aux = forward.call.outputs
    return forward, _gradient(matcher, build, activation, source, aux, match.outs[1])


def _gradient(
    matcher: Matcher, build: EqnBuilder, activation: str, source: Eqn, aux: Var, out: Var
) -> FusedCall:
    """The backward product through an activation, with the sums of its columns."""
    row_dims = _row_dims(source.inputs[0].aval, source.params)
    sums = matcher.match(_pattern(_column_sums, out.aval, 1, row_dims=row_dims), (out,))
    epilogue = Epilogue(activation, bias=sums is not None, gradient=True)
    results = _call(build, source, (*source.inputs, aux), epilogue)
    position = matcher.definition(out)
    assert position is not None
    replaced = (out, *(() if sums is None else sums.outs))
    return FusedCall(position, build.eqns[-1], source, dict(zip(replaced, results, strict=True)))


def _is_matrix_product(eqn: Eqn) -> bool:
    """Whether an equation is one product of float matrices of one dtype."""
    lhs, rhs, out = (atom.aval for atom in (*eqn.inputs, *eqn.outputs))
    _, (batch, _) = eqn.params["dimension_numbers"]
    is_float = not dtypes.is_extended(out.dtype) and dtypes.is_floating(out.dtype)
    return (
        is_float
        and lhs.dtype == rhs.dtype == out.dtype
        and not batch
        and 0 not in (lhs.size, out.size)
    )


def _is_like(source: Eqn, product: Eqn) -> bool:
    """Whether an equation is a matrix product with the rows and columns of another."""
    if source.primitive is not product.primitive or not _is_matrix_product(source):
        return False
    (one,), (other,) = source.outputs, product.outputs
    row_dims = [_row_dims(eqn.inputs[0].aval, eqn.params) for eqn in (source, product)]
    return one.aval.shape == other.aval.shape and row_dims[0] == row_dims[1]


def _is_bias(bias: ShapedArray, product: ShapedArray, row_dims: int) -> bool:
    """Whether an operand has one element for each column."""
    shape = (1,) * row_dims + product.shape[row_dims:]
    return bias.dtype == product.dtype and (1,) * (product.ndim - bias.ndim) + bias.shape == shape


def _is_alone(matcher: Matcher, variables: Sequence[Var], match: Match) -> bool:
    """Whether nothing else reads the variables, and no kernel needs the activation anyway."""
    outs, eqns = match.outs, match.eqns
    inner = [var for eqn in eqns for var in eqn.outputs if var not in outs]
    is_private = matcher.are_read_only_by((*variables, *inner), eqns)
    return is_private and not matcher.is_read_by_kernels(outs[0], eqns)
