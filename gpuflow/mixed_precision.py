"""Mixed precision: dtypes of parameters, computations and results, and loss scaling.

See docs/mixed_precision.md. Floats are cast or scaled; integers, keys and leaves that are not
arrays are unchanged.

Tests: tests/test_mixed_precision.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.numpy import creation, logic, reductions, ufuncs
from gpuflow.tree_util import register_dataclass

_Tree = TypeVar("_Tree")
_NAMES = {
    "float32": ("f32", "full"),
    "float64": ("f64",),
    "float16": ("f16",),
    "bfloat16": ("bf16",),
}
_DTYPES = {short: name for name, shorts in _NAMES.items() for short in (name, *shorts)}
_FIELDS = {"p": "param_dtype", "c": "compute_dtype", "o": "output_dtype"}
_LONG_KEYS = {"params": "p", "compute": "c", "output": "o"}


def _is_float(leaf: Any) -> bool:
    if not is_value(leaf) or not hasattr(leaf, "dtype") or dtypes.is_extended(leaf.dtype):
        return False
    return dtypes.is_inexact(leaf.dtype) and np.dtype(leaf.dtype).kind != "c"


def _cast(values: _Tree, dtype: DTypeLike) -> _Tree:
    def cast(leaf: Any) -> Any:
        return creation.astype(creation.asarray(leaf), dtype) if _is_float(leaf) else leaf

    return tree.tree_map(cast, values)


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of a model: of its parameters, its computation and its results.

    Args:
        param_dtype: dtype of parameters and of their updates.
        compute_dtype: dtype of the computation of a step.
        output_dtype: dtype of the results.

    Example:
        >>> import gpuflow.numpy as jnp
        >>> policy = Policy(jnp.float32, jnp.bfloat16, jnp.float32)
        >>> policy.cast_to_compute({"w": jnp.ones(3), "step": 1})["w"].dtype.name
        'bfloat16'
    """

    param_dtype: DTypeLike
    compute_dtype: DTypeLike
    output_dtype: DTypeLike

    def cast_to_param(self, values: _Tree) -> _Tree:
        """Cast the floats of a pytree to the dtype of parameters.

        Args:
            values: a pytree; leaves that are not real floats are unchanged.
        """
        return _cast(values, self.param_dtype)

    def cast_to_compute(self, values: _Tree) -> _Tree:
        """Cast the floats of a pytree to the dtype of computations.

        Args:
            values: a pytree; leaves that are not real floats are unchanged.
        """
        return _cast(values, self.compute_dtype)

    def cast_to_output(self, values: _Tree) -> _Tree:
        """Cast the floats of a pytree to the dtype of results.

        Args:
            values: a pytree; leaves that are not real floats are unchanged.
        """
        return _cast(values, self.output_dtype)

    def with_output_dtype(self, output_dtype: DTypeLike) -> Policy:
        """Return the policy with another dtype for results."""
        return dataclasses.replace(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        values = [np.dtype(getattr(self, name)).name for name in _FIELDS.values()]
        shorts = [_NAMES[value][0] if value in _NAMES else value for value in values]
        return ",".join(f"{key}={short}" for key, short in zip(_FIELDS, shorts, strict=True))


@explained
def get_policy(policy_name: str) -> Policy:
    """Parse a policy such as ``params=float32,compute=bfloat16,output=float32``.

    Args:
        policy_name: components ``p=``, ``c=`` and ``o=`` (or ``params=``, ``compute=``,
            ``output=``), each with ``f32``, ``bf16``, ``f16``, ``f64``, their long names or
            ``full``; or a single dtype for all three. By default parameters are float32,
            computations have the dtype of parameters, and results that of computations.

    Returns:
        The policy.

    Raises:
        ValueError: if a component or dtype is unknown, or a component is repeated.

    Example:
        >>> str(get_policy("c=bf16,o=f32"))
        'p=f32,c=bf16,o=f32'
    """
    if "=" not in policy_name:
        return Policy(*[_parse(policy_name)] * 3)
    components = dict.fromkeys(_FIELDS)
    for item in policy_name.split(","):
        key, _, value = item.strip().partition("=")
        component = _LONG_KEYS.get(key, key)
        check(
            component in components,
            lambda key=key: (
                f"[get_policy] parts must be params, compute or output; got {key!r}. "
                "Fix: get_policy('p=f32,c=bf16,o=f32')."
            ),
            ValueError,
        )
        check(
            components[component] is None,
            lambda component=component: (
                f"[get_policy] each part must be given once; got {component!r} twice in "
                f"{policy_name!r}. Fix: get_policy('p=f32,c=bf16,o=f32')."
            ),
            ValueError,
        )
        components[component] = _parse(value)
    params = components["p"] or _parse("f32")
    compute = components["c"] or params
    return Policy(params, compute, components["o"] or compute)


def _parse(text: str) -> np.dtype:
    check(
        text in _DTYPES,
        lambda: (
            f"[get_policy] dtypes must be one of {', '.join(_DTYPES)}; got {text!r}. "
            "Fix: get_policy('p=f32,c=bf16,o=f32')."
        ),
        ValueError,
    )
    return dtypes.canonicalize(_DTYPES[text])


def _multiplied(values: _Tree, factor: ArrayLike) -> _Tree:
    return tree.tree_map(lambda leaf: leaf * factor if _scales(leaf) else leaf, values)


def _zero() -> Any:
    return np.zeros((), np.int32)


def _scales(leaf: Any) -> bool:
    return type(leaf) is float or _is_float(leaf)


@dataclasses.dataclass(frozen=True)
class NoOpLossScale:
    """No loss scaling, for steps with an optional loss scale."""

    @property
    def loss_scale(self) -> int:
        """The loss scale: 1."""
        return 1

    def scale(self, values: _Tree) -> _Tree:
        """Return the tree unchanged."""
        return values

    def unscale(self, values: _Tree) -> _Tree:
        """Return the tree unchanged."""
        return values

    def adjust(self, grads_finite: ArrayLike) -> NoOpLossScale:
        """Return the object unchanged."""
        del grads_finite
        return self


register_dataclass(NoOpLossScale, (), ())


@register_dataclass
@dataclasses.dataclass(frozen=True)
class StaticLossScale:
    """Loss scaling by a constant factor.

    Args:
        loss_scale: the factor, a float scalar.
    """

    loss_scale: float | Array

    def scale(self, values: _Tree) -> _Tree:
        """Multiply the floats of a pytree by the factor."""
        return _multiplied(values, self.loss_scale)

    def unscale(self, values: _Tree) -> _Tree:
        """Divide the floats of a pytree by the factor."""
        return _multiplied(values, 1 / self.loss_scale)

    def adjust(self, grads_finite: ArrayLike) -> StaticLossScale:
        """Return the object unchanged."""
        del grads_finite
        return self


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicLossScale:
    """Loss scaling by the largest factor with which gradients are expected to be finite.

    It is a pytree of arrays: a jitted step takes it and returns the next one, from ``adjust``.

    Args:
        loss_scale: the factor, a float scalar; 2**15 is usual for float16.
        counter: i32[], number of consecutive steps with finite gradients.
        period: number of finite steps after which the factor grows.
        factor: growth factor; the loss scale is divided by it if gradients are not finite.
        min_loss_scale: a float scalar, lower bound of the loss scale.

    Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2; the interface
        is that of jmp.

    Example:
        >>> import gpuflow.numpy as jnp
        >>> scale = DynamicLossScale(jnp.float32(8.0), period=1)
        >>> [float(scale.adjust(finite).loss_scale) for finite in (True, False)]
        [16.0, 4.0]
    """

    loss_scale: float | Array
    counter: Array = dataclasses.field(default_factory=_zero)
    period: int = dataclasses.field(default=2000, metadata={"static": True})
    factor: float = dataclasses.field(default=2, metadata={"static": True})
    min_loss_scale: float | Array = 1.0

    def scale(self, values: _Tree) -> _Tree:
        """Multiply the floats of a pytree, a loss before differentiation, by the factor."""
        return _multiplied(values, self.loss_scale)

    def unscale(self, values: _Tree) -> _Tree:
        """Divide the floats of a pytree, the gradients, by the factor.

        float16 gradients become float32 if the factor is float32, so that small ones are kept.
        """
        return _multiplied(values, 1 / self.loss_scale)

    def adjust(self, grads_finite: ArrayLike) -> DynamicLossScale:
        """Return the loss scale of the next step.

        Args:
            grads_finite: bool[], whether all gradients of this step were finite.

        Returns:
            A scale with a larger factor after ``period`` consecutive finite steps, or a smaller one
            if gradients are not finite.
        """
        finite = creation.asarray(grads_finite)
        scale = creation.asarray(self.loss_scale)
        grown = scale * self.factor
        is_due = (self.counter == self.period - 1) & logic.isfinite(grown)
        smaller = ufuncs.maximum(creation.asarray(self.min_loss_scale), scale / self.factor)
        new = logic.where(finite, logic.where(is_due, grown, scale), smaller)
        counter = logic.where(finite, (creation.asarray(self.counter) + 1) % self.period, 0)
        return dataclasses.replace(
            self,
            loss_scale=creation.astype(new, scale.dtype),
            counter=creation.astype(counter, np.int32),
        )


@explained
def all_finite(values: Any) -> Array:
    """Return whether all elements of a pytree are finite.

    Args:
        values: a pytree of arrays of any dtype; integers and empty trees are finite.

    Returns:
        bool[].

    Example:
        >>> import gpuflow.numpy as jnp
        >>> bool(all_finite({"w": jnp.ones(3), "b": jnp.asarray([1.0, jnp.nan])}))
        False
    """
    finite = creation.asarray(True)
    for leaf in tree.leaves(values):
        finite = finite & reductions.all(logic.isfinite(leaf))
    return finite


@explained
def select_tree(pred: ArrayLike, a: _Tree, b: _Tree) -> _Tree:
    """Select one of two pytrees: the updated state if gradients are finite, else the old one.

    Args:
        pred: bool[].
        a, b: pytrees of one structure, with leaves of the same shapes and dtypes.

    Returns:
        ``a`` if ``pred`` is True, else ``b``.

    Raises:
        TypeError: if ``pred`` is not a bool scalar.

    Example:
        >>> import gpuflow.numpy as jnp
        >>> select_tree(jnp.asarray(False), {"w": jnp.ones(2)}, {"w": jnp.zeros(2)})
        {'w': Array([0., 0.], dtype=float32)}
    """
    aval = aval_of(pred)
    check(
        aval.shape == () and aval.dtype == np.bool_,
        lambda: f"[select_tree] pred must be bool[]; got {aval}. Fix: all_finite(grads).",
    )
    return tree.tree_map(lambda x, y: logic.where(pred, x, y), a, b)


publish(globals(), "mixed_precision", public_names(globals(), __name__))
