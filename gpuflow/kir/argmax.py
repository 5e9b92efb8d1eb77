"""Argmax reduction: index of the first maximum.

Its values are pairs: an integer key and a position. A printer that recognizes the reduction may
find the largest key first and its position in a second loop, so that both loops vectorize.

Tests: tests/kir/test_argmax.py.
"""

from __future__ import annotations

from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Apply, Reduce, Select, Value

_FUNCTIONS = ("gt", "eq", "lt", "and", "or")


def combine_argmax(
    builder: Builder, key: Value, position: Value, new_key: Value, new_position: Value
) -> tuple[Value, Value]:
    """The pair with the larger key; of equal keys, the one with the smaller position.

    ``is_argmax`` recognizes these statements by their order: change both together.

    Args:
        builder: the builder of the combine block.
        key, position: the running pair, integers.
        new_key, new_position: the new pair, of the same dtypes.
    """
    is_larger = builder.apply("gt", new_key, key)
    is_equal = builder.apply("eq", new_key, key)
    is_smaller_position = builder.apply("lt", new_position, position)
    wins_tie = builder.apply("and", is_equal, is_smaller_position)
    is_new = builder.apply("or", is_larger, wins_tie)
    return builder.select(is_new, new_key, key), builder.select(is_new, new_position, position)


def is_argmax(reduce: Reduce) -> bool:
    """Whether a Reduce is combined by ``combine_argmax``; False for other equivalent code."""
    combine = reduce.combine
    if len(combine.params) != 4 or len(combine.body) != len(_FUNCTIONS) + 2:
        return False
    key, position, new_key, new_position = combine.params
    arguments = [(new_key, key), (new_key, key), (new_position, position)]
    conditions: list[Value] = []
    for fn, statement in zip(_FUNCTIONS, combine.body, strict=False):
        if fn == "and":
            arguments.append((conditions[1], conditions[2]))
        elif fn == "or":
            arguments.append((conditions[0], conditions[3]))
        if not isinstance(statement, Apply) or statement.fn != fn:
            return False
        if statement.args != arguments[len(conditions)]:
            return False
        conditions.append(statement.outs[0])
    selects = combine.body[len(_FUNCTIONS) :]
    pairs = zip(selects, ((new_key, key), (new_position, position)), combine.results, strict=True)
    return all(
        isinstance(select, Select)
        and (select.predicate, select.on_true, select.on_false) == (conditions[-1], *sources)
        and select.out == result
        for select, sources, result in pairs
    )
