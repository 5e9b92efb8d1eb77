"""What becomes one kernel: kinds, plan steps, and what must stay apart."""

import itertools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.fusion.fuse import describe_program, fuse
from gpuflow.compiler.passes.program import cse, dce, inline
from gpuflow.compiler.planning.plan import CallStep, KernelStep
from gpuflow.kir.nodes import Reduce
from gpuflow.kir.walk import statements
from gpuflow.ops.effects.callbacks import debug_callback

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((12, 20)).astype(np.float32)
ROW = RANDOM.standard_normal(20).astype(np.float32)
LABELS = RANDOM.integers(0, 20, 12).astype(np.int32)


def plan(function, *args):
    return gf.jit(function).lower(*args).compile().steps


def kernels(steps):
    return [step.kernel for step in steps if isinstance(step, KernelStep)]


def kinds(function, *args):
    return [
        step.kernel.kind if isinstance(step, KernelStep) else step.kind
        for step in plan(function, *args)
    ]


def check(function, reference, *args):
    """The jitted function against NumPy in float64; sums of 20 terms of some units."""
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in args]
    np.testing.assert_allclose(gf.jit(function)(*args), reference(*wide), rtol=2e-5, atol=1e-5)


# --- one kernel each -----------------------------------------------------------------------


def layernorm(x, scale, offset):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    return centered / jnp.sqrt(variance + 1e-5) * scale + offset


def layernorm_reference(x, scale, offset):
    variance = x.var(-1, keepdims=True)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-5) * scale + offset


def logsumexp(x):
    largest = lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    return jnp.log(jnp.sum(jnp.exp(x - largest), axis=-1)) + jnp.squeeze(largest, -1)


