"""Sharding rules: which dimensions of operands and results correspond ("... i, i j -> ... j").

Tests: tests/parallel/test_custom_partitioning.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gpuflow.base.errors import check

BATCHING = "\N{HORIZONTAL ELLIPSIS}"
_FACTOR = re.compile(r"[A-Za-z]\w*")
_BATCHING = re.compile(r"(\.\.\.|\N{HORIZONTAL ELLIPSIS})(\d*)")
_TOKEN = re.compile(r"\(([^()]*)\)|(?:\.\.\.|\N{HORIZONTAL ELLIPSIS})\d*|[A-Za-z]\w*")


def _check(holds: bool, must: str, got: Any, fix: str = "'... i, i j -> ... j'") -> None:
    check(holds, lambda: f"[sharding_rule] {must}; got {got!r}. Fix: {fix}.", ValueError)


class CompoundFactor(tuple[str, ...]):
    """Factors that make up one dimension, the first one outermost.

    Args:
        factors: two names at least.

    Raises:
        ValueError: fewer, or an element that is not a name.

    Example:
        >>> from gpuflow.experimental.custom_partitioning import CompoundFactor
        >>> CompoundFactor("rows", "columns")
        ('rows', 'columns')
    """

    def __new__(cls, *factors: str) -> CompoundFactor:
        """Factors by name."""
        _check(len(factors) > 1, "a compound factor must have two factors at least", factors)
        for factor in factors:
            is_name = isinstance(factor, str) and _FACTOR.fullmatch(factor) is not None
            _check(is_name, "a factor must be a name", factor)
        return super().__new__(cls, factors)


class ArrayMapping(tuple[Any, ...]):
    """A factor for each dimension of an array.

    Args:
        dimensions: names, CompoundFactors, and in front perhaps BATCHING for any dimensions.

    Raises:
        ValueError: something else, or BATCHING after the front.

    Example:
        >>> from gpuflow.experimental.custom_partitioning import BATCHING, ArrayMapping
        >>> len(ArrayMapping(BATCHING, "i"))
        2
    """

    def __new__(cls, *dimensions: Any) -> ArrayMapping:
        """Factors by dimension."""
        for k, dimension in enumerate(dimensions):
            if isinstance(dimension, CompoundFactor):
                continue
            is_text = isinstance(dimension, str)
            if is_text and _BATCHING.fullmatch(dimension):
                _check(k == 0, "an ellipsis must be in front", dimensions)
                continue
            is_name = is_text and _FACTOR.fullmatch(dimension) is not None
            _check(is_name, "a dimension must be a name or a CompoundFactor", dimension)
        return super().__new__(cls, dimensions)


class SdyShardingRule:
    """The correspondence of dimensions of operands and results.

    Args:
        operand_mappings, result_mappings: an ArrayMapping for each.
        reduction_factors: factors that results lack, over which devices' results are added up.
        need_replication_factors: factors along which nothing is split.
        permutation_factors: factors along which devices exchange elements.
        factor_sizes: the sizes of factors that only occur in compound ones.

    Raises:
        ValueError: sizes or kinds of factors that the mappings do not fit.

    Example:
        >>> from gpuflow.experimental.custom_partitioning import ArrayMapping, SdyShardingRule
        >>> rule = SdyShardingRule((ArrayMapping("i", "j"),), (ArrayMapping("j"),))
        >>> rule.result_specs([("x", "y")], [2], [1])
        [('y',)]
    """

    def __init__(
        self,
        operand_mappings: Sequence[ArrayMapping],
        result_mappings: Sequence[ArrayMapping],
        *,
        reduction_factors: tuple[str, ...] = (),
        need_replication_factors: tuple[str, ...] = (),
        permutation_factors: tuple[str, ...] = (),
        **factor_sizes: int,
    ) -> None:
        self.operand_mappings = tuple(ArrayMapping(*m) for m in operand_mappings)
        self.result_mappings = tuple(ArrayMapping(*m) for m in result_mappings)
        self.reduction_factors = reduction_factors
        self.need_replication_factors = need_replication_factors
        self.permutation_factors = permutation_factors
        self.factor_sizes = factor_sizes
        dimensions = [d for m in (*self.operand_mappings, *self.result_mappings) for d in m]
        whole = {d for d in dimensions if isinstance(d, str)}
        compound = {f for d in dimensions if not isinstance(d, str) for f in d}
        sized = set(factor_sizes)
        _check(
            sized == compound - whole,
            "sizes must be those of the factors in compound ones alone, "
            f"{sorted(compound - whole)}",
            sorted(sized),
            "rows=8 behind the rule",
        )
        special = (*reduction_factors, *need_replication_factors, *permutation_factors)
        _check(
            len(set(special)) == len(special) and set(special) <= whole | compound,
            "special factors must be factors of the rule, each of one kind",
            special,
        )

    def __repr__(self) -> str:
        return f"SdyShardingRule({self.operand_mappings}, {self.result_mappings})"

    def result_specs(
        self, specs: Sequence[Sequence[Any]], ranks: Sequence[int], result_ranks: Sequence[int]
    ) -> list[tuple[Any, ...]]:
        """The axes of a mesh over which results are split.

        Args:
            specs: of each operand the axes of its dimensions, as in a PartitionSpec.
            ranks, result_ranks: how many dimensions operands and results have.

        Returns:
            Such a spec for each result. Of compound factors and of those that must not be split
            nothing is; of an axis that two dimensions would take the first one has it.

        Raises:
            ValueError: other operands or results than those of the rule.

        Example:
            As for the class.
        """
        whole = set(self.need_replication_factors) | set(self.permutation_factors)
        found: dict[Any, Any] = {}
        factors = _expanded(self.operand_mappings, ranks)
        for spec, names in zip(specs, factors, strict=True):
            padded = (*spec, *[None] * (len(names) - len(spec)))
            for name, axes in zip(names, padded, strict=True):
                if axes is not None and name not in whole and not isinstance(name, CompoundFactor):
                    found.setdefault(name, axes)
        results = []
        for names in _expanded(self.result_mappings, result_ranks):
            used: set[Any] = set()
            spec = []
            for name in names:
                axes = found.get(name)
                each = set(axes if isinstance(axes, tuple) else (axes,)) - {None}
                spec.append(None if each & used else axes)
                used |= each
            results.append(tuple(spec))
        return results


def _expanded(mappings: Sequence[ArrayMapping], ranks: Sequence[int]) -> list[list[Any]]:
    """Of each array a name for each dimension: those under an ellipsis count from the front."""
    _check(
        len(mappings) == len(ranks), f"a rule for {len(mappings)} arrays must meet as many", ranks
    )
    result = []
    for mapping, rank in zip(mappings, ranks, strict=True):
        names: list[Any] = list(mapping)
        match = _BATCHING.fullmatch(names[0]) if names and isinstance(names[0], str) else None
        if match is not None:
            count = rank - len(names) + 1
            names = [(match[2] or "0", k) for k in range(count)] + names[1:]
        _check(len(names) == rank, f"an array must have the dimensions of {mapping}", rank)
        result.append(names)
    return result


def parse_rule(text: str, **kinds: Any) -> SdyShardingRule:
    """Parse a rule; ``kinds`` are the other arguments of SdyShardingRule.

    Raises:
        ValueError: the text is not a rule.
    """
    sides = text.split("->")
    _check(len(sides) == 2, "a rule must have one arrow", text)
    operands, results = ([_mapping(term, text) for term in side.split(",")] for side in sides)
    return SdyShardingRule(tuple(operands), tuple(results), **kinds)


def _mapping(term: str, text: str) -> ArrayMapping:
    _check(not _TOKEN.sub("", term).strip(), "a rule must have names and brackets alone", text)
    dimensions: list[Any] = []
    for match in _TOKEN.finditer(term):
        inner = match[1]
        dimensions.append(match[0] if inner is None else CompoundFactor(*inner.split()))
    return ArrayMapping(*dimensions)
