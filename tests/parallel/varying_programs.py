"""Programs in shard_map, for a library with JAX's names: what varies, and what derivatives it has.

Each is a function of nothing that gives arrays, and in ``seen`` the axes along which values of its
body vary. `tests/data/make_varying_values.py` stores what JAX gives; `test_varying.py` compares.
"""

import numpy as np

X = np.arange(1, 9, dtype=np.float32)
W = np.linspace(-1, 2, 8, dtype=np.float32)
M = np.arange(32, dtype=np.float32).reshape(8, 4) / 8


def programs(jax, jnp, lax):
    """Each program as a function of nothing; ``jax`` is the library, the others its modules."""
    return {
        f"{group}: {name}": program
        for group, made in (
            ("types", _types),
            ("loops", _loops),
            ("branches", _branches),
            ("inside", _inside),
            ("outside", _outside),
            ("rules", _rules),
            ("unchecked", _unchecked),
            ("refused", _refused),
        )
        for name, program in made(_Tools(jax, jnp, lax)).items()
    }


class _Tools:
    """The modules, a mesh of one axis and one of two, and ways to run a body."""

    def __init__(self, jax, jnp, lax):
        self.jax, self.jnp, self.lax, self.P = jax, jnp, lax, jax.P
        devices = np.array(jax.devices())
        self.line = jax.sharding.Mesh(devices, ("x",))
        self.grid = jax.sharding.Mesh(devices.reshape(4, 2), ("x", "y"))

    def along(self, value):
        """The axes along which a value varies."""
        return "".join(sorted(self.jax.typeof(value).mat.varying)) or "none"

    def run(self, body, ins, outs, *args, mesh=None, jit=False, **options):
        """Results of a body, and what it notes with its first argument."""
        seen = []

        def note(value):
            seen.append(self.along(value))
            return value

        call = self.jax.shard_map(
            lambda *values: body(note, *values),
            mesh=mesh or self.line,
            in_specs=ins,
            out_specs=outs,
            **options,
        )
        result = (self.jax.jit(call) if jit else call)(*args)
        return result, seen

    def mapped(self, body, ins, outs, mesh=None, **options):
        """The body over a mesh."""
        return self.jax.shard_map(
            body, mesh=mesh or self.line, in_specs=ins, out_specs=outs, **options
        )


