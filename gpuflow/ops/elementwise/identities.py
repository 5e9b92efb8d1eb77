"""Common code of ``simplify`` rules: constants, equal atoms, and sinking of broadcasts.

A rule may depend only on constants that are part of a kernel's text anyway, such as 0, 1 and -1:
others would make programs of different sizes differ.

Tests: tests/ops/test_identities.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, Eqn, Literal
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.ops.layout.axes import broadcast_in_dim_p, reshape_p, squeeze_p

Rule = Callable[..., "list[Atom] | None"]


def first_of(*rules: Rule | None) -> Rule:
    """A rule that applies the first of ``rules`` with a result."""
    present = [rule for rule in rules if rule is not None]

    def rule(eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder) -> list[Atom] | None:
        for one in present:
            result = one(eqn, definition, build)
            if result is not None:
                return result
        return None

    return rule


# --- properties of atoms -------------------------------------------------------------------


def scalar_of(atom: Atom, definition: DefinitionLookup) -> Atom | None:
    """The scalar that ``atom`` is a broadcast of, or None."""
    if not atom.aval.shape:
        return atom
    source = definition(atom)
    if source is None or source.primitive is not broadcast_in_dim_p:
        return None
    return None if source.inputs[0].aval.shape else source.inputs[0]


def constant_of(atom: Atom, definition: DefinitionLookup) -> Any:
    """The constant value of all elements of ``atom``, a NumPy scalar; or None."""
    scalar = scalar_of(atom, definition)
    return scalar.value if type(scalar) is Literal and _is_plain(scalar.aval) else None


def is_all(atom: Atom, definition: DefinitionLookup, expected: float) -> bool:
    """Whether each element of ``atom`` is ``expected``, with its sign if that is 0 of a float.

    Never of complex numbers: (inf + 0i) * 1 differs from the operand.
    """
    value = constant_of(atom, definition)
    if value is None or dtypes.is_complex(atom.aval.dtype) or value != expected:
        return False
    if expected != 0 or not dtypes.is_floating(atom.aval.dtype):
        return True
    return bool(np.signbit(np.float64(value)) == np.signbit(np.float64(expected)))


def _is_plain(aval: ShapedArray) -> bool:
    return not dtypes.is_extended(aval.dtype)


def producer(atom: Atom, primitive: Any, definition: DefinitionLookup) -> Eqn | None:
    """The equation that defines ``atom`` if it applies ``primitive``, else None."""
    source = definition(atom)
    return source if source is not None and source.primitive is primitive else None


# --- results -------------------------------------------------------------------------------


def same(eqn: Eqn, atom: Atom) -> list[Atom] | None:
    """``atom`` instead of the output, if it has its shape and dtype."""
    out = eqn.outputs[0].aval
    return [atom] if (atom.aval.shape, atom.aval.dtype) == (out.shape, out.dtype) else None


def filled(eqn: Eqn, value: Any, build: EqnBuilder) -> list[Atom]:
    """An output whose elements are all ``value``."""
    aval = eqn.outputs[0].aval
    literal = build.literal(value, aval)
    if not aval.shape:
        return [literal]
    shape = aval.shape
    return [build.apply(broadcast_in_dim_p, literal, shape=shape, broadcast_dimensions=())]


def wrapped(value: int, dtype: Any) -> Any:
    """A Python integer in an integer dtype, modulo a power of two."""
    bits = 8 * dtype.itemsize
    return np.asarray(value % (1 << bits), np.uint64).astype(dtype)[()]


# --- broadcasts ----------------------------------------------------------------------------


def sink_broadcasts(
    eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder, same_shape: bool = False
) -> list[Atom] | None:
    """Rewrite an elementwise op of broadcasts as the broadcast of the op.

    It is computed over the dimensions that some operand really has. ``same_shape``: the op needs
    operands of one shape, so that scalars are broadcast with arrays.
    """
    shape = eqn.outputs[0].aval.shape
    sources = [_broadcast_source(atom, shape, definition) for atom in eqn.inputs]
    if not shape:
        return None
    if any(source is None for source in sources):
        return _sink_repeats(eqn, definition, build)
    real = sorted({d for source in sources if source for d in _real_dims(*source, shape)})
    if len(real) == len(shape):
        return None
    small = tuple(shape[d] for d in real)
    operands = [
        _over(source, real, small, build, same_shape) for source in sources if source is not None
    ]
    result = build.apply(eqn.primitive, *operands, **eqn.params)
    return [build.apply(broadcast_in_dim_p, result, shape=shape, broadcast_dimensions=tuple(real))]


def _sink_repeats(eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder) -> list[Atom] | None:
    """Move a reshape that adds a dimension after an op.

    Either it repeats along it, as ``tile`` and ``repeat`` do, or an indexed op selects elements
    along it, as interior padding does, and can be fused into the kernel of this op.
    """
    shape = eqn.outputs[0].aval.shape
    operands: list[Atom] = []
    for atom in eqn.inputs:
        reshaped = producer(atom, reshape_p, definition)
        repeated = None if reshaped is None else reshaped.inputs[0]
        if repeated is not None and not _has_own_dims(definition(repeated)):
            repeated = None
        operands.append(atom if repeated is None else repeated)
    wide = {
        operand.aval.shape
        for operand, atom in zip(operands, eqn.inputs, strict=True)
        if operand is not atom
    }
    if len(wide) != 1:
        return None
    (sizes,) = wide
    for k, atom in enumerate(eqn.inputs):
        if operands[k] is not atom or not atom.aval.shape:
            continue
        source = _broadcast_source(atom, shape, definition)
        if source is None or source[0].aval.shape:
            return None
        operands[k] = build.apply(
            broadcast_in_dim_p, source[0], shape=sizes, broadcast_dimensions=()
        )
    result = build.apply(eqn.primitive, *operands, **eqn.params)
    return [build.apply(reshape_p, result, new_sizes=shape)]


def _has_own_dims(source: Eqn | None) -> bool:
    if source is None:
        return False
    return source.primitive is broadcast_in_dim_p or source.primitive.lower.is_indexed


def _broadcast_source(
    atom: Atom, shape: tuple[int, ...], definition: DefinitionLookup
) -> tuple[Atom, tuple[int, ...]] | None:
    """The source of the broadcast ``atom``, and its dimensions in ``shape``."""
    if not atom.aval.shape:
        return atom, ()
    source = producer(atom, broadcast_in_dim_p, definition)
    if source is None or atom.aval.shape != shape:
        return None
    return source.inputs[0], source.params["broadcast_dimensions"]


def _real_dims(atom: Atom, dims: Sequence[int], shape: tuple[int, ...]) -> list[int]:
    """The dimensions that are not repeated; size 1 gets no special treatment."""
    pairs = zip(dims, atom.aval.shape, strict=True)
    return [d for d, size in pairs if size == shape[d]]


def _over(
    source: tuple[Atom, tuple[int, ...]],
    real: Sequence[int],
    small: tuple[int, ...],
    build: EqnBuilder,
    same_shape: bool,
) -> Atom:
    """Broadcast a source to the dimensions ``real`` of the output, of sizes ``small``."""
    atom, dims = source
    if not atom.aval.shape and (not small or (type(atom) is Literal and not same_shape)):
        return atom
    remaining = [k for k, d in enumerate(dims) if d in real]
    if len(remaining) != len(dims):
        dropped = tuple(k for k in range(len(dims)) if k not in remaining)
        atom = build.apply(squeeze_p, atom, dimensions=dropped)
    positions = tuple(real.index(dims[k]) for k in remaining)
    if atom.aval.shape == small:
        return atom
    return build.apply(broadcast_in_dim_p, atom, shape=small, broadcast_dimensions=positions)
