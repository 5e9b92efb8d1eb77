"""``jax.core``: types that libraries name in annotations and checks, and the current trace.

Tests: tests/test_as_jax_names.py, tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from gpuflow.api.programs import ensure_compile_time_eval as ensure_compile_time_eval
from gpuflow.as_jax.internals.api_util import safe_map as safe_map
from gpuflow.as_jax.internals.effects import Effect as Effect
from gpuflow.as_jax.internals.effects import Effects as Effects
from gpuflow.as_jax.internals.effects import no_effects as no_effects
from gpuflow.as_jax.internals.primitives import CallPrimitive as CallPrimitive
from gpuflow.as_jax.internals.primitives import Primitive as Primitive
from gpuflow.as_jax.internals.primitives import call_impl as call_impl
from gpuflow.as_jax.internals.primitives import call_p as call_p
from gpuflow.as_jax.internals.primitives import closed_call_p as closed_call_p
from gpuflow.as_jax.internals.type_tables import pytype_aval_mappings as pytype_aval_mappings
from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.errors import ConcretizationTypeError
from gpuflow.base.errors import InconclusiveDimensionOperation as InconclusiveDimensionOperation
from gpuflow.base.names import public_names
from gpuflow.base.util import safe_zip as safe_zip
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
from gpuflow.core.source_info import DebugInfo as DebugInfo
from gpuflow.core.trace import Trace as Trace
from gpuflow.core.trace import Tracer as Tracer
from gpuflow.core.trace import current_trace as set_current_trace
from gpuflow.core.trace import eval_trace, thread_state

AbstractValue = core_aval.ShapedArray
ParamDict = dict[str, Any]
Value = Any
get_aval = core_aval.aval_of


class _ShapedArrayMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, core_aval.ShapedArray)

    def __call__(
        cls,
        shape: Sequence[int],
        dtype: Any,
        weak_type: bool = False,
        *,
        sharding: Any = None,
        manual_type: Any = None,
        memory_space: Any = None,
    ) -> core_aval.ShapedArray:
        is_split = sharding is not None and bool(sharding.mesh.axis_names)
        if is_split or manual_type is not None:
            raise NotImplementedError(
                "[ShapedArray] a type must not name mesh axes, for gpuflow splits arrays and not "
                "types; got a sharding over a mesh, or manual_type. Fix: leave them out."
            )
        if memory_space not in (None, core_aval.MemorySpace.Device):
            raise NotImplementedError(
                "[ShapedArray] memory_space must be MemorySpace.Device, where arrays are; "
                f"got {memory_space!r}. Fix: leave it out."
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
    invars: Sequence[Atom],
    outvars: Sequence[Var],
    primitive: Any,
    params: dict[str, Any],
    effects: Any = frozenset(),
    source_info: Any = None,
    ctx: Any = None,
) -> JaxprEqn:
    """An equation."""
    del ctx
    traceback = None if source_info is None else source_info.traceback
    return JaxprEqn(primitive, tuple(invars), tuple(outvars), params, traceback, frozenset(effects))


class JaxprEqnContext:
    """The settings under which an equation was made: accepted, and without effect."""

    def __init__(
        self,
        compute_type: str | None = None,
        threefry_partitionable: bool = True,
        xla_metadata: dict[str, Any] | None = None,
    ) -> None:
        self.compute_type = compute_type
        self.threefry_partitionable = threefry_partitionable
        self.xla_metadata = xla_metadata

    @property
    def manager(self) -> AbstractContextManager[None]:
        """A block without effect."""
        return nullcontext()


def gensym(suffix: str = "") -> Callable[[core_aval.ShapedArray], Var]:
    """Return a function that makes a new variable of a type; variables have no names."""
    del suffix
    return Var


def jaxpr_as_fun(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """A function that evaluates a closed jaxpr: it is one itself."""
    return jaxpr


def mapped_aval(size: int, axis: int | None, aval: core_aval.ShapedArray) -> core_aval.ShapedArray:
    """Return the type of an element of a value mapped along ``axis``."""
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
    """The current trace; in the block nothing is traced."""
    before = thread_state.trace
    with set_current_trace(eval_trace):
        yield before


def find_top_trace(values: Any) -> Trace:
    """The current trace."""
    del values
    return thread_state.trace


@contextmanager
def eval_context() -> Iterator[None]:
    """A block in which operations run at once, whatever is being traced around it."""
    with set_current_trace(eval_trace):
        yield


class AxisEnv:
    """The named axes in scope.

    Attributes:
        axis_sizes: the size of each by its name.
    """

    def __init__(self, axis_sizes: Mapping[Any, int]) -> None:
        self.axis_sizes = dict(axis_sizes)

    def axis_size(self, axis_name: Any) -> int:
        """The size of an axis.

        Raises:
            NameError: if it is not in scope.
        """
        if axis_name not in self.axis_sizes:
            raise NameError(
                f"[axis_size] the axis must be in scope; got {axis_name!r}, not one of "
                f"{self.axis_names()}. Fix: vmap with axis_name={axis_name!r}."
            )
        return self.axis_sizes[axis_name]

    def axis_exists(self, axis_name: Any) -> bool:
        """Whether an axis is in scope."""
        return axis_name in self.axis_sizes

    def axis_names(self) -> tuple[Any, ...]:
        """The names, outermost first."""
        return tuple(self.axis_sizes)


class TracingContext:
    """The transformation and the named axes that are current in this thread."""

    @property
    def trace(self) -> Trace:
        """The current trace."""
        return thread_state.trace

    @property
    def axis_env(self) -> AxisEnv:
        """The named axes in scope."""
        return AxisEnv(dict(config.axis_env))

    def set_trace(self, trace: Trace | None) -> None:
        """Make a trace current; None: the one that evaluates."""
        thread_state.trace = eval_trace if trace is None else trace

    def is_top_level(self) -> bool:
        """Whether nothing is traced, and no axis is in scope."""
        return self.trace is eval_trace and not config.axis_env


trace_ctx = TracingContext()


def unsafe_get_axis_names_DO_NOT_USE() -> list[Any]:
    """The named axes in scope, outermost first."""
    return list(trace_ctx.axis_env.axis_sizes)


def get_referent(x: Any) -> Any:
    """The value itself."""
    return x


def physical_aval(aval: core_aval.ShapedArray) -> core_aval.ShapedArray:
    """The aval of the stored data: for keys, uint32 with another dimension."""
    dtype = aval.dtype
    if not isinstance(dtype, core_aval.KeyDType):
        return aval
    return aval.update(shape=(*aval.shape, *dtype.key_shape), dtype=dtypes.uint32)


def is_constant_dim(d: Any) -> bool:
    """Whether a size is a static integer, and not a symbolic one."""
    if isinstance(d, Tracer) and not is_concrete(d):
        return False
    try:
        operator.index(d)
    except (TypeError, ValueError, InconclusiveDimensionOperation):
        return False
    return True


def min_dim(d1: Any, d2: Any) -> Any:
    """The smaller of two sizes.

    Raises:
        InconclusiveDimensionOperation: if symbolic sizes leave open which it is.
    """
    return d1 if d1 <= d2 else d2


def max_dim(d1: Any, d2: Any) -> Any:
    """The larger of two sizes.

    Raises:
        InconclusiveDimensionOperation: if symbolic sizes leave open which it is.
    """
    return d1 if d1 >= d2 else d2


class TraceTag:
    """Tag that distinguishes nested traces of one kind."""


def is_concrete(x: Any) -> bool:
    """Whether ``x`` has concrete values."""
    return not isinstance(x, Tracer) or x.concrete() is not None


def concrete_or_error(force: Callable[[Any], Any] | None, val: Any, context: str = "") -> Any:
    """``force(val)`` of a concrete value.

    Raises:
        ConcretizationTypeError: it is traced.
    """
    if not is_concrete(val):
        raise ConcretizationTypeError(
            f"[concrete_or_error] the value must be known while tracing; got {val!r}. Fix: pass "
            f"it as a static argument. {context}"
        )
    concrete = val.concrete() if isinstance(val, Tracer) else val
    return concrete if force is None else force(concrete)


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
    """Return an object that identifies the enclosing transformations."""
    del convention
    return OpaqueTraceState()


def trace_state_clean() -> bool:
    """Whether nothing is being traced."""
    return thread_state.trace.parent is None


def __dir__() -> list[str]:
    return public_names(globals())