def _types(t):
    jax, jnp, lax, P, run = t.jax, t.jnp, t.lax, t.P, t.run
    x, y, xy = P("x"), P("y"), P("x", "y")

    def ops(note, a, b):
        note(a), note(b), note(a + b), note(jnp.sin(b)), note(jnp.ones(3)), note(jnp.zeros_like(a))
        note(a * 2), note(lax.axis_index("x").astype(a.dtype) + b), note(lax.axis_index("y"))
        return note(a + b)

    def collectives(note, a):
        note(lax.psum(a, "x")), note(lax.psum(a, "y")), note(lax.psum(a, ("x", "y")))
        note(lax.pmean(a, "x")), note(lax.pmax(a, "x")), note(lax.pmin(a, ("y",)))
        note(lax.all_gather(a, "x")), note(lax.all_gather(a, "y", axis=1, tiled=True))
        note(lax.all_gather(a, "x", to="invarying"))
        note(lax.all_gather(a, ("x", "y"), to="invarying"))
        note(lax.psum_scatter(jnp.tile(a, (4, 1)), "x", tiled=True))
        note(lax.ppermute(a, "x", [(0, 1), (1, 0)]))
        note(lax.all_to_all(jnp.tile(a, (4, 1)), "x", 0, 0, tiled=True))
        return lax.psum(a, "x")

    def shared(note, a):
        note(a), note(lax.psum(a, "x")), note(lax.all_gather(a, "x")), note(lax.pmax(a, "x"))
        note(lax.psum_scatter(jnp.tile(a, 8), "x", tiled=True))
        note(lax.ppermute(a, "x", [(0, 1), (1, 0)]))
        note(lax.all_to_all(jnp.tile(a, 8), "x", 0, 0, tiled=True))
        note(lax.pcast(a, "x", to="varying"))
        return a

    def jitted(note, a, b):
        return jax.jit(lambda u, v: (note(u + 1), note(v), note(u + v))[2])(a, b)

    def closed(note, a, b):
        return jax.jit(lambda u: note(note(u) + a))(b)

    def mapped(note, a, b):
        return jax.vmap(lambda u: note(note(u) * b.sum()))(a)

    def differentiated(note, a, b):
        note(jax.grad(lambda u: (u * a).sum())(a))
        note(jax.grad(lambda u: (u.sum() * a).sum())(b))
        note(jax.jvp(jnp.sin, (b,), (b,))[1])
        return note(jax.value_and_grad(lambda u: note(note(u) ** 2).sum())(a)[1])

    def shaped(note, a, b):
        note(jax.eval_shape(lambda u, v: u + v.sum(), a, b))
        note(jax.eval_shape(lambda u: lax.psum(u, "x"), a))
        return a

    def places(note, a):
        note(jnp.where(a > 0, a, 0)), note(a[0]), note(a.at[0].set(1))
        note(jnp.concatenate([a, a]))
        note(jnp.sort(a)), note(jnp.cumsum(a)), note(a.astype(int)), note(a.argmax())
        note(jnp.full_like(a, 2)), note(jnp.zeros_like(a, shape=(3,))), note(lax.full_like(a, 1))
        note(jnp.zeros(2)), note(jnp.full((2,), a[0])), note(jnp.empty_like(a))
        note(jnp.linalg.norm(a)), note(jnp.arange(3)), note(a.shape[0])
        note(jax.nn.softmax(a)), note(jnp.stack([a, jnp.ones_like(a)])), note(a.reshape(-1, 1))
        return a

    return {
        "of operations": lambda: run(ops, (x, P(None)), x, X, X[:1], mesh=t.grid),
        "of operations in jit": lambda: run(
            lambda n, a, b: jax.jit(lambda u, v: ops(n, u, v))(a, b),
            (x, P()),
            x,
            X,
            X[:2],
            mesh=t.grid,
        ),
        "of collectives": lambda: run(collectives, xy, P(None, "y"), M, mesh=t.grid),
        "of collectives in jit": lambda: run(
            lambda n, a: jax.jit(lambda u: collectives(n, u))(a), xy, P(None, "y"), M, mesh=t.grid
        ),
        "of shared values": lambda: run(shared, P(), P(), X),
        "of shared values in jit": lambda: run(
            lambda n, a: jax.jit(lambda u: shared(n, u))(a), P(), P(), X
        ),
        "in jit": lambda: run(jitted, (x, P()), x, X, X[:2], mesh=t.grid),
        "closed over": lambda: run(closed, (x, P()), x, X, X[:2], mesh=t.grid),
        "in vmap": lambda: run(mapped, (x, y), P(("x", "y")), X, X, mesh=t.grid),
        "of derivatives": lambda: run(differentiated, (x, P()), x, X, X[:2], mesh=t.grid),
        "of shapes": lambda: run(shaped, (x, y), x, X, X, mesh=t.grid),
        "of places": lambda: run(places, x, x, X, mesh=t.grid),
        "of places in jit": lambda: run(
            lambda n, a: jax.jit(lambda u: places(n, u))(a), x, x, X, mesh=t.grid
        ),
        "unchecked": lambda: run(lambda n, a: n(a) + 1, x, x, X, check_vma=False),
        "unchecked in jit": lambda: run(
            lambda n, a: jax.jit(lambda u: n(u) + 1)(a), x, x, X, check_vma=False
        ),
        "of one axis of two": lambda: run(
            lambda n, a: n(n(a) + lax.axis_index("x")), x, x, X, mesh=t.grid, axis_names={"x"}
        ),
    }


