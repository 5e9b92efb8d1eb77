"""Costs of calls: jitted methods, static arguments, arrays on a mesh of one device.

Run it with compare.py to compare its rows with JAX. The checks compare each kind of call with a
call of a plain jitted function, in one process and in turn: it may take 1.2 times as long.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workload import Check, CheckGroup, Workload

_CALLS, _REPEATS, _WARM_UP = 200, 100, 100
_MAX_RATIO = 1.2  # times a call of a plain function
_MAX_FRAME_RATIO = 1.03  # times the function that @explained wraps

Call = Callable[[], Any]
Make = Callable[[Any, Any], Call]


def _pair(jnp: Any) -> tuple[Any, Any]:
    return jnp.arange(100, dtype=jnp.float32), jnp.ones(100, jnp.float32)


def _sharded_pair(jax: Any, jnp: Any) -> tuple[Any, Any, Any]:
    """Two arrays on a mesh of one device, and their sharding."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x, y = _pair(jnp)
    return jax.device_put(x, sharding), jax.device_put(y, sharding), sharding


def make_function(jax: Any, jnp: Any) -> Call:
    """A jitted sum of two arrays."""
    (x, y), f = _pair(jnp), jax.jit(lambda x, y: x + y)
    return lambda: f(x, y)


def make_static_self(jax: Any, jnp: Any) -> Call:
    """A method whose object is a static argument."""

    class Model:
        @functools.partial(jax.jit, static_argnums=0)
        def add(self, x: Any, y: Any) -> Any:
            return x + y

    (x, y), model = _pair(jnp), Model()
    return lambda: model.add(x, y)


def make_tree_self(jax: Any, jnp: Any) -> Call:
    """A method whose object is a tree of arrays."""

    @jax.tree_util.register_pytree_node_class
    class Model:
        def __init__(self, weight: Any) -> None:
            self.weight = weight

        def tree_flatten(self) -> Any:
            return (self.weight,), None

        @classmethod
        def tree_unflatten(cls, _data: Any, children: Any) -> Any:
            return cls(*children)

        @jax.jit
        def add(self, x: Any) -> Any:
            return x + self.weight

    x, y = _pair(jnp)
    model = Model(y)
    return lambda: model.add(x)


def make_keyword(jax: Any, jnp: Any) -> Call:
    """A static argument that is passed by name."""
    (x, y), f = _pair(jnp), jax.jit(lambda x, y, n: x + y * n, static_argnames="n")
    return lambda: f(x, y, n=2)


def make_bound(jax: Any, jnp: Any) -> Call:
    """A jitted bound method."""

    class Model:
        def add(self, x: Any, y: Any) -> Any:
            return x + y

    (x, y), f = _pair(jnp), jax.jit(Model().add)
    return lambda: f(x, y)


def make_partial(jax: Any, jnp: Any) -> Call:
    """A jitted partial function, which holds one of the arrays."""
    x, y = _pair(jnp)
    f = jax.jit(functools.partial(lambda x, y: x + y, y))
    return lambda: f(x)


def make_object(jax: Any, jnp: Any) -> Call:
    """A jitted object with ``__call__``."""

    class Add:
        def __call__(self, x: Any, y: Any) -> Any:
            return x + y

    (x, y), f = _pair(jnp), jax.jit(Add())
    return lambda: f(x, y)


def make_mesh(jax: Any, jnp: Any) -> Call:
    """Arrays on a mesh of one device."""
    (x, y, _), f = _sharded_pair(jax, jnp), jax.jit(lambda x, y: x + y)
    return lambda: f(x, y)


def make_asked(jax: Any, jnp: Any) -> Call:
    """The same, with shardings of arguments and results asked for."""
    x, y, sharding = _sharded_pair(jax, jnp)
    options = {"in_shardings": (sharding, sharding), "out_shardings": sharding}
    f = jax.jit(lambda x, y: x + y, **options)
    return lambda: f(x, y)


def make_eager(jax: Any, jnp: Any) -> Call:
    """A sum of two arrays that is not jitted."""
    del jax
    x, y = _pair(jnp)
    return lambda: x + y


