"""einsum: sums of products in the index notation.

Tests: tests/numpy/test_numpy_linalg.py, tests/numpy/test_numpy_properties.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.numpy.contractions import Labels, contract, label_sizes, squeeze_ones
from gpuflow.numpy.promotion import check_arraylike, convert, no_out, promote_dtypes
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.select import where as select_where


def _path_finder() -> Any:
    import opt_einsum

    return opt_einsum.contract_path


@composite
def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    _dot_general: Callable[..., Any] = lax.dot_general,
    out_sharding: ShardingLike = None,
) -> Array:
    """Sum of products, as in ``einsum("ij,jk->ik", a, b)``.

    Args:
        subscripts: a letter for each axis, operands separated by commas, the result after ``->``.
            Alternatively, each operand is followed by a list of ints, and the last list is the
            result's.
        operands: arrays; three or more are multiplied in pairs in an optimized order.
        optimize: how to optimize the order, as in opt_einsum.
        precision: precision of float32 products on GPUs, see ``lax.Precision``; None uses the
            setting ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the common dtype.
        _dot_general: function that multiplies, instead of ``lax.dot_general``.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array with the axes of the result's letters; without ``->`` the letters that occur once,
        in alphabetical order.

    Raises:
        ValueError: if the subscripts do not match the operands.
        TypeError: if there are no subscripts or no operands.

    Example:
        >>> a, b = jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1])
        >>> jnp.einsum("ij,j->i", a, b)
        Array([12, 34], dtype=int32)
        >>> jnp.einsum("ii", a)
        Array(5, dtype=int32)
    """
    no_out("einsum", out)
    subscripts, values = _with_letters(subscripts, operands)
    _check_subscripts("einsum", subscripts, values)
    values = check_arraylike("einsum", *values)
    values = promote_dtypes(*values)
    labels, out_labels = parse(subscripts, [aval_of(x).ndim for x in values])
    sizes = label_sizes("einsum", values, labels)
    terms = [_one_axis_a_label(*term) for term in zip(values, labels, strict=True)]
    for pair in _path(terms, out_labels, optimize):
        selected = [terms[k] for k in pair]
        terms = [term for k, term in enumerate(terms) if k not in pair]
        needed = {label for _, term_labels in terms for label in term_labels} | set(out_labels)
        options = precision, preferred_element_type, _dot_general
        terms.append(_combine(selected, needed, sizes, options))
    value, term_labels = _sum_out(*terms[0], set(out_labels))
    result = lax.transpose(value, [term_labels.index(k) for k in out_labels if k in term_labels])
    out = convert(result, preferred_element_type) if preferred_element_type else result
    return in_sharding("einsum", out, out_sharding)


def _check_subscripts(name: str, subscripts: Any, operands: Sequence[Any]) -> None:
    check(
        isinstance(subscripts, str) and len(operands) > 0,
        lambda: (
            f"[{name}] subscripts must be a string and operands must follow; "
            f"got {type(subscripts).__name__} and {len(operands)} operands. "
            f"Fix: jnp.{name}('ij,jk->ik', a, b)."
        ),
        TypeError,
    )


def _with_letters(subscripts: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """``(x, [0, 1], y, [1, 2], [0, 2])`` as ``("ab,bc->ac", (x, y))``."""
    if isinstance(subscripts, str) or not operands or not isinstance(operands[0], (list, tuple)):
        return subscripts, operands
    entries = [subscripts, *operands]
    arrays, sublists = entries[: len(entries) // 2 * 2 : 2], entries[1::2]
    if len(entries) % 2:
        sublists.append(entries[-1])
    labels = sorted({k for ints in sublists for k in ints if k is not Ellipsis})
    letters = {k: chr(ord("a") + n) for n, k in enumerate(labels)}
    terms = ["".join("..." if k is Ellipsis else letters[k] for k in ints) for ints in sublists]
    text = ",".join(terms[: len(arrays)])
    return (f"{text}->{terms[-1]}" if len(entries) % 2 else text), arrays


def einsum_path(
    subscripts: Any, /, *operands: Any, optimize: Any = "auto"
) -> tuple[list[Any], Any]:
    """Return the order in which ``einsum`` multiplies its operands.

    Args:
        subscripts: as for ``einsum``: letters, or the first operand if operands are followed by
            lists of ints.
        operands: arrays.
        optimize: how to optimize the order, as in opt_einsum; False multiplies from left to right.

    Returns:
        A list of the operands to combine in each step, and opt_einsum's description of it.

    Raises:
        ValueError: if the subscripts do not match the operands.

    Example:
        >>> a, b, c = jnp.ones((2, 50)), jnp.ones((50, 50)), jnp.ones((50, 3))
        >>> jnp.einsum_path("ij,jk,kl->il", a, b, c)[0]
        [(0, 1), (0, 1)]
    """
    subscripts, arrays = _with_letters(subscripts, operands)
    _check_subscripts("einsum_path", subscripts, arrays)
    arrays = check_arraylike("einsum_path", *arrays)
    strategy = "auto" if optimize is True else "naive" if optimize is False else optimize
    shapes = [aval_of(x).shape for x in arrays]
    parse(subscripts, [len(shape) for shape in shapes])  # its errors name the operand
    return _path_finder()(subscripts, *shapes, shapes=True, optimize=strategy)


def parse(subscripts: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of each operand's axes and of the result's.

    ``...`` becomes negative ints, one for each of its axes: -1 is the last one.
    """
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    check(
        len(terms) == len(ranks),
        lambda: (
            f"[einsum] there must be one term for each operand; got {len(terms)} terms in "
            f"{subscripts!r} for {len(ranks)} operands. Fix: separate terms by commas."
        ),
        ValueError,
    )
    labels = [_labels(term, rank, subscripts) for term, rank in zip(terms, ranks, strict=True)]
    shared = ([k for k in operand_labels if isinstance(k, int)] for operand_labels in labels)
    ellipsis = max(shared, key=len)
    count = Counter(k for operand_labels in labels for k in operand_labels)
    if not arrow:
        once = sorted(k for k, n in count.items() if n == 1 and isinstance(k, str))
        return labels, (*ellipsis, *once)
    before, dots, after = output.partition("...")
    result = (*before, *(ellipsis if dots else ()), *after)
    check(
        set(result) <= set(count) and len(set(result)) == len(result),
        lambda: (
            "[einsum] labels of the result must be distinct labels of the operands; "
            f"got {subscripts!r}. Fix: remove the others after '->'."
        ),
        ValueError,
    )
    return labels, result


