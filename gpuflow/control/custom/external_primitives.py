"""User-defined primitives: an op that is a function of arrays, with custom rules.

See docs/design/0036-primitives-from-outside.md.

Tests: tests/control/test_external_primitives.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.recent import Recent
from gpuflow.base.util import params_key
from gpuflow.control.programs import as_array
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.effects import is_observable
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import Primitive, make_primitive
from gpuflow.core.rules import AxisData, is_undefined
from gpuflow.core.staging import trace_closed
from gpuflow.core.trace import Tracer
from gpuflow.transforms.batching import batch_flat
from gpuflow.transforms.jvp import jvp_flat
from gpuflow.transforms.transpose import backward_pass

_MAX_PROGRAMS = 256  # cached programs of one primitive


class ProgramsByType:
    """Cached traces of a function ``(*arrays, **params) -> arrays``, by types and params.

    Args:
        name: name of the primitive, for messages.
        function: the function to trace.
    """

    def __init__(self, name: str, function: Callable[..., Sequence[Any]]) -> None:
        self._name, self._function = name, function
        self._programs: Recent[Any, ClosedJaxpr] = Recent(_MAX_PROGRAMS)

    def __call__(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> ClosedJaxpr:
        """The program for operands of these types.

        Raises:
            TypeError: if the function captures traced values, or has effects.
        """
        key = (tuple(avals), params_key(params), config.trace_context())
        try:
            program = self._programs.get(key)
        except TypeError:  # params without a hash
            return self._trace(avals, params)
        if program is None:
            program = self._trace(avals, params)
            self._programs.put(key, program)
        return program

    def _trace(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> ClosedJaxpr:
        program = trace_closed(partial(self._function, **params), avals)
        name = self._name
        check(
            not any(isinstance(value, Tracer) for value in program.consts),
            lambda: (
                f"[{name}] the function of a primitive must use traced values that are operands "
                "only; got one that it closes over. Fix: pass it to bind."
            ),
            TypeError,
        )
        check(
            not is_observable(program.effects),
            lambda: (
                f"[{name}] the function of a primitive must have no effects; got "
                f"{set(program.effects)}. Fix: let them happen outside of the primitive."
            ),
            TypeError,
        )
        return program


def define_primitive(
    name: str,
    fun: Callable[..., Any],
    *,
    result: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    transpose: Callable[..., Any] | None = None,
    batch: Callable[..., Any] | None = None,
    multiple_results: bool = False,
) -> Primitive:
    """Define an op: an equation of jaxprs that transformations treat by your rules.

    If you leave a rule out, it is derived from the operations of ``fun``. Compiled, the op is
    ``fun``, whose operations are fused into the surrounding kernels.

    Args:
        name: the name that jaxprs print.
        fun: ``(*arrays, **params) -> array``, the computation of the op, without side effects.
        result: ``(*avals, **params) -> aval``, the type of the result; by default ``fun`` is traced
            for it. It may raise for operands that the op does not take.
        jvp: ``(primals, tangents, **params) -> (out, tangent)``; tangents may be ``Zero``.
        transpose: ``(cotangent, *operands, **params) -> cotangents``. Operands to be transposed are
            ``UndefinedPrimal``; the cotangents of others are None.
        batch: ``(axis, operands, dims, **params) -> (out, dim)``. ``axis`` has a size and a name;
            ``dims`` has the batch axis of each operand, or None.
        multiple_results: whether ``fun`` returns a sequence; all rules then take and return
            sequences.

    Returns:
        The primitive, with ``bind(*arrays, **params)``. Programs are cached only if params are
        hashable.
    """

    def flat(*operands: Any, **params: Any) -> Sequence[Any]:
        outs = fun(*operands, **params)
        return outs if multiple_results else [outs]

    programs = ProgramsByType(name, flat)

    def one_or_all(outs: Sequence[Any]) -> Any:
        return outs if multiple_results else outs[0]

    def traced_result(*avals: ShapedArray, **params: Any) -> Any:
        return one_or_all(programs(avals, params).out_avals)

    def traced_jvp(primals: Sequence[Any], tangents: Sequence[Any], /, **params: Any) -> Any:
        outs, out_tangents = jvp_flat(partial(flat, **params), primals, tangents)
        return one_or_all(outs), one_or_all(out_tangents)

    def traced_transpose(cotangent: Any, /, *operands: Any, **params: Any) -> list[Any]:
        avals = [_type_of(operand) for operand in operands]
        program = programs(avals, params)
        cotangents = cotangent if multiple_results else [cotangent]
        return backward_pass(program.jaxpr, program.consts, operands, cotangents)

    def traced_batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], /, **params: Any
    ) -> Any:
        outs, out_dims = batch_flat(partial(flat, **params), axis, operands, dims)
        return one_or_all(outs), one_or_all(out_dims)

    return make_primitive(
        name,
        shape=result or traced_result,
        execute=execute_function(fun),
        jvp=jvp or traced_jvp,
        transpose=transpose or traced_transpose,
        batch=batch or traced_batch,
        lower=Inline(programs, whole=True, by_rule=True),
        multiple_results=multiple_results,
    )


def execute_function(fun: Callable[..., Any]) -> Callable[..., Any]:
    """An ``execute`` rule that calls the function, whose operations run immediately."""

    def execute(operands: Sequence[Any], params: dict[str, Any]) -> Any:
        return fun(*[as_array(operand) for operand in operands], **params)

    return execute


def _type_of(operand: Any) -> ShapedArray:
    return operand.aval if is_undefined(operand) else aval_of(operand)
