"""``eval_shape`` of symbolic sizes: from the shapes at several.

Tests: tests/test_export_shape_inference.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow.api.programs import eval_shape, register_symbolic
from gpuflow.base import tree
from gpuflow.base.errors import ExportError, check
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.export.dimensions import Dimension, symbols_of, value_of
from gpuflow.export.size_inference import SizeInference, sizes_to_trace
from gpuflow.export.texts import parsed


def eval_symbolic_shape(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the result of ``eval_shape`` for arguments with symbolic sizes.

    Raises:
        ExportError: results whose structure or types depend on the sizes, or sizes of several
            scopes.
    """
    leaves, treedef = tree.flatten((args, kwargs))
    symbolic = [n for x in leaves for n in getattr(x, "shape", ()) if isinstance(n, Dimension)]
    scopes = list({id(size.scope): size.scope for size in symbolic}.values())
    check(
        len(scopes) == 1,
        lambda: (
            f"[eval_shape] symbolic sizes must share a scope; got {len(scopes)} scopes for "
            f"{', '.join(map(str, symbolic))}. Fix: symbolic_shape(..., scope=scope)."
        ),
        ExportError,
    )
    symbols = tuple(dict.fromkeys(s for size in symbolic for s in sorted(symbols_of(size))))
    traced_sizes = sizes_to_trace(symbols, scopes[0])
    results = []
    for sizes in traced_sizes:
        concrete_leaves = [
            leaf.update(shape=tuple(value_of(size, sizes) for size in leaf.shape))
            if isinstance(leaf, ShapeDtypeStruct)
            else leaf
            for leaf in leaves
        ]
        call_args, call_kwargs = tree.unflatten(treedef, concrete_leaves)
        results.append(eval_shape(fun, *call_args, **call_kwargs))
    structure = tree.structure(results[0])
    check(
        all(tree.structure(result) == structure for result in results),
        lambda: (
            "[eval_shape] the tree of results must not depend on symbolic sizes; got several. Fix: "
            "numbers instead of symbols."
        ),
        ExportError,
    )
    shapes = SizeInference(traced_sizes, scopes[0]).merged(
        [[list(leaf.shape) for leaf in tree.leaves(result)] for result in results]
    )
    outs = [
        leaf.update(
            shape=tuple(parsed(n["size"], scopes[0]) if isinstance(n, dict) else n for n in shape)
        )
        for leaf, shape in zip(tree.leaves(results[0]), shapes, strict=True)
    ]
    return tree.unflatten(structure, outs)


register_symbolic(Dimension, eval_symbolic_shape)