def _loops(t):
    jax, jnp, lax, P, run = t.jax, t.jnp, t.lax, t.P, t.run
    x = P("x")

    def scan(note, a):
        carry, ys = lax.scan(lambda c, s: (note(c) + s, note(c * s)), a.sum(), jnp.arange(3.0))
        return carry[None], note(ys)[:1]

    def scan_xs(note, a):
        return lax.scan(lambda c, s: (note(c), note(s) * 2), jnp.float32(0), a)[1]

    def scan_total(note, a):
        return lax.scan(lambda c, s: (note(c + lax.psum(s, "x")), None), jnp.float32(0), a)[0]

    def cast(note, a):
        zero = lax.pcast(jnp.zeros(()), "x", to="varying")
        return lax.scan(lambda c, s: (note(c + s), None), zero, a)[0][None]

    def cast_inside(note, a):
        def step(c, _):
            return lax.pcast(lax.psum(note(c), "x"), "x", to="varying"), None

        return lax.scan(step, a, None, length=2)[0]

    def fori(note, a):
        return lax.fori_loop(0, 3, lambda k, c: note(c) * (1 + note(k)), a)

    def loop(note, a):
        return lax.while_loop(lambda c: note(c[0]) < 3, lambda c: (c[0] + 1, c[1] * 2), (0, a))[1]

    def loop_total(note, a):
        def step(c):
            return c[0] + lax.psum(note(a), "x"), note(c[1]) + 1

        return lax.while_loop(lambda c: c[0].sum() < 99, step, (jnp.zeros(2), 0))[0]

    def each(note, a):
        return lax.map(lambda v: note(v) ** 2, a)

    def associative(note, a):
        return note(lax.associative_scan(jnp.add, a))

    def grad_of_scan(note, a):
        def total(w):
            return lax.scan(lambda c, s: (c * note(w) + s, None), a.sum() * 0, a)[0]

        return jax.grad(total)(jnp.float32(2))

    def grad_of_map(note, a):
        return jax.grad(lambda w: lax.map(lambda v: note(v * w), a).sum())(jnp.float32(2))

    def nested(note, a):
        def outer(c, s):
            return lax.scan(lambda d, u: (note(d) + u * s, None), c, a)[0], note(s)

        return lax.scan(outer, a.sum(), jnp.arange(2.0))[0][None]

    def zeros(note, a):
        return lax.scan(lambda c, s: (note(c + s), None), jnp.zeros_like(a[:1]), a)[0]

    bodies = {
        "scan": (scan, (x, x)),
        "scan of zeros_like": (zeros, x),
        "scan over blocks": (scan_xs, x),
        "scan of totals": (scan_total, P()),
        "scan of a cast": (cast, x),
        "cast in a scan": (cast_inside, x),
        "fori": (fori, x),
        "while": (loop, x),
        "while of totals": (loop_total, P()),
        "map": (each, x),
        "associative": (associative, x),
        "grad of scan": (grad_of_scan, P()),
        "grad of map": (grad_of_map, P()),
        "nested": (nested, x),
    }
    functions = {
        "cumulative": jnp.cumsum,
        "sorted": jnp.sort,
        "inverse": lambda a: jnp.interp(a, X, W),
        "searched": lambda a: jnp.searchsorted(X, a),
        "quantile": lambda a: jnp.median(a)[None],
        "polynomial": lambda a: jnp.polyval(jnp.arange(3.0), a),
        "gamma": lambda a: jax.scipy.special.gammainc(a, 2.0),
        "zeta": lambda a: jax.scipy.special.polygamma(1, a),
        "bessel": lambda a: jax.scipy.special.i0e(a),
        "logsumexp": lambda a: jax.nn.logsumexp(a)[None],
        "normal": lambda a: jax.random.normal(jax.random.key(a[0].astype(int)), (2,)),
        "poisson draws": lambda a: jax.random.poisson(jax.random.key(0), a) * 0,
        "choice": lambda a: jax.random.permutation(jax.random.key(1), a) * 0,
        "product": lambda a: (a[:, None] @ a[None]).sum(1),
        "inverse matrix": lambda a: jnp.linalg.inv(jnp.eye(2) * a.sum())[0],
        "solution": lambda a: jnp.linalg.solve(jnp.eye(2) * a.sum(), jnp.ones(2)),
        "eigen": lambda a: jnp.linalg.eigvalsh(jnp.eye(2) * a.sum()),
        "exponential": lambda a: jax.scipy.linalg.expm(jnp.eye(2) * a[0] / 9)[0],
        "remainder": lambda a: jnp.divmod(a, 3)[1],
        "rolled": lambda a: jnp.roll(a, 1),
        "inserted": lambda a: jnp.insert(a, 0, 0.0)[:2],
        "histogram": lambda a: jnp.histogram(a, bins=2, range=(0, 9))[0],
        "unique": lambda a: jnp.unique(a, size=2),
        "convolved": lambda a: jnp.convolve(a, a, "same"),
        "repeated": lambda a: jnp.repeat(a, 2),
        "nonzero": lambda a: jnp.nonzero(a, size=2)[0],
        "top": lambda a: lax.top_k(a, 1)[0],
        "fourier": lambda a: jnp.fft.fft(a).real,
    }
    programs = {
        f"{name}{' in jit' * jit}": lambda body=body, outs=outs, jit=jit: run(
            body, x, outs, np.concatenate([X, X]), jit=jit
        )
        for name, (body, outs) in bodies.items()
        for jit in (False, True)
    }
    for name, function in functions.items():
        programs[f"own {name}"] = lambda function=function: run(
            lambda note, a: note(function(a)), x, x, np.concatenate([X, X])
        )
    return programs


