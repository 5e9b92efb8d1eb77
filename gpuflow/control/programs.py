"""Programs of control-flow primitives: tracing, caching, and merging of captured values.

A body is a ClosedJaxpr without consts. Captured values of the function become leading operands of
the primitive, so that derivatives, batching and the compiler see them.

Tests: tests/control/test_signatures.py, tests/control/test_control_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gpuflow.base import tree
from gpuflow.base.caches import register_table
from gpuflow.base.config import config
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.recent import Recent
from gpuflow.base.records import record
from gpuflow.base.util import params_key, safe_zip
from gpuflow.compiler.shardings import result_shardings
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.effects import is_observable
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.primitive import Primitive
from gpuflow.core.ref_programs import RefUse, record_program
from gpuflow.core.refs import refuse_refs, values_of
from gpuflow.core.staging import hoist_consts, trace_to_jaxpr
from gpuflow.core.trace import Tracer
from gpuflow.runtime.array import from_numpy
from gpuflow.runtime.execute import executable_of
from gpuflow.runtime.sharded import ShardedArray, check_same_devices, whole_of, with_sharding


@record
class Program:
    """A traced function.

    Attributes:
        jaxpr: ``(*closed-over values, *arguments) -> leaves of the result``.
        consts: the first closed-over values; those of refs follow them.
        out_tree: the structure of the result.
        refs: the refs that the function reads and writes; None if there are none.
    """

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    out_tree: tree.TreeDef
    refs: RefUse | None = None

    @property
    def closed_values(self) -> list[Any]:
        """Current values of all captured variables."""
        return [*self.consts, *(() if self.refs is None else values_of(self.refs.closed))]

    @property
    def result_avals(self) -> list[ShapedArray]:
        """The types of the results, without new values of refs."""
        return self.jaxpr.out_avals[: self.out_tree.num_leaves]


_programs: WeakKeyDictionary[Any, Recent[Any, Program]] = WeakKeyDictionary()
register_table("functions with programs of inner functions", _programs)
_MAX_PROGRAMS = 1024  # of one function, some 20 kB each


def forget_programs() -> None:
    """Forget the traced bodies of loops and branches."""
    _programs.clear()


def as_arrays(value: Any) -> Any:
    """A tree with ``as_array`` of each leaf."""
    return tree.tree_map(as_array, value)


def as_array(value: Any) -> Any:
    """Convert a NumPy array to an Array by copying; other values are unchanged.

    For functions that run on values: ``x += 1`` must not write into the caller's array.
    """
    is_host = isinstance(value, np.ndarray) and is_value(value)
    return from_numpy(value, aval_of(value)) if is_host else value


def trace_program(
    op: str,
    function: Callable[..., Any],
    in_tree: tree.TreeDef,
    avals: Sequence[ShapedArray],
    name: str = "function",
    identity: Any = None,
    takes_refs: bool = False,
) -> Program:
    """Trace ``function(*args)`` for arguments of structure ``in_tree``, a tuple.

    One function object is traced once for each signature, unless it closes over tracers.

    Args:
        op: name of the op in messages, and part of the cache key.
        function: the body.
        in_tree: the structure of the tuple of arguments.
        avals: the types of their leaves.
        name: name of the function in messages.
        identity: the object whose traces are cached, if ``function`` is a new wrapper around it
            at each call; None means ``function``.
        takes_refs: whether the function may use refs. The caller then passes their values in and
            out.

    Raises:
        TypeError: if ``function`` is not callable, or returns a value that is not an array.
    """
    if not callable(function):
        raise TypeError(f"[{op}] {name} must be callable; got {function!r}. Fix: pass a function.")
    key = (op, in_tree, tuple(avals), config.trace_context())
    try:
        owner = function if identity is None else identity
        cached = _programs.get(owner)
        if cached is None:
            cached = _programs.setdefault(owner, Recent(_MAX_PROGRAMS))
    except TypeError:  # it cannot be hashed or referred to weakly
        cached = Recent(_MAX_PROGRAMS)
    program = cached.get(key)
    if program is None:
        program = _trace(op, function, in_tree, avals, name, takes_refs)
        is_lasting = program.refs is None or program.refs.outlives_traces
        if is_lasting and not any(isinstance(value, Tracer) for value in program.consts):
            cached.put(key, program)
    return program


def _trace(
    op: str,
    function: Callable[..., Any],
    in_tree: tree.TreeDef,
    avals: Any,
    name: str,
    takes_refs: bool,
) -> Program:
    structures: list[tree.TreeDef] = []

    def flat(*operands: Any) -> list[Any]:
        leaves, out_tree = tree.flatten(function(*tree.unflatten(in_tree, operands)))
        for leaf in leaves:
            if not is_value(leaf):
                refuse_refs(op, [leaf], f"results of {name}")
                raise TypeError(
                    f"[{op}] {name} must return arrays or trees of them; got {brief(leaf)}. "
                    f"Fix: {fix_for(leaf, 'return arrays, or None')}."
                )
        structures.append(out_tree)
        return leaves

    what, refs = f"the {name} of {op}", None
    if takes_refs:
        jaxpr, consts, refs = record_program(flat, avals, function_name=what)
    else:
        jaxpr, consts = trace_to_jaxpr(flat, avals, function_name=what)
    return Program(ClosedJaxpr(hoist_consts(jaxpr)), tuple(consts), structures[0], refs)


def close(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """Convert the constants of a program to leading inputs; returns the program and the values."""
    if not jaxpr.jaxpr.constvars:
        return jaxpr, []
    return ClosedJaxpr(hoist_consts(jaxpr.jaxpr)), list(jaxpr.consts)


def join_consts(
    jaxprs: Sequence[ClosedJaxpr], consts: Sequence[Sequence[Any]]
) -> tuple[list[ClosedJaxpr], list[Any]]:
    """Give several programs the same leading inputs: the union of their closed-over values."""
    values: dict[int, Any] = {}
    for closed in consts:
        for value in closed:
            values.setdefault(id(value), value)
    keys = list(values)
    const_positions = tuple(tuple(keys.index(id(value)) for value in closed) for closed in consts)

    def join() -> list[ClosedJaxpr]:
        merged = []
        for jaxpr, positions in safe_zip(jaxprs, const_positions):
            inputs = dict(zip(positions, jaxpr.jaxpr.invars, strict=False))
            lead = [inputs.get(k) or Var(aval_of(values[key])) for k, key in enumerate(keys)]
            merged.append(with_inputs(jaxpr, [*lead, *jaxpr.jaxpr.invars[len(positions) :]]))
        return merged

    # Cached: programs derived from the merged ones are memoized on them.
    key = ("join", tuple(jaxpr.jaxpr for jaxpr in jaxprs), const_positions)
    return jaxprs[0].jaxpr.memo(key, join), list(values.values())


def with_inputs(
    jaxpr: ClosedJaxpr, invars: Sequence[Var], outvars: Sequence[Atom] | None = None
) -> ClosedJaxpr:
    """Replace the inputs (and outputs) of a program: another order, or additional ones."""
    inner = jaxpr.jaxpr
    changed = inner.replace(
        invars=tuple(invars),
        outvars=inner.outvars if outvars is None else tuple(outvars),
        argument_names=(),
    )
    return ClosedJaxpr(changed, jaxpr.consts)


def split_independent(jaxpr: Jaxpr, varying: Sequence[bool]) -> tuple[tuple[Eqn, ...], set[Var]]:
    """Invariant equations, and their outputs.

    An equation is invariant if it depends on no varying input and has no observable effect.
    """
    moving = {var for var, flag in safe_zip(jaxpr.invars, varying) if flag}
    fixed: list[Eqn] = []
    for eqn in jaxpr.eqns:
        depends = any(type(atom) is not Literal and atom in moving for atom in eqn.inputs)
        if depends or is_observable(eqn.effects):
            moving.update(eqn.outputs)
        else:
            fixed.append(eqn)
    return tuple(fixed), {var for eqn in fixed for var in eqn.outputs}


def execute_alone(get: Callable[[], Primitive]) -> Callable[..., list[Any]]:
    """An ``execute`` rule that compiles the single equation, once for each signature.

    Args:
        get: returns the primitive, which does not exist yet when its rules are created.
    """

    def execute(operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        primitive = get()
        avals = tuple(aval_of(value) for value in operands)
        assert primitive.subjaxprs is not None  # it holds programs
        anchor = primitive.subjaxprs(params)[0].jaxpr
        key = ("alone", primitive, avals, params_key(params))

        def make() -> ClosedJaxpr:
            def run(*values: Any) -> list[Any]:
                return primitive.bind(*values, **params)

            jaxpr, consts = trace_to_jaxpr(run, avals)
            assert not consts
            return ClosedJaxpr(jaxpr)

        return run_program(anchor.memo(key, make), (False,) * len(avals), operands)

    return execute


def run_program(jaxpr: ClosedJaxpr, donated: Sequence[bool], operands: Sequence[Any]) -> list[Any]:
    """Run a program on values; shardings of the operands propagate to the results."""
    run = executable_of(jaxpr, tuple(donated))
    if ShardedArray not in map(type, operands):
        return run(operands)
    check_same_devices("jit", operands)
    shardings = tuple([x.sharding if type(x) is ShardedArray else None for x in operands])
    results = run([whole_of(x) for x in operands])
    out_shardings = jaxpr.jaxpr.memo(
        ("result shardings", shardings), lambda: result_shardings(jaxpr.jaxpr, shardings)
    )
    if out_shardings is None:
        return results
    return [with_sharding(out, sharding) for out, sharding in safe_zip(results, out_shardings)]