def _labels(term: str, rank: int, subscripts: str) -> Labels:
    before, dots, after = term.partition("...")
    ellipsis_rank = rank - len(before) - len(after)
    fits = ellipsis_rank >= 0 if dots else ellipsis_rank == 0
    check(
        (fits and (before + after).isalpha()) or (fits and not before + after),
        lambda: (
            f"[einsum] a term must have one letter for each axis; got {term!r} in {subscripts!r} "
            f"for an array of rank {rank}. Fix: use {rank} letters, or '...'."
        ),
        ValueError,
    )
    return (*before, *range(-ellipsis_rank, 0), *after)


def _one_axis_a_label(x: Any, labels: Labels) -> tuple[Any, Labels]:
    """Take diagonals, so that no label occurs twice: mask, then sum the second axis away."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            shape = aval_of(x).shape
            rows, columns = (lax.iota(np.int32, shape, d) for d in (first, second))
            zero = convert(0, aval_of(x).dtype)
            x = _sum_axes(select_where(lax.eq(rows, columns), x, zero), (second,))
            labels = labels[:second] + labels[second + 1 :]
    return x, labels


def _path(
    terms: Sequence[tuple[Any, Labels]], out_labels: Labels, optimize: Any
) -> list[tuple[int, ...]]:
    """Operand positions to combine in each step; results are appended."""
    if len(terms) < 3:
        return [(0, 1)] if len(terms) == 2 else []
    letters: dict[Any, str] = {}

    def spell(labels: Labels) -> str:
        return "".join(letters.setdefault(k, chr(ord("a") + len(letters))) for k in labels)

    inputs = ",".join(spell(labels) for _, labels in terms)
    shapes = [aval_of(x).shape for x, _ in terms]
    strategy = "auto" if optimize is True else optimize
    path, _ = _path_finder()(
        f"{inputs}->{spell(out_labels)}", *shapes, shapes=True, optimize=strategy
    )
    return [tuple(step) for step in path]


def _sum_out(x: Any, labels: Labels, needed: set[Any]) -> tuple[Any, Labels]:
    """Sum over labels that are not needed later."""
    gone = tuple(d for d, label in enumerate(labels) if label not in needed)
    return _sum_axes(x, gone), tuple(k for k in labels if k in needed)


def _sum_axes(x: Any, axes: tuple[int, ...]) -> Any:
    """Sum over axes in the operand's dtype; the sum of bools is ``or``."""
    return (lax.reduce_or if aval_of(x).dtype == np.bool_ else lax.reduce_sum)(x, axes)


def _combine(
    terms: Sequence[tuple[Any, Labels]],
    needed: set[Any],
    sizes: dict[Any, int],
    options: tuple[Any, ...],
) -> tuple[Any, Labels]:
    """Multiply terms from left to right and sum over labels that are not needed later."""
    x, x_labels = squeeze_ones(*terms[0], sizes)
    for k, term in enumerate(terms[1:], 1):
        y, y_labels = squeeze_ones(*term, sizes)
        later = needed | {label for _, term_labels in terms[k + 1 :] for label in term_labels}
        x, x_labels = _sum_out(x, x_labels, later | set(y_labels))
        y, y_labels = _sum_out(y, y_labels, later | set(x_labels))
        remaining = [label for label in x_labels if label in later]
        remaining += [label for label in y_labels if label in later and label not in x_labels]
        x = contract(x, x_labels, y, y_labels, tuple(remaining), *options)
        x_labels = tuple(remaining)
    return x, x_labels
