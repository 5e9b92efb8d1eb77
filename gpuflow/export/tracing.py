"""``export``: a jitted function as an ``Exported``, traced once, or at several sizes.

Tests: tests/test_export.py, tests/test_export_sizes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.api.derivatives import vjp
from gpuflow.api.programs import jit
from gpuflow.base import dtypes, tree
from gpuflow.base.errors import ExportError, check
from gpuflow.base.tree import TreeDef
from gpuflow.compiler.shardings import requested_shardings
from gpuflow.control.entry import Entry
from gpuflow.control.jit_function import JitFunction
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.core.aval import ShapedArray
from gpuflow.export.dimensions import Dimension, Sizes, symbols_of, value_of
from gpuflow.export.exported import DisabledSafetyCheck, Exported, default_export_platform
from gpuflow.export.program import Program, settings_now
from gpuflow.export.records import Writer
from gpuflow.export.shapes import is_symbolic_dim, type_with
from gpuflow.export.size_inference import SizeInference, sizes_to_trace
from gpuflow.export.texts import SymbolicScope, parsed
from gpuflow.export.trees import structure_record
from gpuflow.runtime.distributed import spans_memories


def export(
    fun_jit: Any,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
) -> Callable[..., Exported]:
    """Convert a jitted function to one that can be serialized.

    Args:
        fun_jit: a function returned by ``jit``.
        platforms: platforms on which the function may be called; None means the platform of new
            arrays. Kernels are built for that platform now, and for another one at its first call.
        disabled_checks: the checks that calls skip.

    Returns:
        A function of arrays or ShapeDtypeStructs that returns an ``Exported``. Use sizes from
        ``symbolic_shape`` if the call is to determine them.

    Raises:
        ValueError: if the function is not jitted, or has callbacks, other effects, refs, shardings,
            or custom kernels or primitives. An ExportError contains the reason.

    Example:
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> from gpuflow import export
        >>> x = gf.ShapeDtypeStruct(export.symbolic_shape("b, 3"), jnp.float32)
        >>> exported = export.export(gf.jit(lambda x: x.sum(1)))(x)
        >>> exported.out_avals
        (ShapedArray(float32[b]),)
        >>> exported.call(jnp.ones((5, 3))).shape
        (5,)
    """
    check(
        isinstance(fun_jit, JitFunction),
        lambda: (
            f"[export] the function must be the result of jit; got {fun_jit!r}. "
            "Fix: export.export(jit(f))."
        ),
        ValueError,
    )
    allowed = tuple(platforms) if platforms is not None else None

    def exporting(*args: Any, **kwargs: Any) -> Exported:
        selected = allowed or (default_export_platform(),)
        return _exported(fun_jit, selected, tuple(disabled_checks), args, kwargs)

    return exporting


def _exported(
    function: JitFunction[..., Any],
    platforms: tuple[str, ...],
    checks: tuple[DisabledSafetyCheck, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Exported:
    _check_options(function)
    leaves, treedef = tree.flatten((args, kwargs))
    sizes = [n for x in leaves for n in getattr(x, "shape", ()) if is_symbolic_dim(n)]
    if sizes:
        program, in_tree = _symbolic_program(function, leaves, treedef, sizes)
    else:
        entry, in_tree = _traced(function, args, kwargs)
        writer = Writer()
        records = _records(writer, entry)
        avals = entry.jaxpr.in_avals[entry.hidden :], entry.jaxpr.out_avals
        program = _program(function, entry, in_tree, writer, records, avals)

    def derivative() -> Exported:
        return _exported_vjp(function, program, in_tree, platforms, checks)

    return Exported(program, platforms, checks, derivative)


def _check_options(function: JitFunction[..., Any]) -> None:
    options = function._options
    requested = [
        name
        for name in ("in_shardings", "out_shardings", "device")
        if getattr(options, name) is not None
    ]
    check(
        not requested,
        lambda: (
            f"[export] an exported program must use one device; got {function.name} with "
            f"{' and '.join(requested)}. Fix: export jit(f) without them, and shard its arguments "
            "when you call it."
        ),
        ExportError,
    )


def _traced(
    function: JitFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Entry, TreeDef]:
    traced = function.trace(*args, **kwargs)
    entry = traced.entry
    check(
        entry.refs is None,
        lambda: (
            f"[export] an exported function must not use refs; got {function.name}, which does. "
            "Fix: pass values, and return the new ones."
        ),
        ExportError,
    )
    over = spans_memories(entry.jaxpr) or bool(requested_shardings(entry.jaxpr.jaxpr))
    check(
        not over,
        lambda: (
            f"[export] an exported program must use one device; got {function.name}, which has "
            "shardings or uses several devices. Fix: export the function without shard_map, pmap "
            "and "
            "sharding constraints."
        ),
        ExportError,
    )
    return entry, traced.in_tree


def _records(writer: Writer, entry: Entry) -> dict[str, Any]:
    """The records of a program and of its constants."""
    writer.program(entry.jaxpr)
    return {"programs": writer.programs, "consts": [writer.value(x) for x in entry.consts]}


def _program(
    function: JitFunction[..., Any],
    entry: Entry,
    in_tree: TreeDef,
    writer: Writer,
    records: Any,
    avals: tuple[Sequence[ShapedArray], Sequence[ShapedArray]],
    constraints: tuple[str, ...] = (),
) -> Program:
    donated = tuple(k for k, flag in enumerate(entry.donated) if flag)
    in_avals, out_avals = avals
    return Program(
        name=function.name,
        in_avals=tuple(in_avals),
        out_avals=tuple(out_avals),
        in_tree=structure_record(in_tree),
        out_tree=structure_record(entry.out_tree),
        records=records,
        arrays=tuple(writer.arrays),
        donated=donated,
        constraints=constraints,
        settings=settings_now(),
    )


def _symbolic_program(
    function: JitFunction[..., Any],
    leaves: list[Any],
    treedef: TreeDef,
    symbolic: list[Dimension],
) -> tuple[Program, TreeDef]:
    """The program for all sizes, from traces at several."""
    scope = _scope_of(function, symbolic)
    symbols = tuple(dict.fromkeys(s for size in symbolic for s in sorted(symbols_of(size))))
    traced_sizes = sizes_to_trace(symbols, scope)
    inference, in_tree = SizeInference(traced_sizes, scope), treedef
    entries: list[Entry] = []
    writers: list[Writer] = []
    records: list[Any] = []
    for sizes in traced_sizes:
        args, kwargs = tree.unflatten(treedef, [_struct_at(leaf, sizes) for leaf in leaves])
        entry, in_tree = _traced(function, args, kwargs)
        entries.append(entry)
        writers.append(Writer())
        records.append(_records(writers[-1], entry))
        if len(writers) == 2:
            # A loop of Python over a size is found before it is traced for large ones.
            inference.check_same_structure(records)
    _same_constants(function, entries, writers)
    first = entries[0]
    merged = inference.merged(records)
    results = inference.merged([_result_types(entry) for entry in entries])
    ins = [
        type_with(getattr(leaf, "shape", ()), aval.dtype, aval.weak_type)
        for leaf, aval in zip(leaves, first.jaxpr.in_avals[first.hidden :], strict=True)
    ]
    outs = [
        type_with(
            [parsed(n["size"], scope) if isinstance(n, dict) else n for n in shape],
            aval.dtype,
            aval.weak_type,
        )
        for (shape, _, _), aval in zip(results, first.jaxpr.out_avals, strict=True)
    ]
    constraints = tuple(one.text for one in scope.constraints)
    known = ins, outs
    return _program(function, first, in_tree, writers[0], merged, known, constraints), in_tree


def _scope_of(function: JitFunction[..., Any], symbolic: Sequence[Dimension]) -> SymbolicScope:
    scopes = list({id(size.scope): size.scope for size in symbolic}.values())
    check(
        len(scopes) == 1,
        lambda: (
            f"[export] symbolic sizes of the arguments of {function.name} must share a scope; got "
            f"{len(scopes)} for {', '.join(map(str, symbolic))}. Fix: scope = SymbolicScope(); "
            "symbolic_shape(..., scope=scope)."
        ),
        ExportError,
    )
    scope = scopes[0]
    assert isinstance(scope, SymbolicScope)
    return scope


def _struct_at(leaf: Any, sizes: Sizes) -> Any:
    """An argument with concrete sizes."""
    if not isinstance(leaf, ShapeDtypeStruct):
        return leaf
    return leaf.update(shape=tuple(value_of(size, sizes) for size in leaf.shape))


def _result_types(entry: Entry) -> list[Any]:
    """The record of the types of results."""
    avals = entry.jaxpr.out_avals
    return [[list(aval.shape), str(aval.dtype), aval.weak_type] for aval in avals]


def _same_constants(
    function: JitFunction[..., Any], entries: Sequence[Entry], writers: Sequence[Writer]
) -> None:
    """Raise ExportError for constants that differ from size to size."""

    def check_same(arrays: Sequence[tuple[Any, ShapedArray]]) -> None:
        same = all(aval is arrays[0][1] for _, aval in arrays) and all(
            one is arrays[0][0]
            or np.array_equal(one, arrays[0][0], equal_nan=False)
            or one.tobytes() == arrays[0][0].tobytes()
            for one, _ in arrays
        )
        check(
            same,
            lambda: (
                f"[export] constants of {function.name} must not depend on symbolic sizes; got "
                f"{arrays[0][1]} in one program and {arrays[-1][1]} of other values in the next. "
                "Fix: "
                "jnp.arange and jnp.zeros instead of NumPy's."
            ),
            ExportError,
        )

    counts = {
        (len(writer.arrays), len(entry.consts))
        for writer, entry in zip(writers, entries, strict=True)
    }
    check(
        len(counts) == 1,
        lambda: (
            f"[export] constants of {function.name} must not depend on symbolic sizes; got "
            "programs "
            "with different numbers of them. Fix: make them inside of the function with jnp."
        ),
        ExportError,
    )
    for arrays in zip(*(writer.arrays for writer in writers), strict=True):
        check_same([array[:2] for array in arrays])


def _exported_vjp(
    function: JitFunction[..., Any],
    program: Program,
    in_tree: TreeDef,
    platforms: tuple[str, ...],
    checks: tuple[DisabledSafetyCheck, ...],
) -> Exported:
    """The derivative of a function as one of flat values."""
    count = len(program.in_avals)

    def fun_vjp(*flat: Any) -> Any:
        def primal(*leaves: Any) -> list[Any]:
            args, kwargs = tree.unflatten(in_tree, leaves)
            return tree.leaves(function(*args, **kwargs))

        _, pullback = vjp(primal, *flat[:count])
        return pullback(list(flat[count:]))

    fun_vjp.__name__ = f"vjp({program.name})"
    cotangents = [
        type_with(aval.shape, dtypes.tangent_dtype(aval.dtype), False) for aval in program.out_avals
    ]
    structs = [
        ShapeDtypeStruct(aval.shape, aval.dtype, aval.weak_type)
        for aval in (*program.in_avals, *cotangents)
    ]
    return _exported(jit(fun_vjp), platforms, checks, tuple(structs), {})
