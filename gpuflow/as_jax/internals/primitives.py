"""``jax.extend.core.Primitive``: an external primitive, defined as in JAX.

It is the record of every op (core/primitive.py), with rules that look into tables that may be
filled later. See docs/design/0036-primitives-from-outside.md.

Tests: tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

from gpuflow.base.util import safe_zip
from gpuflow.control.custom.external_primitives import ProgramsByType, execute_function
from gpuflow.core import primitive as core_primitive
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Inline
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.core.trace import current_trace
from gpuflow.runtime.device import default_backend


class _AnyPrimitive(type):
    def __instancecheck__(cls, instance: object) -> bool:
        if cls is not Primitive:  # a class of a library
            return type.__instancecheck__(cls, instance)
        return isinstance(instance, core_primitive.Primitive)


class Primitive(core_primitive.Primitive, metaclass=_AnyPrimitive):
    """A primitive as libraries of JAX's world make it; every primitive of gpuflow counts as one.

    Args:
        name: as printed in jaxprs.
    """

    def __init__(self, name: str) -> None:
        programs = ProgramsByType(name, self._lowered)
        super().__init__(
            name,
            shape=self._shape,
            execute=self._execute,
            derivatives=core_primitive.Derivatives(jvp=self._jvp, transpose=self._transpose),
            batch=self._batch,
            lower=Inline(programs, whole=True, by_rule=True),
        )
        # Classes of libraries may have these as attributes and methods of their own.
        for inherited in ("impl", "multiple_results"):
            del self.__dict__[inherited]

    # ``(*avals, **params) -> (aval, effects)``
    abstract_eval: Callable[..., Any] | None = None

    # Unlike the record it is mutable, as ``primitive.multiple_results = True``.
    __setattr__ = object.__setattr__

    def def_impl(self, impl: Callable[..., Any]) -> Callable[..., Any]:
        """Set the eager implementation, ``(*arrays, **params) -> out``."""
        self.impl = impl
        return impl

    def def_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """``(*avals, **params) -> aval``, the type of the result."""
        self.abstract_eval = lambda *avals, **params: (rule(*avals, **params), frozenset())
        return rule

    def def_effectful_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """``(*avals, **params) -> (aval, effects)``; there must be no effects."""
        self.abstract_eval = rule
        return rule

    # --- rules, as gpuflow asks for them ---------------------------------------------------

    def _refuse(self, what: str, fix: str) -> NoReturn:
        raise NotImplementedError(
            f"[{self.name}] {what} needs a rule; got a primitive without one. Fix: {fix}."
        )

    def _shape(self, *avals: ShapedArray, **params: Any) -> Any:
        if self.abstract_eval is None:
            self._refuse("tracing", "primitive.def_abstract_eval(rule)")
        result, effects = self.abstract_eval(*avals, **params)
        if effects:
            raise NotImplementedError(
                f"[{self.name}] a primitive from outside must have no effects; got {effects}. "
                "Fix: gpuflow.debug.callback or io_callback."
            )
        return result

    def _execute(self, operands: Sequence[Any], params: dict[str, Any]) -> Any:
        if self.impl is None:
            self._refuse("evaluation", "primitive.def_impl(function)")
        return execute_function(self.impl)(operands, params)

    def _lowered(self, *operands: Any, **params: Any) -> Sequence[Any]:
        rules = lowerings.get(self, {})
        rule = rules.get(default_backend(), rules.get(None))
        if rule is None:
            self._refuse("compiling", "mlir.register_lowering(primitive, mlir.lower_fun(function))")
        avals_in = [aval_of(operand) for operand in operands]
        avals_out = self._shape(*avals_in, **params)
        if not self.multiple_results:
            avals_out = [avals_out]
        return rule(LoweringRuleContext(self, avals_in, avals_out), *operands, **params)

    def _jvp(self, primals: Sequence[Any], tangents: Sequence[Any], /, **params: Any) -> Any:
        rule = primitive_jvps.own.get(self)
        if rule is None:
            self._refuse("differentiation", "ad.primitive_jvps[primitive] = rule")
        return rule(primals, tangents, **params)

    def _transpose(self, cotangent: Any, /, *operands: Any, **params: Any) -> list[Any]:
        rule = primitive_transposes.own.get(self)
        if rule is None:
            self._refuse("transposition", "ad.primitive_transposes[primitive] = rule")
        results = rule(cotangent, *operands, **params)
        if results is Zero:
            results = [None] * len(operands)
        return [
            Zero(operand.aval.tangent()) if result is None and is_undefined(operand) else result
            for operand, result in safe_zip(operands, results)
        ]

    def _batch(
        self, axis: AxisData, operands: Sequence[Any], dims: Sequence[Any], /, **params: Any
    ) -> Any:
        rule = primitive_batchers.own.get(self)
        if rule is None:
            self._refuse("vmap", "batching.primitive_batchers[primitive] = rule")
        return rule(axis, operands, dims, **params)


class CallPrimitive(Primitive):
    """A primitive that calls a function; jaxprs contain the operations of the function instead.

    ``bind(*operands, subfuns=(function,), **params)`` with a ``linear_util.WrappedFun``.
    """

    call_primitive = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.multiple_results = True

    def bind(self, *operands: Any, subfuns: Sequence[Any], **params: Any) -> Any:
        """The outputs of the function."""
        (function,) = subfuns
        call = call_impl if self.impl is None else self.impl
        return call(function, *operands, **params)

    def bind_with_trace(
        self, trace: Any, args: Sequence[Any], avals: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        """The outputs of the function under a trace."""
        del avals
        with current_trace(trace):
            return self.bind(*args, **params)


def call_impl(function: Any, *operands: Any, **params: Any) -> Any:
    """The outputs of a ``linear_util.WrappedFun``; params belong to the primitive."""
    del params
    return function.call_wrapped(*operands)


# Of functions that JAX's programs call; those of gpuflow hold programs.
call_p, closed_call_p = CallPrimitive("call"), CallPrimitive("closed_call")


class LoweringRuleContext:
    """Context argument of a lowering, besides traced values instead of MLIR values.

    Attributes:
        primitive: which is lowered.
        avals_in, avals_out: the types of its operands and results.
        module_context: the context itself: there is no module.
    """

    def __init__(
        self, primitive: Primitive, avals_in: Sequence[Any], avals_out: Sequence[Any]
    ) -> None:
        self.primitive, self.avals_in, self.avals_out = primitive, avals_in, avals_out
        self.module_context = self

    def add_keepalive(self, value: Any) -> None:
        """Accepted: programs hold the objects that they call."""


class RuleTable(MutableMapping[core_primitive.Primitive, Callable[..., Any]]):
    """Rules by primitive: those of external primitives and, read-only, gpuflow's own.

    Args:
        name: in JAX.
        rule_of: the rule of a primitive of gpuflow.
        as_ours: converts a rule in JAX's form to one in gpuflow's.
    """

    def __init__(
        self,
        name: str,
        rule_of: Callable[[core_primitive.Primitive], Callable[..., Any] | None],
        as_ours: Callable[[core_primitive.Primitive, Any], Any] = lambda _, rule: rule,
        own: dict[Any, Callable[..., Any]] | None = None,
    ) -> None:
        self.own = {} if own is None else own
        self._name, self._rule_of, self._as_ours = name, rule_of, as_ours

    def __getitem__(self, primitive: core_primitive.Primitive) -> Callable[..., Any]:
        rule = self.own.get(primitive)
        if rule is None and type(primitive) is core_primitive.Primitive:
            rule = self._rule_of(primitive)
        if rule is None:
            raise KeyError(primitive)
        return rule

    def __setitem__(self, primitive: core_primitive.Primitive, rule: Any) -> None:
        if type(primitive) is core_primitive.Primitive:
            raise NotImplementedError(
                f"[{self._name}] a rule must be of a primitive from outside; got one for gpuflow's "
                f"own {primitive}. Fix: wrap the call in custom_jvp, custom_vjp or custom_vmap."
            )
        self.own[primitive] = self._as_ours(primitive, rule)

    def __delitem__(self, primitive: core_primitive.Primitive) -> None:
        del self.own[primitive]

    def __iter__(self) -> Iterator[core_primitive.Primitive]:
        yield from self.own
        for primitive in core_primitive.registry().values():
            if self._rule_of(primitive) is not None:
                yield primitive

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _without_axis(primitive: core_primitive.Primitive, rule: Any) -> Callable[..., Any]:
    del primitive
    return lambda axis, operands, dims, /, **params: rule(operands, dims, **params)


def _with_size_and_name(primitive: core_primitive.Primitive, rule: Any) -> Callable[..., Any]:
    del primitive

    def batch(axis: AxisData, operands: Any, dims: Any, /, **params: Any) -> Any:
        return rule(axis.size, axis.name, None, operands, dims, **params)

    return batch


def _batching_rule(primitive: core_primitive.Primitive) -> Callable[..., Any] | None:
    return primitive.batch


primitive_jvps = RuleTable("ad.primitive_jvps", lambda op: op.derivatives.jvp)
primitive_transposes = RuleTable("ad.primitive_transposes", lambda op: op.derivatives.transpose)
# Three ways to write one table: rules with the axis, without it, and with its size and name.
fancy_primitive_batchers = RuleTable("batching.fancy_primitive_batchers", _batching_rule)
primitive_batchers = RuleTable(
    "batching.primitive_batchers", _batching_rule, _without_axis, fancy_primitive_batchers.own
)
axis_primitive_batchers = RuleTable(
    "batching.axis_primitive_batchers",
    _batching_rule,
    _with_size_and_name,
    fancy_primitive_batchers.own,
)
# By primitive, then by platform; None: all others.
lowerings: dict[Any, dict[str | None, Callable[..., Any]]] = {}

# Libraries give it a transpose rule. As in JAX, nothing binds it.
stop_gradient_p = Primitive("stop_gradient")