def log_softmax_reference(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def cross_entropy(x, labels):
    return -jnp.sum(gf.nn.one_hot(labels, 20) * gf.nn.log_softmax(x), axis=-1)


def cross_entropy_reference(x, labels):
    return -log_softmax_reference(x)[np.arange(len(labels)), labels]


ROWS = {
    "softmax": (gf.nn.softmax, lambda x: np.exp(log_softmax_reference(x)), (X,)),
    "log_softmax": (gf.nn.log_softmax, log_softmax_reference, (X,)),
    "layernorm": (layernorm, layernorm_reference, (X, ROW, ROW)),
    "standardize": (
        lambda x: (x - jnp.mean(x, 1, keepdims=True)) / jnp.std(x, 1, keepdims=True),
        lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True),
        (X,),
    ),
    "logsumexp": (logsumexp, lambda x: np.log(np.exp(x).sum(-1)), (X,)),
    "rms_norm": (
        rms_norm,
        lambda x, s: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * s,
        (X, ROW),
    ),
    "cross_entropy": (cross_entropy, cross_entropy_reference, (X, LABELS)),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_programs_are_one_kernel(name):
    function, reference, args = ROWS[name]
    assert kinds(function, *args) == ["row"]
    check(function, reference, *args)


@pytest.mark.parametrize("name", ["softmax", "layernorm", "rms_norm"])
def test_row_programs_stay_one_kernel_over_more_dimensions(name):
    function, reference, args = ROWS[name]
    x = RANDOM.standard_normal((3, 4, 20)).astype(np.float32)
    assert kinds(function, x, *args[1:]) == ["row"]
    check(function, reference, x, *args[1:])


def test_chain_of_elementwise_ops_is_one_map():
    def chain(x):
        return jnp.tanh(x * x) + jnp.exp(-x) * jnp.where(x > 0, x, 2 * x)

    assert kinds(chain, X) == ["map"]
    check(chain, lambda x: np.tanh(x * x) + np.exp(-x) * np.where(x > 0, x, 2 * x), X)


@pytest.mark.parametrize(
    ("axis", "kind"), [(None, "full"), (0, "column"), (1, "row"), ((0, 1), "full")]
)
def test_reduction_takes_its_prologue_and_epilogue(axis, kind):
    def function(x):
        return jnp.sqrt(jnp.sum(jnp.exp(x) * x, axis=axis) + 100)

    assert kinds(function, X) == [kind]
    check(function, lambda x: np.sqrt((np.exp(x) * x).sum(axis) + 100), X)


def test_several_reductions_over_one_axis_share_a_kernel():
    def function(x):
        return jnp.sum(x, 0), jnp.max(x * 2, 0), jnp.min(x, 0)

    assert kinds(function, X) == ["column"]
    for got, want in zip(gf.jit(function)(X), (X.sum(0), (2 * X).max(0), X.min(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def adam(params, grads, m, v):
    results = []
    for p, g, first, second in zip(params, grads, m, v, strict=True):
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g * g
        results.append((p - 1e-3 * first / (jnp.sqrt(second) + 1e-8), first, second))
    return results


def test_adam_update_of_many_parameters_is_at_most_two_steps():
    sizes = (16, 24, 20, 28, 12, 10, 9, 8, 7, 6, 5)
    shapes = [s for a, b in itertools.pairwise(sizes) for s in ((a, b), (b,))]
    trees = [[RANDOM.random(shape, dtype=np.float32) for shape in shapes] for _ in range(4)]
    assert len(shapes) == 20
    steps = plan(adam, *trees)
    assert len(steps) <= 2 and all(step.kernel.kind == "map" for step in steps)
    assert any(step.kernel.segmented for step in steps)
    for got, p, g, m, v in zip(gf.jit(adam)(*trees), *trees, strict=True):
        first, second = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        want = p - 1e-3 * first / (np.sqrt(second) + 1e-8)
        np.testing.assert_allclose(got[0], want, rtol=1e-5)
        np.testing.assert_allclose(got[2], second, rtol=1e-5)


# --- library calls -------------------------------------------------------------------------


def test_chained_matmuls_are_computed_once():
    weights = [np.eye(20, dtype=np.float32) for _ in range(10)]

    def function(x, weights):
        def f(x):
            for weight in weights:
                x = x @ weight
            return x

        return (f(x) * f(x) + f(x) * f(x)) / f(x)

    steps = plan(function, X, weights)
    assert sum(isinstance(step, CallStep) for step in steps) == 10
    np.testing.assert_allclose(gf.jit(function)(X, weights), 2 * X, rtol=1e-5)


def test_transposes_and_bias_cost_no_step_beside_the_matmul():
    def function(x, w, b):
        return jnp.maximum(x.T @ w.T + b, 0)

    w, b = RANDOM.random((7, 12), dtype=np.float32), RANDOM.random(7, dtype=np.float32)
    assert kinds(function, X, w, b) == ["library", "map"]
    check(function, lambda x, w, b: np.maximum(x.T @ w.T + b, 0), X, w, b)


# --- what must not merge -------------------------------------------------------------------


def count_reductions(kernel):
    return sum(isinstance(statement, Reduce) for statement in statements(kernel.body))


def reduce_depths(block, depth=0):
    """For every reduction the number of reductions around it."""
    for statement in block.body:
        if isinstance(statement, Reduce):
            yield depth
            yield from reduce_depths(statement.body, depth + 1)
        elif hasattr(statement, "body"):
            yield from reduce_depths(statement.body, depth)


NOT_RECOMPUTED = {
    "column mean": lambda x: (x - jnp.mean(x, 0)) / jnp.std(x, 0),
    "whole mean": lambda x: x - jnp.mean(x),
    "both": lambda x: x / jnp.sum(x, 1, keepdims=True) - jnp.sum(x * x, 0),
    "nested": lambda x: jnp.sum(x * jnp.sum(x, 1, keepdims=True), 0),
    "row": lambda x: x - jnp.max(x - jnp.mean(x, 1, keepdims=True), 1, keepdims=True),
}


@pytest.mark.parametrize("name", NOT_RECOMPUTED)
def test_no_reduction_is_recomputed_for_each_element(name):
    function = NOT_RECOMPUTED[name]
    for kernel in kernels(plan(function, X)):
        assert not any(reduce_depths(kernel.body))
        if kernel.kind == "map":
            assert count_reductions(kernel) == 0
    np.testing.assert_allclose(gf.jit(function)(X), function(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        # Along the rows: the loop over rows would compute the vector again for each.
        (lambda x, v: x * jnp.exp(v), ["map", "map"]),
        (lambda x, v: (x * lax.lgamma(v)).sum(1), ["map", "row"]),
        (lambda x, v: (x * jnp.tanh(v)).sum(0), ["map", "column"]),
        (lambda x, v: x @ jnp.exp(v), ["map", "row"]),
        (lambda x, v: x + jnp.exp(v * 2) * 3, ["map", "map"]),
        # Down the columns: computed once, before the loop over columns.
        (lambda x, v: x * jnp.exp(x[:, 0])[:, None], ["map"]),
        # Cheap, a number, or after the reduction.
        (lambda x, v: x * (v * 2 + 1), ["map"]),
        (lambda x, v: x * jnp.exp(v[0]), ["map"]),
        (lambda x, v: jnp.tanh(x.sum(0)) * jnp.exp(v), ["column"]),
    ],
)
def test_costly_vectors_are_computed_once(function, wanted):
    assert kinds(function, X, ROW + 3) == wanted
    got = gf.jit(function)(X, ROW + 3)
    np.testing.assert_allclose(got, function(jnp.asarray(X), ROW + 3), rtol=1e-5, atol=1e-4)


def test_square_matrix_and_its_transpose():
    """Sizes are equal, axes are not: each operand is read along its own."""
    x = RANDOM.standard_normal((9, 9)).astype(np.float32)
    np.testing.assert_array_equal(gf.jit(lambda x: x + x.T)(x), x + x.T)
    np.testing.assert_array_equal(gf.jit(lambda x: jnp.tanh(x) * 0 + x + x.T)(x), x + x.T)
    both = gf.jit(lambda x: (lambda y: y + y.T)(x * 2))(x)
    np.testing.assert_array_equal(both, 2 * x + 2 * x.T)
    sums = gf.jit(lambda x: jnp.sum(x, 0) + jnp.sum(x, 1))(x)
    np.testing.assert_allclose(sums, x.sum(0) + x.sum(1), rtol=1e-4, atol=1e-5)


def test_product_of_a_matrix_and_its_transpose_stores_it_once():
    """Covariances wrote the centered matrix twice, once across its rows: half of their time."""

    def f(x):
        centered = x - jnp.mean(x, 0)
        return centered.T @ centered

    def reference(x):
        centered = x - x.mean(0)
        return centered.T @ centered

    check(f, reference, X)
    (kernel,) = [k for k in kernels(plan(f, X)) if k.kind == "map"]
    assert sum(operand.name.startswith("o") for operand in kernel.operands) == 1
    # What is also a result of the program, turned, is stored so.
    check(lambda x: (x * 2).T + 0 * x.sum(), lambda x: 2 * x.T, X)
    turned, product = gf.jit(lambda x: ((x * 2).T, (x * 2).T @ (x * 2)))(X)
    np.testing.assert_array_equal(turned, 2 * X.T)
    np.testing.assert_allclose(product, 4 * X.T @ X, rtol=1e-5, atol=1e-4)


def test_outer_sum_of_one_vector_keeps_two_axes():
    v = RANDOM.standard_normal(9).astype(np.float32)
    got = gf.jit(lambda v: jnp.exp(v)[:, None] + jnp.exp(v)[None, :])(v)
    np.testing.assert_allclose(got, np.exp(v)[:, None] + np.exp(v), rtol=1e-5)


def test_path_that_leads_outside_and_back_is_not_merged():
    """y feeds the matmul and the sum with its result: merging both ends would make a cycle."""
    x = RANDOM.standard_normal((8, 8)).astype(np.float32)

    def function(x):
        y = jnp.sin(x)
        return (y @ y) + y * 2

    assert kinds(function, x) == ["map", "library", "map"]
    s = np.sin(x.astype(np.float64))
    np.testing.assert_allclose(gf.jit(function)(x), s @ s + 2 * s, rtol=1e-5, atol=1e-5)


def test_groups_partition_the_program_in_dependency_order():
    """Every equation that is not a view is in one group, after all that it reads."""

    def function(x, w):
        y = gf.nn.softmax(x @ w) + jnp.mean(x)
        return jnp.sum(y, 0), y.T @ x, x[0] * 2

    closed = gf.jit(function).lower(X, X.T @ X).jaxpr
    program = describe_program(dce(cse(inline(closed.jaxpr))), {})
    groups = fuse(program)
    members = [e for group in groups for e in group.members]
    assert len(members) == len(set(members))
    place = {e: n for n, group in enumerate(groups) for e in group.members}
    for e, eqn in enumerate(program.jaxpr.eqns):
        if e not in place:
            assert eqn.outputs[0] in program.views
            continue
        for atom in eqn.inputs:
            buffer = program.views.get(atom, (atom, None))[0]
            source = program.producer.get(buffer)
            if source is not None:
                assert place[source] <= place[e]


# --- effects -------------------------------------------------------------------------------


def test_ordered_effects_happen_in_order_between_kernels():
    seen = []

    def function(x):
        debug_callback(lambda v: seen.append(("first", float(v))), jnp.sum(x), ordered=True)
        y = jnp.exp(x)
        debug_callback(lambda v: seen.append(("second", float(v))), y[0], ordered=True)
        debug_callback(lambda: seen.append(("third",)), ordered=True)
        return y * 2

    compiled, x = gf.jit(function), np.zeros(3, np.float32)
    for _ in range(2):
        seen.clear()
        np.testing.assert_array_equal(compiled(x), [2, 2, 2])
        assert seen == [("first", 0.0), ("second", 1.0), ("third",)]


def test_effects_of_an_unused_result_are_kept():
    seen = []

    def function(x):
        debug_callback(lambda v: seen.append(float(v)), jnp.exp(x))
        return x

    gf.jit(function)(np.float32(0))
    assert seen == [1.0]


@pytest.mark.parametrize("inner", ["sum", "max", "argmax"])
@pytest.mark.parametrize("outer", ["sum", "max", "argmax"])
@pytest.mark.parametrize("shape", [(4, 2, 1), (4, 1, 2), (1, 4, 2), (3, 1, 1, 5), (40, 300, 1)])
def test_reductions_of_size_one_stand_in_the_loops_of_others(inner, outer, shape):
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    for first in range(len(shape)):
        for second in range(len(shape) - 1):

            def f(x, first=first, second=second):
                inside = getattr(jnp, inner)(x[..., :1] - x * 2, first)
                return getattr(jnp, outer)(inside * 1.0 + 1, second)

            expected = getattr(np, inner)(x[..., :1] - x * 2, first)
            expected = getattr(np, outer)(expected * 1.0 + 1, second)
            np.testing.assert_array_equal(gf.jit(f)(x), expected)


def test_loops_of_lanes_stand_apart_from_updates_in_order():
    """One after the other they took two to five times as long: counts in 1000 bins."""

    def count(x):
        return jnp.histogram(x, jnp.linspace(0.0, 1.0, 1000))[0]

    text = gf.jit(count).lower(jnp.ones(5000)).compile().as_text()
    (updating,) = [k for k in text.split("\n\n") if "serial" in k]
    assert "lane_loop" not in updating and "lane_loop" in text
