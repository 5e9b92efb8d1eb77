"""Expansion of an equation: replace it by the equations of a function of its operands.

``simplify`` rules expand small problems that a library would solve slowly: a call for a 3 x 3
matrix, or for a running sum of four elements, takes longer than its arithmetic. The equations fuse
with their neighbors. Sizes determine their number, so they are in a program's key.

Tests: tests/ops/test_random_bits.py, tests/ops/test_contractions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.caches import lru_cache
from gpuflow.base.config import config
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.core.staging import trace_closed


@lru_cache(256)
def traced_once(
    function: Callable[..., Any], avals: tuple[ShapedArray, ...], params: tuple[Any, ...] = ()
) -> ClosedJaxpr:
    """The program of ``function`` on operands of these types; ``params`` are pairs, hashable."""
    # Expansions may compute in 64 bits, independent of the user's setting.
    with config.override("enable_x64", True):
        return trace_closed(lambda *operands: function(*operands, **dict(params)), avals)


def program_of(function: Callable[..., Sequence[Any]], eqn: Eqn, **params: Any) -> ClosedJaxpr:
    """The program of ``function`` on an equation's operands; arguments as of ``written_out``."""
    return traced_once(function, tuple([a.aval for a in eqn.inputs]), tuple(sorted(params.items())))


def written_out(
    function: Callable[..., Sequence[Any]], eqn: Eqn, build: EqnBuilder, **params: Any
) -> list[Atom]:
    """Replace the outputs of an equation by those of ``function`` of its operands.

    Args:
        function: of ops, ``(*operands, **params) -> outputs``.
        eqn: the equation. build: as for ``simplify`` rules.
        params: hashable.
    """
    jaxpr = program_of(function, eqn, **params).jaxpr
    env: dict[Var, Atom] = dict(zip(jaxpr.invars, eqn.inputs, strict=True))

    def atom_of(atom: Atom) -> Atom:
        return atom if type(atom) is Literal else env[atom]

    for inner in jaxpr.eqns:
        outs = build.apply(inner.primitive, *map(atom_of, inner.inputs), **inner.params)
        env.update(zip(inner.outputs, outs if type(outs) is tuple else (outs,), strict=True))
    return [atom_of(atom) for atom in jaxpr.outvars]