def _branches(t):
    jax, jnp, lax, P, run = t.jax, t.jnp, t.lax, t.P, t.run
    x = P("x")
    bodies = {
        "cond of varying": lambda n, a, s: lax.cond(
            s.sum() > 0, lambda v: n(v) + 1, lambda v: v, a
        ),
        "cond by a varying choice": lambda n, a, s: lax.cond(
            a.sum() > 9, lambda v: n(v) + 1, lambda v: v * 2, a
        ),
        "cond of shared": lambda n, a, s: (
            a + lax.cond(s.sum() > 0, lambda v: n(v) + 1, lambda v: v, s).sum()
        ),
        "cond with a total": lambda n, a, s: (
            a
            + lax.cond(s.sum() > 0, lambda v: n(lax.psum(v, "x")), lambda v: n(lax.pmax(v, "x")), a)
        ),
        "switch": lambda n, a, s: lax.switch(1, [lambda v: v, lambda v: n(v) * 3], a),
        "switch by index": lambda n, a, s: lax.switch(
            lax.axis_index("x") % 2, [lambda v: v, lambda v: n(v) * 3], a
        ),
        "cond of a cast": lambda n, a, s: lax.cond(
            s.sum() > 0, lambda: n(lax.pcast(s[:1], "x", to="varying")), lambda: n(a)
        ),
        "cond closes over": lambda n, a, s: lax.cond(s.sum() > 0, lambda: n(a + 1), lambda: a),
        "checkpoint": lambda n, a, s: jax.checkpoint(lambda v: n(jnp.sin(n(v))))(a),
        "grad of checkpoint": lambda n, a, s: (
            a * jax.grad(lambda v: jax.checkpoint(lambda u: jnp.sin(n(u)).sum())(v))(s).sum()
        ),
        "grad of cond": lambda n, a, s: (
            a
            + jax.grad(
                lambda v: lax.cond(
                    a.sum() > 9, lambda u: n(u).sum() * a.sum(), lambda u: u.sum() * 2 * a.sum(), v
                )
            )(s).sum()
        ),
    }
    return {
        f"{name}{' in jit' * jit}": lambda body=body, jit=jit: run(
            body, (x, P()), x, X, X[:2], jit=jit
        )
        for name, body in bodies.items()
        for jit in (False, True)
    }