def make_eager_mesh(jax: Any, jnp: Any) -> Call:
    """The same on a mesh of one device."""
    x, y, _ = _sharded_pair(jax, jnp)
    return lambda: x + y


def make_cavity(jax: Any, jnp: Any) -> Call:
    """Fifty steps of a lattice of 9 velocities and 32 x 32 cells, each a call of a method."""
    velocities = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]

    class Cavity:
        @functools.partial(jax.jit, static_argnums=0)
        def stream(self, f: Any) -> Any:
            moved = [jnp.roll(f[k], v, (0, 1)) for k, v in enumerate(velocities)]
            return jnp.stack(moved)

        @functools.partial(jax.jit, static_argnums=0)
        def collide(self, f: Any) -> Any:
            return f + 0.5 * (f.mean(axis=0) - f)

    cavity, start = Cavity(), jnp.ones((9, 32, 32), jnp.float32)

    def run() -> Any:
        f = start
        for _ in range(50):
            f = cavity.collide(cavity.stream(f))
        return f

    return run


_ROWS: tuple[tuple[str, Make, bool], ...] = (
    ("function", make_function, False),
    ("method, static self", make_static_self, True),
    ("method, self a tree", make_tree_self, True),
    ("static argument by name", make_keyword, True),
    ("jit of a bound method", make_bound, True),
    ("jit of a partial function", make_partial, True),
    ("jit of an object", make_object, True),
    ("mesh of one device", make_mesh, True),
    ("mesh of one device, shardings asked for", make_asked, True),
    ("eager sum", make_eager, False),
    ("eager sum, mesh of one device", make_eager_mesh, False),
    ("lattice Boltzmann, 50 steps of two methods", make_cavity, False),
)

WORKLOADS = [Workload(name, make, target=1.0) for name, make, _ in _ROWS]


def _in_turn(calls: dict[str, Call]) -> dict[str, float]:
    """The least seconds of the processor for each call, all timed in turn."""
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    least = dict.fromkeys(calls, float("inf"))
    for number in range(_REPEATS):
        # Every other round in reverse, so that none always follows the same one.
        for name, call in list(calls.items())[:: 1 if number % 2 == 0 else -1]:
            start = time.process_time()
            for _ in range(_CALLS):
                call()
            least[name] = min(least[name], (time.process_time() - start) / _CALLS)
    return least


def measure_kinds(jax: Any, jnp: Any) -> list[Check]:
    """Each kind of call, compared with a plain function."""
    calls = {name: make(jax, jnp) for name, make, is_kind in _ROWS if is_kind or name == "function"}
    least = _in_turn(calls)
    plain = least.pop("function")
    return [
        Check(f"{name}, of a function", _MAX_RATIO, seconds / plain, "x", f"{seconds * 1e6:.2f} us")
        for name, seconds in least.items()
    ]


def measure_frames(jax: Any, jnp: Any) -> list[Check]:
    """Functions with ``@explained``, compared with the functions that it wraps."""
    x, y = _pair(jnp)
    rows: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "lax.concatenate": (jax.lax.concatenate, ((x, y), 0)),
        "jnp.split": (jnp.split, (x, 2)),
        "tree.map": (jax.tree.map, (lambda x: x + y, {"a": x, "b": [y]})),
        "tree.leaves": (jax.tree.leaves, ({"a": x, "b": [y]},)),
    }
    calls: dict[str, Call] = {}
    for name, (function, arguments) in rows.items():
        inner = function.__wrapped__
        calls[name] = functools.partial(function, *arguments)
        calls[f"{name} without"] = functools.partial(inner, *arguments)
    least = _in_turn(calls)
    return [
        Check(
            f"{name} with the frame of @explained, of without",
            _MAX_FRAME_RATIO,
            least[name] / least[f"{name} without"],
            "x",
            f"{least[name] * 1e6:.2f} us",
        )
        for name in rows
    ]


CHECKS = [CheckGroup("kinds of calls", measure_kinds), CheckGroup("frames", measure_frames)]
