"""Loop programs (loops.py) made of gpuflow's loops, branches and vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzzing.loops import DRAWS, MAX_TRIPS, Block, Kind, LoopProgram, Statement

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def _gather(table: Any, index: Any) -> Any:
    return table[jnp.clip(index, 0, table.shape[0] - 1)]


def _put(x: Any, index: Any, value: Any, add: bool) -> Any:
    place = x.at[jnp.clip(index, 0, x.shape[0] - 1)]
    return place.add(value) if add else place.set(value)


OPS: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "min": jnp.minimum,
    "max": jnp.maximum, "neg": jnp.negative, "sin": jnp.sin, "tanh": jnp.tanh, "exp": jnp.exp,
    "abs": jnp.abs, "scale": lambda x, by: x * by, "mod": lambda x, by: x % by,
    "div": lambda x, by: x // by, "clip": lambda x, low, high: jnp.clip(x, low, high),
    "sum": lambda x: x.sum(0), "largest": lambda x: x.max(0),
    "lt": jnp.less, "eq": jnp.equal, "and": jnp.logical_and, "or": jnp.logical_or,
    "xor": jnp.logical_xor, "not": jnp.logical_not, "where": jnp.where,
    "above": lambda x, limit: x > limit, "steps": lambda x: jnp.floor(2 * x),
    "gather": _gather, "put": _put, "number": lambda x: x, "int": lambda x: x,
    "cast": lambda x: x, "constant": lambda value: value, "read": lambda x, at: x[at],
}  # fmt: skip


def draw(key: Any, number: Any, kind: str) -> Any:
    """A random number of ``kind`` from a key and an integer."""
    key = gf.random.fold_in(key, number)
    if kind == "uniform":
        return gf.random.uniform(key)
    return (gf.random.bits(key) >> np.uint32(28)).astype(np.int32)


@dataclass(frozen=True)
class _Builder:
    """Runs one lane of gpuflow's values; in a program without vmap wide values have ``sizes``."""

    sizes: tuple[int, ...]

    def fit(self, x: Any, kind: Kind) -> Any:
        shape = (*self.sizes, *kind.shape) if kind.wide else kind.shape
        return jnp.broadcast_to(jnp.asarray(x).astype(kind.dtype), shape)

    def block(self, block: Block, args: Sequence[Any], outer: dict[int, Any]) -> list[Any]:
        values = {**outer, **dict(zip(block.params, args, strict=True))}
        for s in block.statements:
            outs = self.statement(s, [values[k] for k in s.args], values)
            values.update(zip(s.outs, outs, strict=True))
        return [values[k] for k in block.results]

    def statement(self, s: Statement, args: list[Any], values: dict[int, Any]) -> list[Any]:
        if s.op in LOOPS:
            return list(LOOPS[s.op](self, s, args, values))
        if s.op in ("bits", "uniform"):
            out = draw(args[0], jnp.clip(args[1], 0, DRAWS - 1), s.op)
        else:
            out = OPS[s.op](*args, **s.params)
        return [self.fit(out, s.kinds[0])]

    def fitted(
        self, block: Block, kinds: Sequence[Kind], args: Sequence[Any], values: dict[int, Any]
    ) -> list[Any]:
        """The results of a block in the types that a loop or branch has for them."""
        outs = self.block(block, args, values)
        return [self.fit(x, k) for x, k in zip(outs, kinds, strict=True)]

    def fori(self, s: Statement, args: list[Any], values: dict[int, Any]) -> Any:
        low, high = s.params["low"], s.params["high"]
        if high is None:
            limit, *args = args
            low, high = np.int32(low), jnp.clip(limit, 0, MAX_TRIPS)
        init = [self.fit(x, k) for x, k in zip(args, s.kinds, strict=True)]
        return lax.fori_loop(
            low, high, lambda i, v: self.fitted(s.blocks[0], s.kinds, [i, *v], values), init
        )

    def while_(self, s: Statement, args: list[Any], values: dict[int, Any]) -> Any:
        limit, *args = args
        limit, kinds = jnp.clip(limit, 0, MAX_TRIPS), s.kinds[1:]
        condition, body = s.blocks

        def go_on(carry: list[Any]) -> Any:
            return (carry[0] < limit) & self.block(condition, carry, values)[0]

        def step(carry: list[Any]) -> list[Any]:
            return [carry[0] + 1, *self.fitted(body, kinds, carry, values)]

        init = [np.int32(0), *[self.fit(x, k) for x, k in zip(args, kinds, strict=True)]]
        return lax.while_loop(go_on, step, init, max_steps=s.params["max_steps"])

    def scan(self, s: Statement, args: list[Any], values: dict[int, Any]) -> list[Any]:
        count = s.params["carries"]
        rows = [Kind(k.shape[1:], k.dtype, k.wide) for k in s.kinds[count:]]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            kinds = [*s.kinds[:count], *rows]
            outs = self.fitted(s.blocks[0], kinds, [*carry, *x], values)
            return outs[:count], outs[count:]

        init = [self.fit(x, k) for x, k in zip(args, s.kinds[:count], strict=False)]
        carry, ys = lax.scan(
            step, init, args[count:], s.params["length"], reverse=s.params["reverse"]
        )
        # Rows of all lanes are stacked in front of them; a kind says what one lane has.
        return [*carry, *[_behind(y) if k.wide else y for y, k in zip(ys, rows, strict=True)]]

    def switch(self, s: Statement, args: list[Any], values: dict[int, Any]) -> Any:
        choice, *args = args
        ways = [
            lambda *xs, block=block: self.fitted(block, s.kinds, xs, values) for block in s.blocks
        ]
        if s.op == "cond":
            return lax.cond(choice, ways[1], ways[0], *args)
        return lax.switch(choice, ways, *args)


def _behind(y: Any) -> Any:
    return jnp.moveaxis(y, 0, -1)


LOOPS = {
    "fori": _Builder.fori,
    "while": _Builder.while_,
    "scan": _Builder.scan,
    "cond": _Builder.switch,
    "switch": _Builder.switch,
}


def build(program: LoopProgram, operands: Sequence[Any]) -> list[Any]:
    """The outputs of a program, by gpuflow; seeds of keys stand where operands are keys."""
    operands = [_before(i.before, x) for i, x in zip(program.inputs, operands, strict=True)]
    builder = _Builder(() if program.vmapped else program.sizes)

    def lane(*args: Any) -> list[Any]:
        args = [
            gf.random.key(x) if i.kind.dtype == "key" else jnp.asarray(x)
            for i, x in zip(program.inputs, args, strict=True)
        ]
        return builder.block(program.block, args, {})

    function = lane
    if program.vmapped:
        for axis in reversed(range(len(program.sizes))):
            axes = tuple(0 if i.mapped[axis] else None for i in program.inputs)
            function = gf.vmap(function, in_axes=axes)
    outs = function(*operands)
    whole = [(*program.sizes, *kind.shape) for kind in program.kinds]
    if not program.vmapped:
        outs = [jnp.broadcast_to(x, shape) for x, shape in zip(outs, whole, strict=True)]
    return [_after(what, x) for what, x in zip(program.after, outs, strict=True)]


def _before(what: str, x: Any) -> Any:
    return {"none": lambda: x, "sin": lambda: jnp.sin(2 * x), "next": lambda: x + 1}[what]()


def _after(what: str, x: Any) -> Any:
    ways = {
        "none": lambda: x,
        "sum": lambda: x.sum(),
        "rows": lambda: x.sum(-1),
        "affine": lambda: 3 * x - 1,
        "not": lambda: ~x,
    }
    return ways[what]()