def _inside(t):
    """Derivatives in the body."""
    jax, jnp, lax, P, mapped = t.jax, t.jnp, t.lax, t.P, t.mapped
    x = P("x")
    weights = W[:2]
    # A loss of parameters that all share and of a block.
    losses = {
        "own": lambda w, a: (a * w.sum()).sum(),
        "psum": lambda w, a: lax.psum((a * w.sum()).sum(), "x"),
        "pmean": lambda w, a: lax.pmean(jnp.sin(a * w.sum()).sum(), "x"),
        "shared": lambda w, a: (w**2).sum() + lax.psum(a.sum(), "x"),
        "pmax": lambda w, a: lax.psum(jnp.sin(w.sum() * a).sum(), "x") ** 2,
        "gathered parameters": lambda w, a: (lax.all_gather(w, "x") * a).sum(),
        "gathered block": lambda w, a: (lax.all_gather(w * a.sum(), "x") ** 2).sum(),
        "one of gathered": lambda w, a: lax.all_gather(w * a.sum(), "x", to="invarying")[3].sum(),
        "total of gathered": lambda w, a: lax.psum(
            lax.all_gather(w * a.sum(), "x", tiled=True).sum(), "x"
        ),
        "scattered": lambda w, a: (
            lax.psum_scatter(jnp.tile(w, 4) * a.sum(), "x", tiled=True) ** 2
        ).sum(),
        "permuted": lambda w, a: (
            lax.ppermute(w * a.sum(), "x", [(k, (k + 1) % 8) for k in range(8)]) * a.sum()
        ).sum(),
        "exchanged": lambda w, a: (
            lax.all_to_all(jnp.tile(w, 4) * a.sum(), "x", 0, 0, tiled=True) * jnp.arange(8.0)
        ).sum(),
        "cast": lambda w, a: (lax.pcast(w, "x", to="varying") * a.sum()).sum(),
        "index": lambda w, a: (w * lax.axis_index("x")).sum(),
        "scan": lambda w, a: lax.scan(lambda c, s: (c + (w * s).sum(), None), a.sum() * 0, a)[0],
        "cond": lambda w, a: lax.cond(
            a.sum() > 8, lambda: (w * a.sum()).sum(), lambda: (w.sum() + a * 0).sum()
        ),
        "jit": lambda w, a: jax.jit(lambda w, a: lax.psum((w * a.sum()).sum(), "x"))(w, a),
        "twice": lambda w, a: lax.psum(lax.psum((w * a.sum()).sum(), "x") ** 2, "x") / 1e3,
        "vmap": lambda w, a: jax.vmap(lambda u: lax.psum(u * a.sum(), "x"))(w).sum(),
        "remat": lambda w, a: jax.checkpoint(lambda w: lax.psum(jnp.sin(w * a.sum()).sum(), "x"))(
            w
        ),
    }
    programs = {}
    for name, loss in losses.items():
        for jit in (False, True):

            def both(w, a, loss=loss, jit=jit):
                derivative = jax.grad(loss, (0, 1))
                return (jax.jit(derivative) if jit else derivative)(w, a)

            programs[f"grad of {name}{' in jit' * jit}"] = lambda both=both: mapped(
                both, (P(), x), (P(), x)
            )(weights, X)
        if name not in ("own", "gathered parameters", "index"):
            programs[f"jvp of {name}"] = lambda loss=loss: mapped(
                lambda w, a: (
                    lax.pcast(jnp.zeros(1), "x", to="varying")
                    + jax.jvp(loss, (w, a), (w + 1, a))[1]
                ),
                (P(), x),
                x,
            )(weights, X)
    programs["grad of what was gathered"] = lambda: mapped(
        lambda a: jax.grad(lambda v: (v * lax.axis_index("x")).sum())(
            lax.all_gather(a, "x", tiled=True)
        ),
        x,
        x,
    )(X)
    programs["grad of what was gathered into one"] = lambda: mapped(
        lambda a: jax.grad(lambda v: (v * lax.axis_index("x")).sum())(
            lax.all_gather(a, "x", tiled=True, to="invarying")
        ),
        x,
        P(),
    )(X)
    programs["hessian"] = lambda: mapped(
        lambda w, a: jax.hessian(lambda v: lax.psum(jnp.sin(v * a.sum()).sum(), "x"))(w),
        (P(), x),
        P(),
    )(weights, X)
    programs["jacrev"] = lambda: mapped(lambda w, a: jax.jacrev(lambda v: v * a)(w), (P(), x), x)(
        weights[:1], X
    )
    programs["jacfwd"] = lambda: mapped(lambda w, a: jax.jacfwd(lambda v: v * a)(w), (P(), x), x)(
        weights[:1], X
    )
    programs["vjp"] = lambda: mapped(
        lambda w, a: jax.vjp(lambda v: v * a.sum(), w)[1](w * a.sum())[0], (P(), x), P()
    )(weights, X)
    programs["linear_transpose"] = lambda: mapped(
        lambda a: jax.linear_transpose(
            jax.linearize(lambda v: v * a.sum(), jnp.ones(1))[1], jnp.ones(1)
        )(a)[0],
        x,
        x,
    )(X)
    programs["linearize"] = lambda: mapped(
        lambda w, a: jax.linearize(lambda v: jnp.sin(v) * a.sum(), w)[1](w), (P(), x), x
    )(weights, X)
    return programs


