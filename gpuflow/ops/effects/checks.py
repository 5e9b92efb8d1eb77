"""Checks of values: equations that report failures, which ``checkify`` collects.

``check_p`` has operands ``(code, *values)``. The code is 0 without a failure, and n if the n-th of
its sites failed. Under vmap the code has the mapped axes, and all values have them in front.

Tests: tests/test_checkify.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray
from gpuflow.core.effects import Effect
from gpuflow.core.lowering import HostCall
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData
from gpuflow.ops.define import define
from gpuflow.ops.layout.batch_dims import batch_to_dim

CHECK = Effect("check")


class JaxRuntimeError(ValueError):
    """A failed check."""


@record
class Site:
    """A position in a program at which a check can fail.

    Attributes:
        category: the kind of check.
        text: a format string for its values.
        structure: of the values, a pair of positional and named arguments.
    """

    category: str
    text: str
    structure: tree.TreeDef

    @property
    def count(self) -> int:
        """Number of its values."""
        return self.structure.num_leaves

    def message(self, values: Sequence[np.ndarray]) -> str:
        """The text for concrete values."""
        args, kwargs = tree.unflatten(self.structure, [_Shown(value) for value in values])
        return self.text.format(*args, **kwargs)


class _Shown(np.ndarray):
    """A value that prints like a gpuflow array in a tree, and like a scalar otherwise."""

    def __new__(cls, value: Any) -> _Shown:
        return np.asarray(value).view(cls)

    def __repr__(self) -> str:
        plain = self.view(np.ndarray)
        return f"Array({np.array2string(plain, separator=', ')}, dtype={self.dtype.name})"

    def __format__(self, spec: str) -> str:
        plain = self.view(np.ndarray)
        return format(plain[()] if plain.ndim == 0 else plain, spec)

    def __str__(self) -> str:
        return str(self.view(np.ndarray))


def plain_site(category: str, text: str, count: int = 0) -> Site:
    """A site whose values have no names."""
    return Site(category, text, tree.flatten(((0,) * count, {}))[1])


def message_of(code: Any, values: Sequence[Any], sites: Sequence[Site]) -> str | None:
    """The failures, one line for each mapped element, or None. All values are concrete."""
    codes = np.asarray(code)
    if not codes.any():
        return None
    hosts = [np.asarray(value) for value in values]
    messages = []
    for index in np.ndindex(codes.shape):
        failed = int(codes[index])
        if failed:
            first = sum(site.count for site in sites[: failed - 1])
            site = sites[failed - 1]
            message = site.message([host[index] for host in hosts[first : first + site.count]])
            where = ", ".join(map(str, index))
            messages.append(f"at mapped index {where}: {message}" if index else message)
    return "\n".join(messages)


def _shape(
    code: ShapedArray, *values: ShapedArray, sites: tuple[Site, ...], debug: bool
) -> list[ShapedArray]:
    del debug
    count = sum(site.count for site in sites)
    check(
        code.dtype == np.int32 and len(values) == count,
        lambda: (
            f"[check] operands must be a code and {count} values; got {code} and "
            f"{len(values)}. Fix: checkify.check(pred, text, *values)."
        ),
    )
    return []


def _impl(xp: Any, code: Any, *values: Any, sites: tuple[Site, ...], debug: bool) -> list[Any]:
    if not debug:
        code, *hosts = [x if xp is np else xp.asnumpy(x) for x in (code, *values)]
        if (text := message_of(code, hosts, sites)) is not None:
            raise JaxRuntimeError(text)
    return []


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    del tangents
    return check_p.bind(*primals, **params), []


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[Any]]:
    batched = [batch_to_dim(x, d, 0, axis.size) for x, d in zip(operands, dims, strict=True)]
    return check_p.bind(*batched, **params), []


def _simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any]:
    """Compiled programs do not collect checks."""
    del definition, build
    check(
        eqn.params["debug"],
        lambda: (
            "[check] programs with checks must be made with checkify; got a traced value. "
            "Fix: jit(checkify.checkify(f)), or debug_check."
        ),
        ValueError,
    )
    return []


check_p = define(
    "check",
    multiple_results=True,
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    batch=_batch,
    effects=lambda params: frozenset({CHECK}),
    simplify=_simplify,
    lower=HostCall(),
)
