"""Commute linear maps of integer arrays with the producers of their operand.

A sum over axes and a cumulative sum are such maps. Integers wrap modulo a power of two, so that
``map(x * c + y) = map(x) * c + map(y)`` holds exactly. So a map of an affine function of an iota
reduces to maps of the iota and of ones, which have closed forms.

Tests: tests/ops/test_identities.py, tests/ops/test_contractions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow.base.records import record
from gpuflow.core.jaxpr import Atom, Eqn
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder


@record
class LinearMap:
    """A linear map, and its images in closed form.

    Attributes:
        definition: maps an atom to its defining equation.
        leaf: the image of an equation's output, or None.
        ones: the image of an array of ones of a dtype.
    """

    definition: DefinitionLookup
    build: EqnBuilder
    leaf: Callable[[Eqn], Atom | None]
    ones: Callable[[Any], Atom]

    def __call__(self, atom: Atom) -> Atom | None:
        """The image of ``atom`` in closed form, or None."""
        source = self.definition(atom)
        if source is None:
            return None
        rule = source.primitive.lower
        if rule.image is not None:
            return rule.image(source, self, self.build)
        return self.leaf(source)


def wraps(dtype: Any) -> bool:
    """Whether a dtype is an integer modulo a power of two, of full bytes."""
    return dtype.kind in "iu"