def _outside(t):
    """Derivatives of a shard_map, and maps over one."""
    jax, jnp, lax, P, mapped = t.jax, t.jnp, t.lax, t.P, t.mapped
    x = P("x")
    bodies = {
        "block": (lambda a, w: jnp.sin(a) * w.sum(), x),
        "total": (lambda a, w: lax.psum(jnp.sin(a) * w.sum(), "x"), P()),
        "mean": (lambda a, w: lax.pmean(a * w.sum(), "x"), P()),
        "maximum": (lambda a, w: lax.psum(a.max() * w, "x"), P()),
        "gathered": (lambda a, w: lax.all_gather(a * w.sum(), "x", tiled=True) * a, x),
        "gathered into one": (
            lambda a, w: lax.all_gather(a * w.sum(), "x", tiled=True, to="invarying"),
            P(),
        ),
        "gathered rows": (
            lambda a, w: lax.all_gather(a * w.sum(), "x", axis=1, to="invarying") * w.sum(),
            P(),
        ),
        "scattered": (lambda a, w: lax.psum_scatter(jnp.tile(a, 8) * w.sum(), "x", tiled=True), x),
        "permuted": (
            lambda a, w: lax.ppermute(a, "x", [(k, (k + 3) % 8) for k in range(7)]) * w.sum(),
            x,
        ),
        "exchanged": (
            lambda a, w: lax.all_to_all(jnp.tile(a, 8), "x", 0, 0, tiled=True)[:1] * w.sum(),
            x,
        ),
        "shared": (lambda a, w: jnp.cos(w), P()),
        "several": (lambda a, w: {"a": a * w.sum(), "b": [lax.psum(a, "x")]}, {"a": x, "b": P()}),
        "cast": (lambda a, w: lax.pcast(w, "x", to="varying")[:1] * a, x),
        "scan": (lambda a, w: lax.scan(lambda c, s: (jnp.sin(c * s) + a, None), a, w)[0], x),
        "inner grad": (lambda a, w: jax.grad(lambda v: lax.psum((v**3 * a).sum(), "x"))(w), P()),
        "jit": (lambda a, w: jax.jit(lambda a, w: a * lax.psum(w.sum() * a, "x"))(a, w), x),
        "remat": (lambda a, w: jax.checkpoint(lambda a: jnp.sin(jnp.sin(a * w.sum())))(a), x),
    }

    def scalar(f):
        def total(*args):
            leaves = jax.tree.leaves(f(*args))
            weights = [jnp.arange(1.0, leaf.size + 1).reshape(leaf.shape) for leaf in leaves]
            return sum((leaf * own).sum() for leaf, own in zip(leaves, weights, strict=True))

        return total

    programs = {}
    for name, (body, outs) in bodies.items():
        for check in (True, False):
            if not check and name in ("cast", "gathered into one", "gathered rows", "inner grad"):
                continue  # without types these mean something else

            def call(body=body, outs=outs, check=check):
                return mapped(body, (x, P()), outs, check_vma=check)

            end = "" if check else " unchecked"
            programs[f"{name}{end}"] = lambda call=call: call()(X, W[:2])
            programs[f"{name} in jit{end}"] = lambda call=call: jax.jit(call())(X, W[:2])
            programs[f"grad of {name}{end}"] = lambda call=call: jax.grad(scalar(call()), (0, 1))(
                X, W[:2]
            )
            programs[f"jit of grad of {name}{end}"] = lambda call=call: jax.jit(
                jax.grad(scalar(call()), (0, 1))
            )(X, W[:2])
            programs[f"jvp of {name}{end}"] = lambda call=call: jax.jvp(
                call(), (X, W[:2]), (X + 1, W[2:4])
            )
            programs[f"vmap of {name}{end}"] = lambda call=call: jax.vmap(call(), (None, 0))(
                X, W.reshape(4, 2)
            )
            programs[f"grad of vmap of {name}{end}"] = lambda call=call: jax.grad(
                scalar(jax.vmap(call(), (0, None)))
            )(np.stack([X, W]), W[:2])
    return programs


