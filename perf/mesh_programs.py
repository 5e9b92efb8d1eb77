"""Programs over a mesh, for gpuflow and for JAX: functions, arguments and specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class MeshProgram:
    """One program.

    Attributes:
        name: as in tables.
        function: of ``args``.
        args: NumPy arrays, in any tree.
        specs: the split of each leaf.
        shape, names: of the mesh.
        outs: the splits of results; None follows the arguments.
    """

    name: str
    function: Callable[..., Any]
    args: Any
    specs: Any
    shape: tuple[int, ...] = (8,)
    names: tuple[str, ...] = ("x",)
    outs: Any = None


GRID: dict[str, Any] = {"shape": (4, 2), "names": ("d", "m")}


class Programs:
    """All programs.

    Args:
        api: the library; its modules are ``numpy``, ``nn``, ``lax`` and ``random``.
        constrain: ``(array, spec) -> array``, a sharding constraint over the program's mesh.
        small: for tests that run them.
    """

    def __init__(self, api: Any, constrain: Callable[[Any, Any], Any], small: bool = False) -> None:
        self.api, self.constrain = api, constrain
        self.np, self.nn, self.lax, self.P = api.numpy, api.nn, api.lax, api.P
        self._rng = np.random.default_rng(0)
        sizes = (32, 64, 16, 16, 8, 64, 4) if small else (256, 1024, 64, 128, 8, 4096, 8)
        names = ("width", "hidden", "batch", "length", "heads", "vocabulary", "layers")
        self.sizes = SimpleNamespace(**dict(zip(names, sizes, strict=True)))

    def all(self) -> Iterator[MeshProgram]:
        """Yield the programs, in the order of the table."""
        for part in (
            self.products, self.steps, self.attention, self.lookups, self.loops, self.blocks,
            self.others, self.sums, self.indices, self.made,
        ):  # fmt: skip
            yield from part()

    def normal(self, *shape: int) -> np.ndarray:
        scale = np.sqrt(shape[0] if len(shape) > 1 else 1)
        return (self._rng.normal(size=shape) / scale).astype(np.float32)

    def integers(self, high: int, *shape: int) -> np.ndarray:
        return self._rng.integers(0, high, size=shape).astype(np.int32)

    # --- products and steps ----------------------------------------------------------------

    def products(self) -> Iterator[MeshProgram]:
        P, s = self.P, self.sizes
        x, w = self.normal(s.batch * 8, s.width), self.normal(s.width, s.hidden)

        def product(x: Any, w: Any) -> Any:
            return x @ w

        name = "matmul, contraction split, result whole"
        yield MeshProgram(name, product, (x, w), (P(None, "x"), P("x", None)), outs=P())
        specs, name = (P("x", None), P(None, "y")), "matmul, 2D mesh, rows x, columns y"
        yield MeshProgram(name, product, (x, w), specs, (4, 2), ("x", "y"), P("x", "y"))

    def _loss(self, p: Any, x: Any, y: Any, constrain: Callable[[Any], Any] = lambda a: a) -> Any:
        np_, nn = self.np, self.nn
        h = constrain(nn.gelu(constrain(x @ p["w1"]) + p["b1"]))
        h = constrain(nn.gelu(constrain(h @ p["w2"]) + p["b2"]))
        scores = nn.log_softmax(constrain(h @ p["w3"]))
        return -np_.mean(np_.sum(scores * nn.one_hot(y, 16), axis=1))

    def _descent(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        def step(p: Any, x: Any, y: Any) -> Any:
            value, gradients = self.api.value_and_grad(loss)(p, x, y)
            return self.api.tree.map(lambda a, b: a - 0.1 * b, p, gradients), value

        return step

    def steps(self) -> Iterator[MeshProgram]:
        P, s = self.P, self.sizes
        shapes = {
            "w1": (s.width, s.hidden),
            "b1": (s.hidden,),
            "w2": (s.hidden, s.width),
            "b2": (s.width,),
            "w3": (s.width, 16),
        }
        p = {name: self.normal(*shape) for name, shape in shapes.items()}
        args = (p, self.normal(s.batch * 8, s.width), self.integers(16, s.batch * 8))
        whole = {name: P() for name in p}
        rows = {name: P("x", *[None] * (len(shape) - 1)) for name, shape in shapes.items()}
        columns = {
            name: P("x") if len(shape) == 1 else P(None, "x") for name, shape in shapes.items()
        }
        tensor = {"w1": P(None, "m"), "b1": P("m"), "w2": P("m", None), "b2": P(), "w3": P()}
        step, batch = self._descent(self._loss), (P("x"), P("x"))

        def gathered(p: Any, x: Any, y: Any) -> Any:
            return self._loss(self.api.tree.map(lambda a: self.constrain(a, P()), p), x, y)

        def pinned(p: Any, x: Any, y: Any) -> Any:
            return self._loss(p, x, y, lambda a: self.constrain(a, P("x")))

        def adam(p: Any, mu: Any, nu: Any, x: Any, y: Any) -> Any:
            tree, np_ = self.api.tree, self.np
            value, g = self.api.value_and_grad(self._loss)(p, x, y)
            mu = tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, g)
            nu = tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, nu, g)
            new = tree.map(lambda a, m, v: a - 1e-3 * m / (np_.sqrt(v) + 1e-8), p, mu, nu)
            return new, mu, nu, value

        zeros = {name: np.zeros_like(value) for name, value in p.items()}
        states = ((p, zeros, zeros, *args[1:]), (whole, columns, columns, *batch))
        named = {
            "DP: MLP step, batch split": (step, whole),
            "FSDP columns: MLP step, params split on dim 1": (step, columns),
            "FSDP rows: MLP step, params split on dim 0": (step, rows),
            "FSDP rows + constraint P() on params in the loss": (self._descent(gathered), rows),
            "FSDP rows + constraints on activations": (self._descent(pinned), rows),
        }
        for name, (function, specs) in named.items():
            yield MeshProgram(name, function, args, (specs, *batch), outs=(specs, P()))
        specs = (tensor, P("d"), P("d"))
        name = "DP x TP (4 x 2): MLP step"
        yield MeshProgram(name, step, args, specs, outs=(tensor, P()), **GRID)
        name, outs = "ZeRO-1: Adam step, states split", (whole, columns, columns, P())
        yield MeshProgram(name, adam, *states, outs=outs)

    # --- transformers ------------------------------------------------------------------------

    def _attended(self, q: Any, k: Any, v: Any) -> Any:
        np_ = self.np
        scores = np_.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
        mask = np_.tril(np_.ones((q.shape[1], q.shape[1]), bool))
        scores = np_.where(mask, scores, -1e9)
        return np_.einsum("bhts,bshd->bthd", self.nn.softmax(scores, axis=-1), v)

    def attention(self) -> Iterator[MeshProgram]:
        P, s, grad = self.P, self.sizes, self.api.grad

        def own(q: Any, k: Any, v: Any) -> Any:
            return (self._attended(q, k, v) ** 2).sum()

        def library(q: Any, k: Any, v: Any) -> Any:
            return (self.nn.dot_product_attention(q, k, v, is_causal=True) ** 2).sum()

        def three(batch: int) -> Any:
            shape = (batch, s.length, s.heads, s.width // s.heads)
            return tuple(self.normal(*shape) for _ in range(3))

        args, every = three(4), (0, 1, 2)
        splits = {"sequence": P(None, "x"), "heads": P(None, None, "x")}
        for name, spec in splits.items():
            specs = (spec,) * 3
            title = f"attention fwd, {name} split"
            yield MeshProgram(title, self._attended, args, specs, outs=spec)
            title = f"attention grad, {name} split"
            yield MeshProgram(title, grad(own, argnums=every), args, specs, outs=specs)
        for name, spec in (splits | {"batch": P("x")}).items():
            specs, title = (spec,) * 3, f"nn.dot_product_attention grad, {name} split"
            operands = three(8) if name == "batch" else args
            yield MeshProgram(title, grad(library, argnums=every), operands, specs, outs=specs)

    def blocks(self) -> Iterator[MeshProgram]:
        P, s, constrain = self.P, self.sizes, self.constrain

        def norm(v: Any) -> Any:
            return (v - v.mean(-1, keepdims=True)) / self.np.sqrt(v.var(-1, keepdims=True) + 1e-5)

        def megatron(p: Any, x: Any) -> Any:
            h = constrain(constrain(norm(x), P(None, "x", None)), P())
            h = self.nn.gelu(h @ p["w1"]) @ p["w2"]
            return constrain(h, P(None, "x", None)) + x

        def block(p: Any, x: Any) -> Any:
            b, t, d = x.shape
            shape = (b, t, s.heads, d // s.heads)
            q, k, v = ((norm(x) @ p[name]).reshape(shape) for name in "qkv")
            x = x + self._attended(q, k, v).reshape(b, t, d) @ p["o"]
            return x + self.nn.gelu(norm(x) @ p["w1"]) @ p["w2"]

        def loss(p: Any, x: Any) -> Any:
            return (block(p, x) ** 2).mean()

        gradient, x = self.api.grad(loss), self.normal(8, s.length, s.width)
        p = {name: self.normal(s.width, s.width) for name in "qkvo"}
        p |= {"w1": self.normal(s.width, s.hidden), "w2": self.normal(s.hidden, s.width)}
        two = {"w1": p["w1"], "w2": p["w2"]}
        specs = {"w1": P(None, "x"), "w2": P("x", None)}
        name = "Megatron sequence parallel block, fwd (constraints)"
        args, split = (two, self.normal(4, s.length, s.width)), P(None, "x")
        yield MeshProgram(name, megatron, args, (specs, split), outs=split)
        into, out = P(None, "m"), P("m", None)
        tensor = {"q": into, "k": into, "v": into, "o": out, "w1": into, "w2": out}
        name = "transformer block grad, DP x TP (4 x 2)"
        yield MeshProgram(name, gradient, (p, x), (tensor, P("d")), outs=tensor, **GRID)
        for name, spec in (("columns", P(None, "x")), ("rows", P("x", None))):
            every, title = {key: spec for key in p}, f"transformer block grad, FSDP {name}"
            yield MeshProgram(title, gradient, (p, x), (every, P("x")), outs=every)
        into, out = P("d", "m"), P("m", "d")
        both = {"q": into, "k": into, "v": into, "o": out, "w1": into, "w2": out}
        name = "transformer block grad, FSDP x TP (4 x 2)"
        yield MeshProgram(name, gradient, (p, x), (both, P("d")), outs=both, **GRID)

    # --- lookups -----------------------------------------------------------------------------

    def lookups(self) -> Iterator[MeshProgram]:
        P, s, np_, grad = self.P, self.sizes, self.np, self.api.grad
        table, ids = self.normal(s.vocabulary, s.width), self.integers(s.vocabulary, 8, s.length)

        def look_up(t: Any, i: Any) -> Any:
            return t[i]

        def energy(t: Any, i: Any) -> Any:
            return (t[i] ** 2).sum()

        def entropy(h: Any, t: Any, i: Any) -> Any:
            scores = self.nn.log_softmax(h @ t.T)
            return -np_.mean(np_.take_along_axis(scores, i[..., None], axis=-1))

        whole, split, batch = P(), P("x", None), P("x")
        args = (table, ids)
        name = "embedding t[i], batch split, table whole"
        yield MeshProgram(name, look_up, args, (whole, batch), outs=batch)
        name = "embedding t[i], table on vocabulary, batch split"
        yield MeshProgram(name, look_up, args, (split, batch), outs=batch)
        name = "embedding grad, batch split, table whole"
        yield MeshProgram(name, grad(energy), args, (whole, batch), outs=whole)
        name = "embedding grad, batch split, table on vocabulary"
        yield MeshProgram(name, grad(energy), args, (split, batch), outs=split)
        args = (self.normal(8, s.length, s.width), *args)
        gradient = grad(entropy, argnums=(0, 1))
        name, outs = "cross-entropy, vocabulary split, take_along_axis", (whole, split)
        yield MeshProgram(name, gradient, args, (whole, split, whole), outs=outs)
        name, outs = "cross-entropy, batch split, take_along_axis", (batch, whole)
        yield MeshProgram(name, gradient, args, (batch, whole, batch), outs=outs)

    # --- loops -------------------------------------------------------------------------------

    def loops(self) -> Iterator[MeshProgram]:
        P, s, lax, np_ = self.P, self.sizes, self.lax, self.np

        def layers(ws: Any, x: Any) -> Any:
            def one(h: Any, w: Any) -> Any:
                return self.nn.gelu(h @ w["a"]) @ w["b"] + h, None

            return (lax.scan(one, x, ws)[0] ** 2).mean()

        def step(ws: Any, x: Any) -> Any:
            gradients = self.api.grad(layers)(ws, x)
            return self.api.tree.map(lambda a, b: a - 0.1 * b, ws, gradients)

        def stack(count: int) -> Any:
            a, b = (count, s.width, s.hidden), (count, s.hidden, s.width)
            return {"a": self.normal(*a) * 4, "b": self.normal(*b) * 4}

        x, ws = self.normal(s.batch * 8, s.width), stack(s.layers)
        splits = {
            "batch split": (P(), P(), P("x")),
            "TP": (P(None, None, "x"), P(None, "x", None), P()),
            "FSDP dim 1": (P(None, "x", None), P(None, "x", None), P("x")),
            "FSDP dim 2": (P(None, None, "x"), P(None, None, "x"), P("x")),
            "stacked on layers": (P("x"), P("x"), P("x")),
        }
        for name, (a, b, rows) in splits.items():
            args = (stack(8) if name == "stacked on layers" else ws, x)
            specs, title = {"a": a, "b": b}, f"scan over {s.layers} layers, step: {name}"
            yield MeshProgram(title, step, args, (specs, rows), outs=specs)

        def recurrent(w: Any, u: Any, xs: Any) -> Any:
            start = np_.zeros((xs.shape[1], w.shape[0]), np.float32)
            return lax.scan(lambda h, x: (np_.tanh(h @ w + x @ u), None), start, xs)[0]

        args = (self.normal(64, 64), self.normal(32, 64), self.normal(10, 16, 32))
        name, specs = "RNN from zeros, batch split", (P(), P(), P(None, "x"))
        yield MeshProgram(name, recurrent, args, specs, outs=P("x"))

    # --- single ops --------------------------------------------------------------------------

    def others(self) -> Iterator[MeshProgram]:
        P, np_, lax = self.P, self.np, self.lax
        square, rows = self.normal(64, 64), P("x", None)
        image, stack = self.normal(8, 4, 16, 16), self.normal(16, 8, 8)

        def loop(x: Any) -> Any:
            def body(c: Any) -> Any:
                return np_.tanh(c[0] @ c[0].T @ c[0]), c[1] + 1

            return lax.while_loop(lambda c: c[1] < 5, body, (x, 0))[0]

        def drop(key: Any, x: Any) -> Any:
            return np_.where(self.api.random.bernoulli(key, 0.9, x.shape), x, 0)

        def pool(x: Any) -> Any:
            window = (1, 1, 2, 2)
            return lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")

        def positive(x: Any) -> Any:
            return np_.linalg.cholesky(x @ np_.swapaxes(x, -1, -2) + np_.eye(8))

        functions = {
            "softmax along the split dimension": lambda x: self.nn.softmax(x, axis=0),
            "sort along the split dimension": lambda x: np_.sort(x, axis=0),
            "slice x[1:]-x[:-1] (halo)": lambda x: x[1:] - x[:-1],
            "roll along the split dimension": lambda x: np_.roll(x, 1, axis=0),
            "concatenate along the split dimension": lambda x: np_.concatenate([x, x], axis=0),
            "reverse of the split dimension": lambda x: x[::-1],
            "reshape (64, 64) -> (8, 8, 64)": lambda x: x.reshape(8, 8, 64),
            "fft along the split dimension": lambda x: np_.abs(np_.fft.fft(x, axis=0)),
            "while_loop with a split carry": loop,
            "associative_scan along the split dimension": lambda x: lax.associative_scan(
                lambda a, b: a + b, x, axis=0
            ),
        }
        for name, function in functions.items():
            yield MeshProgram(name, function, (square,), (rows,))
        name = "top_k along the split dimension"
        yield MeshProgram(name, lambda x: lax.top_k(x, 4), (square,), (P(None, "x"),))
        yield MeshProgram("cholesky of a split batch", positive, (stack,), (P("x"),))
        yield MeshProgram("max pool, batch split", pool, (image,), (P("x"),))
        key = np.array([0, 7], np.uint32)
        name = "random.normal added to a split array (dropout)"
        yield MeshProgram(name, drop, (key, square), (P(), P("x")))
        name = "conv, height split (halo)"
        args, specs = (image, self.normal(8, 4, 3, 3)), (P(None, None, "x"), P())
        yield MeshProgram(
            name, lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), args, specs
        )
        name = "einsum MoE dispatch (tokens split -> experts split)"
        args = (self.normal(64, 8, 8), self.normal(64, 32), self.normal(8, 32, 16))
        specs = (P("x", None, None), P("x", None), P("x", None, None))
        yield MeshProgram(name, lambda d, x, w: np_.einsum("tec,tm->ecm", d, x) @ w, args, specs)
        name = "dynamic_update_slice, cache split on sequence"
        args, specs = (
            (self.normal(8, 16, 4), self.normal(8, 1, 4), np.int32(3)),
            (P(None, "x"), P(), P()),
        )
        yield MeshProgram(
            name, lambda c, u, i: lax.dynamic_update_slice(c, u, (0, i, 0)), args, specs
        )
        name = "x.at[i].add(v), batch split indices"
        args = (square, self.integers(64, 32), self.normal(32, 64))
        specs = (P(), P("x"), P("x", None))
        yield MeshProgram(name, lambda x, i, v: x.at[i].add(v), args, specs)

    # --- terms of sums, and lookups by chunks: further cases for tests -----------------------

    def sums(self) -> Iterator[MeshProgram]:
        P, np_ = self.P, self.np
        a, b, c = self.normal(16, 32), self.normal(32, 16), self.normal(16, 16)
        split = (P(None, "x"), P("x"))

        def accumulate(w: Any, xs: Any) -> Any:
            start = np_.zeros((16, 16), np.float32)
            return self.lax.scan(lambda s, x: (s + x.T @ x, None), start, xs)[0] + w

        def twice(a: Any, b: Any) -> Any:
            total = a @ b
            return total * total + np_.sin(total)

        def branches(x: Any, w: Any) -> Any:
            return self.lax.cond(x.sum() > 0, lambda: x @ w, lambda: -(x @ w))

        cases = {
            "two sums": (lambda a, b: (a @ b + (2 * a) @ b).T * 2.0 - (a @ b).T, P("x")),
            "a sum that two ops read": (twice, P(None, "x")),
            "one minus a sum": (lambda a, b: 1.0 - a @ b, P()),
            "a mean of a sum": (lambda a, b: (a @ b).mean(0, keepdims=True) / 3, None),
            "a reshaped sum": (lambda a, b: (a @ b).reshape(4, 4, 16).transpose(2, 0, 1), P("x")),
            "a broadcast sum": (lambda a, b: np_.broadcast_to((a @ b).mean(), (64, 64)), P("x")),
            "the largest of a sum": (lambda a, b: (a @ b).max(0), P("x")),
        }
        for name, (function, outs) in cases.items():
            yield MeshProgram(name, function, (a, b), split, outs=outs)
        name, three = "a sum times a split array", (*split, P("x"))
        yield MeshProgram(name, lambda a, b, c: (a @ b) * c, (a, b, c), three, outs=P(None, "x"))
        yield MeshProgram(
            "a sum over a split array", lambda a, b, c: (a @ b) / (4 + c), (a, b, c), three
        )
        name, args = "sums in a loop", (self.normal(16, 16), self.normal(5, 8, 16))
        yield MeshProgram(name, accumulate, args, (P("x"), P(None, "x")), outs=P("x"))
        specs = (P("y", "x"), P("x"))
        name = "a sum over two axes"
        yield MeshProgram(
            name, lambda a, b: (a @ b).sum(0), (a, b), specs, (4, 2), ("x", "y"), P("x")
        )
        name, args = "branches", (self.normal(8, 16), c)
        yield MeshProgram(name, branches, args, (P("x"), P("x")), outs=P("x"))

    def indices(self) -> Iterator[MeshProgram]:
        P, np_ = self.P, self.np
        table, ids = self.normal(512, 16), self.integers(512, 8, 8)
        wild = self._rng.integers(-700, 1400, size=(8, 8)).astype(np.int32)
        split = (P("x"), P("x"))
        for mode in ("fill", "clip", "wrap"):
            yield MeshProgram(
                f"take with mode {mode}",
                lambda t, i, mode=mode: np_.take(t, i, axis=0, mode=mode),
                (table, wild),
                split,
                outs=P("x"),
            )
        for dtype in ("uint8", "int8", "uint32", "int16"):
            yield MeshProgram(
                f"take with {dtype} indices",
                lambda t, i: np_.take(t, i, axis=0, mode="fill"),
                (table, wild.astype(dtype)),
                (P(("x", "y")), P("y")),
                (4, 2),
                ("x", "y"),
            )
        numbers = (table * 100).astype(np.int32)
        yield MeshProgram("a table of integers", lambda t, i: t[i], (numbers, ids), split)
        gaps = np.where(table > 0.5, np.nan, table).astype(np.float32)
        yield MeshProgram("a table with nan", lambda t, i: t[i], (gaps, ids), split)
        rows, along = self.normal(8, 512), lambda t, i: np_.take_along_axis(t, i, axis=1)
        name = "take_along_axis of split rows"
        yield MeshProgram(name, along, (rows, ids), (P("y", "x"), P("y")), (4, 2), ("x", "y"))
        name, x = "reshapes that split and merge", self.normal(8, 4, 16)
        yield MeshProgram(
            name, lambda x: x.reshape(32, 16).reshape(8, 2, 2, 16) + 1, (x,), (P("x"),)
        )
        name = "a reshape with too few chunks"
        yield MeshProgram(name, lambda x: x.reshape(4, 8, 16) + 1, (x,), (P("x"),))
        stack = self.normal(8, 4, 4) + 4 * np.eye(4, dtype=np.float32)
        name, args = "solve a split stack", (stack, self.normal(8, 4, 2))
        yield MeshProgram(name, lambda x, b: np_.linalg.solve(x, b), args, split)

    # --- arrays that are made where they are read ----------------------------------------------

    def made(self) -> Iterator[MeshProgram]:
        P, np_, random = self.P, self.np, self.api.random
        x, key = self.normal(16, 8, 32), np.array([3, 9], np.uint32)

        def normal(key: Any, x: Any) -> Any:
            return x + random.normal(key, x.shape)

        def several(key: Any, x: Any) -> Any:
            first, second = random.split(key)
            noise = random.uniform(first, x.shape) - random.randint(second, x.shape, -9, 9)
            return x * noise + random.bits(key, x.shape, np.uint8)

        def read_twice(key: Any, x: Any) -> Any:
            mask = random.bernoulli(key, 0.5, x.shape)
            return np_.where(mask, x, 0), mask.sum((0, 1)), np_.where(mask, 0, x).T

        def triangle(x: Any) -> Any:
            rows, columns = np_.arange(16)[:, None], np_.arange(8)[None]
            return np_.where((rows >= columns)[..., None], x, np_.arange(32) * 0.5)

        def counted(x: Any) -> Any:
            return x + np_.arange(16 * 8 * 32, dtype=np.float16).reshape(x.shape)

        def alone(x: Any) -> Any:
            return x, np_.arange(4096) % 7, np_.full((64, 64), 3.0), np_.eye(64)

        grid = {"shape": (4, 2), "names": ("x", "y")}
        for name, function in {"normal": normal, "several": several, "mask": read_twice}.items():
            for spec in (P("x"), P("y", None, "x"), P(("x", "y")), P(None, ("y", "x"))):
                title = f"random numbers, {name}, {spec}"
                yield MeshProgram(title, function, (key, x), (P(), spec), **grid)
        for name, function in {"triangle": triangle, "counted": counted}.items():
            for spec in (P("x", "y"), P(None, "y", "x")):
                yield MeshProgram(f"indices, {name}, {spec}", function, (x,), (spec,), **grid)
        outs = (P("x"), P(("x", "y")), P("y", "x"), P(None, "x"))
        yield MeshProgram("made for results", alone, (x,), (P("x"),), outs=outs, **grid)
