"""Attention by handwritten kernels, on platforms that have them, and its derivatives.

Reverse mode runs the gradient kernels. Forward mode, second derivatives and the gradient with
respect to a bias, which is as large as the scores anyway, use the composition.

Tests: tests/nn/test_nn_attention_fused.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.api.derivatives import jvp, vjp
from gpuflow.control.custom.calls import SymbolicZero
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.control.custom.linear_call import linear_call
from gpuflow.core.aval import aval_of
from gpuflow.nn.attention_composed import Settings, composed_attention, very_negative
from gpuflow.ops.contractions import attention as attention_ops
from gpuflow.ops.contractions.precision import Precision
from gpuflow.runtime.device import default_device

# Sums below it count keys; see ops/contractions/attention.py.
_SURELY_COUNTED = -0.9e30

_Extras = Sequence[Any]


def _has_kernels() -> bool:
    """Whether the default platform has these kernels."""
    return default_device().driver.target.on_gpu


def may_fuse(settings: Settings, query: Any, key: Any, bias: Any) -> bool:
    """Whether the default platform's kernels support these operands."""
    if not _has_kernels() or not isinstance(settings.scale, float | int | np.number):
        return False
    bias_aval = None if bias is None else aval_of(bias)
    return attention_ops.may_fuse(aval_of(query), aval_of(key), bias_aval)


def fused_attention(
    settings: Settings, query: Any, key: Any, value: Any, extras: _Extras, with_sums: bool = False
) -> tuple[Any, Any]:
    """Attention by kernels; arguments as for ``composed_attention``."""
    out, sums = _attend(settings, query, key, value, extras)
    if not with_sums:
        return out, None
    sums = jnp.where(sums < _SURELY_COUNTED, very_negative(sums.dtype), sums)
    return out, jnp.transpose(sums, (0, 2, 1)).astype(key.dtype)


def _params(settings: Settings) -> dict[str, Any]:
    return {
        "scale": float(settings.scale),
        "causal": bool(settings.causal),
        "window": settings.window,
        "precision": settings.precision,
    }


def _composed(settings: Settings, operands: Sequence[Any], extras: _Extras) -> Any:
    query, key, value = operands
    return composed_attention(settings, query, key, value, extras)[0]


@partial(custom_jvp, nondiff_argnums=(0,))
def _attend(
    settings: Settings, query: Any, key: Any, value: Any, extras: _Extras
) -> tuple[Any, Any]:
    return attention_ops.attention(query, key, value, extras, **_params(settings))


@partial(_attend.defjvp, symbolic_zeros=True)
def _attend_jvp(settings: Settings, primals: Any, tangents: Any) -> Any:
    *operands, extras = primals
    *d_inputs, (d_bias, *_) = tangents
    out, sums = _attend(settings, *primals)
    d_out = None
    if not all(isinstance(tangent, SymbolicZero) for tangent in d_inputs):
        d_inputs = [_array(tangent) for tangent in d_inputs]
        residuals = (tuple(operands), extras, out, sums)
        d_out = linear_call(
            partial(_tangent, settings), partial(_cotangents, settings), residuals, tuple(d_inputs)
        )
    if not (d_bias is None or isinstance(d_bias, SymbolicZero)):
        bias, *others = extras
        _, by_bias = jvp(
            lambda bias: _composed(settings, operands, (bias, *others)), (bias,), (d_bias,)
        )
        d_out = by_bias if d_out is None else jnp.add(d_out, by_bias)
    if d_out is None:
        d_out = jnp.zeros_like(out)
    return (out, sums), (d_out, jnp.zeros_like(sums))


def _array(tangent: Any) -> Any:
    if isinstance(tangent, SymbolicZero):
        return jnp.zeros(tangent.shape, tangent.dtype)
    return tangent


def _tangent(settings: Settings, residuals: Any, tangents: Any) -> Any:
    """Tangent of the result for tangents of query, key and value."""
    operands, extras, _, _ = residuals
    return jvp(lambda *xs: _composed(settings, xs, extras), operands, tangents)[1]


def _cotangents(settings: Settings, residuals: Any, cotangent: Any) -> Any:
    """The transpose of ``_tangent``."""
    operands, extras, out, sums = residuals
    return _gradients(settings, operands, cotangent, out, sums, extras)


@partial(custom_jvp, nondiff_argnums=(0,))
def _gradients(
    settings: Settings, operands: Any, cotangent: Any, out: Any, sums: Any, extras: _Extras
) -> Any:
    # Gradients of scores are differences from these.
    dots = jnp.einsum(
        "btnh,btnh->bnt",
        cotangent,
        out,
        precision=Precision.HIGHEST,
        preferred_element_type=sums.dtype,
    )
    return attention_ops.attention_gradients(
        [*operands, cotangent, sums, dots, out], extras, **_params(settings)
    )


@partial(_gradients.defjvp, symbolic_zeros=True)
def _gradients_jvp(settings: Settings, primals: Any, tangents: Any) -> Any:
    """Tangents of ``out`` and ``sums`` are ignored: they depend on the operands."""
    operands, cotangent, _, _, (bias, *others) = primals
    d_operands, d_cotangent, _, _, (d_bias, *_) = tangents

    def composed(operands: Any, cotangent: Any, bias: Any) -> Any:
        back = vjp(lambda *xs: _composed(settings, xs, (bias, *others)), *operands)[1]
        return tuple(back(cotangent))

    d_inputs = (tuple(map(_array, d_operands)), _array(d_cotangent))
    if bias is None:
        _, d_outs = jvp(
            lambda operands, cotangent: composed(operands, cotangent, None),
            (tuple(operands), cotangent),
            d_inputs,
        )
    else:
        composed_primals = (tuple(operands), cotangent, bias)
        _, d_outs = jvp(composed, composed_primals, (*d_inputs, _array(d_bias)))
    return _gradients(settings, *primals), d_outs