def _rules(t):
    """Rules of users."""
    jax, jnp, lax, P, mapped = t.jax, t.jnp, t.lax, t.P, t.mapped
    x = P("x")

    def with_rule(primal, fwd, bwd):
        f = jax.custom_vjp(primal)
        f.defvjp(fwd, bwd)
        return f

    plain = with_rule(lambda v: v * 2, lambda v: (v * 2, None), lambda _, g: (g * 3,))
    total = with_rule(
        lambda v: lax.psum(v, "x"), lambda v: (lax.psum(v, "x"), v), lambda v, g: (g * v,)
    )
    less = with_rule(lambda v: v * 2, lambda v: (v * 2, None), lambda _, g: (lax.psum(g, "x"),))
    more = with_rule(lambda v: v * 2, lambda v: (v * 2, v), lambda v, g: (g * lax.axis_index("x"),))
    ones = with_rule(lambda v: v * 2, lambda v: (v * 2, None), lambda _, g: (jnp.ones_like(g),))
    fresh = with_rule(lambda v: v * 2, lambda v: (v * 2, None), lambda _, g: (jnp.ones(1),))
    none = with_rule(lambda v: v * 2, lambda v: (v * 2, None), lambda _, g: (None,))
    twice = jax.custom_jvp(lambda v: v * 2)
    twice.defjvp(lambda primals, tangents: (twice(primals[0]), tangents[0] * 5))

    def inside(f, ins, outs):
        return lambda: mapped(lambda a: jax.grad(lambda v: f(v).sum())(a), ins, outs)(X)

    def outside(f, ins, outs):
        return lambda: jax.grad(lambda a: mapped(f, ins, outs)(a).sum())(X)

    programs = {}
    for where, make in (("inside", inside), ("outside", outside)):
        programs |= {
            f"{where} of a block": make(plain, x, x),
            f"{where} of a shared value": make(plain, P(), P()),
            f"{where} with a total": make(total, P(), P()),
            f"{where} with less": make(less, x, x),
            f"{where} with more": make(more, P(), P()),
            f"{where} with ones": make(ones, x, x),
            f"{where} with fresh ones": make(fresh, x, x),
            f"{where} with none": make(none, x, x),
            f"{where} custom_jvp": make(twice, x, x),
            f"{where} custom_jvp of a shared value": make(twice, P(), P()),
        }
    return programs


def _unchecked(t):
    """Programs whose devices each have a cotangent, with rules that see it."""
    jax, jnp, lax, P, mapped = t.jax, t.jnp, t.lax, t.P, t.mapped
    x = P("x")
    copied = jax.custom_vjp(lambda v: v)
    copied.defvjp(lambda v: (v, None), lambda _, g: (lax.psum(g, "x"),))
    total = jax.custom_vjp(lambda v: lax.psum(v, "x"))
    total.defvjp(lambda v: (lax.psum(v, "x"), None), lambda _, g: (g,))

    def layer(v, w):
        return total(jnp.sin(copied(v) * w))

    def both(f):
        return jax.grad(lambda a, b: f(a, b).sum(), (0, 1))

    split = mapped(layer, (P(), x), P(), check_vma=False)
    inner = mapped(both(layer), (P(), x), (P(), x), check_vma=False)
    spread = jax.pmap(layer, axis_name="x", in_axes=(None, 0), out_axes=None)
    first = mapped(lambda a: a * 2, x, P(), check_vma=False)
    rows = W[:2, None]
    return {
        "a split layer": lambda: split(W[:1], X),
        "gradients of a split layer": lambda: both(split)(W[:1], X),
        "jit of gradients of a split layer": lambda: jax.jit(both(split))(W[:1], X),
        "vmap of gradients of a split layer": lambda: jax.vmap(both(split), (0, None))(rows, X),
        "gradients inside of a split layer": lambda: inner(W[:1], X),
        "gradients of a split layer in pmap": lambda: both(spread)(W[:1], X),
        "the first of unequal outputs": lambda: first(X),
        "its gradient": lambda: jax.grad(lambda a: first(a).sum())(X),
        "its derivative": lambda: jax.jvp(first, (X,), (X + 1,)),
        "its hessian": lambda: jax.hessian(lambda a: first(a**2).sum())(X),
    }


