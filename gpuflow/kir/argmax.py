"""Argmax reduction: index of the first maximum.

Its values are pairs: an integer key and a position. A printer that recognizes the reduction may
find the largest key first and its position in a second loop, so that both loops vectorize.
"""

from __future__ import annotations

from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Apply, Reduce, Select, Value

_STEPS = ("gt", "eq", "lt", "and", "or")


def first_largest(
    builder: Builder, key: Value, position: Value, new_key: Value, new_position: Value
) -> tuple[Value, Value]:
    """The pair with the larger key; of equal keys, the one with the smaller position."""
    is_larger = builder.apply("gt", new_key, key)
    is_equal = builder.apply("eq", new_key, key)
    is_before = builder.apply("lt", new_position, position)
    is_earlier = builder.apply("and", is_equal, is_before)
    is_taken = builder.apply("or", is_larger, is_earlier)
    return builder.select(is_taken, new_key, key), builder.select(is_taken, new_position, position)


def finds_first_largest(reduce: Reduce) -> bool:
    """Whether a Reduce is combined by ``first_largest``."""
    combine = reduce.combine
    if len(combine.params) != 4 or len(combine.body) != len(_STEPS) + 2:
        return False
    key, position, new_key, new_position = combine.params
    arguments = [(new_key, key), (new_key, key), (new_position, position)]
    outs: list[Value] = []
    for fn, statement in zip(_STEPS, combine.body, strict=False):
        if fn == "and":
            arguments.append((outs[1], outs[2]))
        elif fn == "or":
            arguments.append((outs[0], outs[3]))
        if not isinstance(statement, Apply) or statement.fn != fn:
            return False
        if statement.args != arguments[len(outs)]:
            return False
        outs.append(statement.outs[0])
    selects = combine.body[len(_STEPS) :]
    pairs = zip(selects, ((new_key, key), (new_position, position)), combine.results, strict=True)
    return all(
        isinstance(s, Select)
        and (s.predicate, s.on_true, s.on_false) == (outs[-1], *sides)
        and s.out == result
        for s, sides, result in pairs
    )
