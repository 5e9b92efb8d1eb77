"""``jax.core``: types that libraries name in annotations and checks, and what is current."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpuflow.api.programs import ensure_compile_time_eval as ensure_compile_time_eval
from gpuflow.as_jax.internals.primitives import Primitive as Primitive
from gpuflow.as_jax.internals.type_tables import pytype_aval_mappings as pytype_aval_mappings
from gpuflow.base import dtypes
from gpuflow.base.errors import ConcretizationTypeError
from gpuflow.base.names import public_names, publish
from gpuflow.core import aval as core_aval
from gpuflow.core.jaxpr import Atom as Atom
from gpuflow.core.jaxpr import ClosedJaxpr as ClosedJaxpr
from gpuflow.core.jaxpr import DropVar as DropVar
from gpuflow.core.jaxpr import Eqn as JaxprEqn
from gpuflow.core.jaxpr import Jaxpr as Jaxpr
from gpuflow.core.jaxpr import JaxprTypeError as JaxprTypeError
from gpuflow.core.jaxpr import Literal as Literal
from gpuflow.core.jaxpr import Var as Var
from gpuflow.core.jaxpr import check_jaxpr as check_jaxpr
from gpuflow.core.jaxpr import evaluate, subjaxprs  # noqa: F401
from gpuflow.core.trace import Trace as Trace
from gpuflow.core.trace import Tracer as Tracer
from gpuflow.core.trace import current_trace as set_current_trace
from gpuflow.core.trace import eval_trace, thread_state

AbstractValue = core_aval.ShapedArray
get_aval = core_aval.aval_of


class _ShapedArrayMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, core_aval.ShapedArray)

    def __call__(
        cls, shape: Sequence[int], dtype: Any, weak_type: bool = False, *,
        sharding: Any = None, manual_type: Any = None,
    ) -> core_aval.ShapedArray:  # fmt: skip
        if sharding is not None or manual_type is not None:
            raise NotImplementedError(
                "[ShapedArray] an array must lie on one device; got a sharding or manual_type. "
                "Fix: leave them out."
            )
        return core_aval.ShapedArray(tuple(shape), dtype, weak_type)


class ShapedArray(metaclass=_ShapedArrayMeta):
    """gpuflow's own aval, made with JAX's signature."""


def eval_jaxpr(
    jaxpr: Jaxpr, consts: Sequence[Any], *args: Any, propagate_source_info: bool = True
) -> list[Any]:
    """The outputs of a jaxpr; lines of source are always those of its equations."""
    del propagate_source_info
    return evaluate(jaxpr, consts, args)


def jaxprs_in_params(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The jaxprs among params, alone or in tuples."""
    for value in params.values():
        for item in value if type(value) is tuple else (value,):
            if isinstance(item, Jaxpr | ClosedJaxpr):
                yield item.jaxpr if isinstance(item, ClosedJaxpr) else item


def new_jaxpr_eqn(
    invars: Sequence[Atom], outvars: Sequence[Var], primitive: Any, params: dict[str, Any],
    effects: Any = frozenset(), source_info: Any = None, ctx: Any = None,
) -> JaxprEqn:  # fmt: skip
    """An equation."""
    del ctx
    return JaxprEqn(
        primitive, tuple(invars), tuple(outvars), params, source_info, frozenset(effects)
    )


def mapped_aval(size: int, axis: int | None, aval: core_aval.ShapedArray) -> core_aval.ShapedArray:
    """The type of an element of what is mapped along ``axis``."""
    del size
    if axis is None:
        return aval
    return aval.update(shape=aval.shape[:axis] + aval.shape[axis + 1 :])


def unmapped_aval(
    size: int, axis: int | None, aval: core_aval.ShapedArray, explicit_mesh_axis: Any = None
) -> core_aval.ShapedArray:
    """The type of ``size`` values along a new ``axis``."""
    del explicit_mesh_axis
    if axis is None:
        return aval
    return aval.update(shape=(*aval.shape[:axis], size, *aval.shape[axis:]))


def primal_dtype_to_tangent_dtype(dtype: Any) -> Any:
    """The dtype of derivatives of values of a dtype."""
    return dtypes.tangent_dtype(dtype)


@contextmanager
def take_current_trace() -> Iterator[Trace]:
    """The current trace; inside of the block nothing is traced."""
    before = thread_state.trace
    with set_current_trace(eval_trace):
        yield before


def find_top_trace(values: Any) -> Trace:
    """The current trace."""
    del values
    return thread_state.trace


class TraceTag:
    """What tells nested traces of one kind apart."""


def is_concrete(x: Any) -> bool:
    """Whether the values of ``x`` are known now."""
    return not isinstance(x, Tracer) or x.concrete() is not None


def concrete_or_error(force: Callable[[Any], Any] | None, val: Any, context: str = "") -> Any:
    """``force(val)``, of a value that is known now.

    Raises:
        ConcretizationTypeError: it is traced.
    """
    if not is_concrete(val):
        raise ConcretizationTypeError(
            f"[concrete_or_error] the value must be known while tracing; got {val!r}. Fix: pass "
            f"it as a static argument. {context}"
        )
    known = val.concrete() if isinstance(val, Tracer) else val
    return known if force is None else force(known)


def valid_jaxtype(x: Any) -> bool:
    """Whether ``x`` is an array or a number."""
    return core_aval.is_value(x)


class OpaqueTraceState:
    """Equal while the same transformation is current."""

    def __init__(self) -> None:
        self._trace = thread_state.trace

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueTraceState) and self._trace is other._trace

    def __hash__(self) -> int:
        return id(self._trace)


def get_opaque_trace_state(convention: str = "") -> OpaqueTraceState:
    """What tells whether two moments are inside of the same transformations."""
    del convention
    return OpaqueTraceState()


def trace_state_clean() -> bool:
    """Whether nothing is being traced."""
    return thread_state.trace.parent is None


publish(globals(), "jax.core", public_names(globals()))