def _refused(t):
    jax, jnp, lax, P, mapped = t.jax, t.jnp, t.lax, t.P, t.mapped
    x, y = P("x"), P("y")

    def swapped(c, _):
        return (c[1], c[0]), None

    bodies = {
        "an output that varies": (lambda a, s: a, P()),
        "gathered as one": (lambda a, s: lax.all_gather(a, "x", tiled=True), P()),
        "scattered as one": (lambda a, s: lax.psum_scatter(jnp.tile(a, 8), "x", tiled=True), P()),
        "permuted as one": (lambda a, s: lax.ppermute(a, "x", [(0, 1)]), P()),
        "the index as one": (lambda a, s: lax.axis_index("x"), P()),
        "a scan that begins to vary": (
            lambda a, s: lax.scan(lambda c, _: (c + a, None), s[:1], None, length=2)[0],
            x,
        ),
        "a scan that ends to vary": (
            lambda a, s: lax.scan(lambda c, _: (lax.psum(c, "x"), None), a, None, length=2)[0],
            x,
        ),
        "a scan that swaps": (lambda a, s: lax.scan(swapped, (a, s[:1]), None, length=2)[0][0], x),
        "a while that begins to vary": (
            lambda a, s: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + a, s[:1]),
            x,
        ),
        "a fori that begins to vary": (
            lambda a, s: lax.fori_loop(0, 3, lambda k, c: c + a.sum(), 0.0)[None],
            x,
        ),
        "branches that differ": (lambda a, s: lax.cond(True, lambda: a, lambda: s[:1]), x),
        "branches of a switch": (
            lambda a, s: lax.switch(0, [lambda: a, lambda: s[:1], lambda: a]),
            x,
        ),
        "a cast of what varies": (lambda a, s: lax.pcast(a, "x", to="varying"), x),
        "an unknown cast": (lambda a, s: lax.pcast(s, "x", to="invarying"), x),
        "a gather that is neither": (lambda a, s: lax.all_gather(a, "x", to="any"), x),
        "a scalar that is split": (lambda a, s: a.sum(), x),
        "an unknown axis": (lambda a, s: a, P("z")),
        "an axis twice": (lambda a, s: a[:, None], P("x", "x")),
        "a spec that is too long": (lambda a, s: a, P("x", None)),
    }
    programs = {
        f"{name}{' in jit' * jit}": lambda body=body, outs=outs, jit=jit: (
            jax.jit if jit else lambda f: f
        )(mapped(body, (x, P()), outs))(X, X[:2])
        for name, (body, outs) in bodies.items()
        for jit in (False, True)
    }
    programs["blocks that do not divide"] = lambda: mapped(lambda a: a, x, x)(X[:7])
    programs["too few arguments"] = lambda: mapped(lambda a, b: a, (x, x), x)(X)
    programs["too many arguments"] = lambda: mapped(lambda a: a, (x,), x)(X, X)
    programs["another tree"] = lambda: mapped(lambda a: a, ([x, x],), x)((X, X))
    programs["specs that are none"] = lambda: mapped(lambda a: a, 3, x)(X)
    programs["no mesh"] = lambda: jax.shard_map(lambda a: a, in_specs=x, out_specs=x)(X)
    programs["outputs along the other axis"] = lambda: mapped(lambda a: a, x, y, mesh=t.grid)(X)
    return programs
