"""Regions that grow agree with the analysis of all their equations, whatever joins first."""

import random
from dataclasses import fields

import numpy as np
import pytest
from fuzzing.checks import fuzz
from fuzzing.programs import random_inputs
from fuzzing.running import run
from fuzzing.strategy import programs, reducing_programs
from hypothesis import given
from hypothesis import strategies as st
from reference_space import space_of as reference
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.fusion.clones import clone_cheap
from gpuflow.compiler.fusion.fuse import describe_program, fuse
from gpuflow.compiler.fusion.legality import loop_structure_of, space_of, space_of_region
from gpuflow.compiler.fusion.regions import MAX_MEMBERS_IN_LOOPS, MergedRegion, Region
from gpuflow.compiler.fusion.space import NotOneKernelError
from gpuflow.compiler.passes.program import cse, dce, hoist_array_literals, inline, simplify

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((6, 6)).astype(np.float32)
Y = RANDOM.standard_normal((6, 6)).astype(np.float32)
ROW = RANDOM.standard_normal((1, 6)).astype(np.float32)
ONE = np.ones((1, 1), np.float32)


PASSES = (simplify, cse, dce, clone_cheap, dce)


def described(function, *args, passes=PASSES):
    """The program of a function as grouping sees it."""
    jaxpr, _ = hoist_array_literals(inline(gf.jit(function).lower(*args).jaxpr.jaxpr))
    for rewrite in passes:
        jaxpr = rewrite(jaxpr)
    return describe_program(jaxpr, {})


def outcome(analysis):
    """A space by its fields, or None where no kernel can be one."""
    try:
        space = analysis()
    except NotOneKernelError:
        return None
    return {field.name: getattr(space, field.name) for field in fields(space)}


def joined_space(region, other):
    """The space of two regions, and the regions if they cannot join."""
    merged = MergedRegion(region.program, region, other)
    form = loop_structure_of(merged)
    return space_of_region(merged.commit(), form)


def check_joins(program, seed):
    """Join regions at random, along edges and not; compare each time."""
    draw = random.Random(seed)
    positions = [k for k, it in enumerate(program.iterations) if it is not None]
    groups = {}
    for k in positions:
        want = outcome(lambda k=k: reference(program, (k,)))
        assert outcome(lambda k=k: space_of(program, (k,))) == want
        if want is not None:
            groups[k] = Region(program, k)
    accepted = 0
    for _ in range(4 * len(groups)):
        if len(groups) < 2:
            break
        a, b = draw.sample(sorted(groups), 2)
        members = sorted(groups[a].members | groups[b].members)
        want = outcome(lambda members=members: reference(program, members))
        got = outcome(lambda a=a, b=b: joined_space(groups[a], groups[b]))
        assert got == want
        # An attempt that failed has changed nothing.
        if want is None:
            for k in (a, b):
                own = sorted(groups[k].members)
                kept = space_of_region(groups[k], loop_structure_of(groups[k]))
                assert outcome(lambda kept=kept: kept) == outcome(
                    lambda own=own: reference(program, own)
                )
            continue
        accepted += 1
        first, second = groups.pop(a), groups.pop(b)
        groups[a] = max(first, second, key=lambda region: len(region.members))
    return accepted


@fuzz(40)
@given(programs(), st.integers(0, 9))
def test_joins_of_random_programs(program, seed):
    inputs = random_inputs(program)
    check_joins(described(lambda *xs: run(program, xs, plain=False), *inputs), seed)


@fuzz(40)
@given(reducing_programs(), st.integers(0, 9))
def test_joins_of_random_reductions(program, seed):
    inputs = random_inputs(program)
    check_joins(described(lambda *xs: run(program, xs, plain=False), *inputs), seed)


def _both_ways(x, row, one):
    """One array read along different axes, first as if it were one, then not."""
    a, b = jnp.sin(x), jnp.cos(x.T)
    return jnp.tanh(a) * b, jnp.exp(x) - jnp.exp(x.T) * row + one


def _either_way(x, row, one):
    """Two arrays read along axes that cannot both be one: the first read decides."""
    return jnp.cos(x).T + Y, x * Y, jnp.exp(x - Y)


def _softmaxes(x, row, one):
    return gf.nn.softmax(x) + gf.nn.softmax(x * row, axis=0), jnp.sum(x, 0) * one


def _repeats(x, row, one):
    return x * gf.lax.lgamma(row), jnp.sum(x * row, axis=0) + jnp.tanh(row[0])


def _units(x, row, one):
    """Axes of size 1 that are repetitions, are memory, or are reduced."""
    total = jnp.sum(jnp.sin(one) * row, axis=0, keepdims=True)
    of_one = jnp.sum(jnp.sin(row[0])[:, None], axis=1) * 2  # is the element, no sum
    total = total + jnp.max(x, axis=1) * of_one
    return x + total, jnp.max(jnp.cos(one), axis=1) * 2, x[:1] + jnp.tanh(one) * row


def _places(x, row, one):
    picked = x[jnp.argsort(row[0])] + jnp.sin(x)
    return picked, x.at[2].set(row[0] * 2), jnp.argmax(x * row, axis=1)


def _step(x, row, one):
    def loss(x):
        mean = jnp.mean(x, axis=0, keepdims=True)
        y = (x - mean) / jnp.sqrt(jnp.mean((x - mean) ** 2, axis=0) + 1e-5)
        return jnp.sum(gf.nn.gelu(y) * row) + jnp.sum(one)

    g = gf.grad(loss)(x)
    m = 0.9 * x + 0.1 * g
    return m, x - 1e-3 * m / (jnp.sqrt(jnp.abs(g)) + 1e-8)


@together(by="function")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "function", [_both_ways, _either_way, _softmaxes, _repeats, _units, _places, _step]
)
def test_joins(function, seed):
    assert check_joins(described(function, X, ROW, ONE), seed) > 0
    plain = described(function, X, ROW, ONE, passes=())  # sums over one element, for example
    assert check_joins(plain, seed) > 0


def test_a_kernel_has_so_many_equations():
    """A long chain becomes several kernels; single numbers are no part of loops."""

    def chain(x):
        for k in range(MAX_MEMBERS_IN_LOOPS // 2 + 10):
            x = jnp.sin(x) + k
        return x

    sizes = [len(group.members) for group in fuse(described(chain, X))]
    assert max(sizes) == MAX_MEMBERS_IN_LOOPS
    assert sum(sizes) == 2 * (MAX_MEMBERS_IN_LOOPS // 2 + 10)
    assert [len(group.members) for group in fuse(described(chain, X[0, 0]))] == [sum(sizes)]


def test_a_chain_costs_no_more_per_operation_when_it_is_longer(monkeypatch):
    """Joining an operation to a long region looks at that operation alone."""

    def looked_at(count):
        def chain(x):
            for k in range(count):
                x = jnp.sin(x) if k % 3 else x * X
            return x

        program = described(chain, X)
        calls = []
        find = Region.find
        monkeypatch.setattr(Region, "find", lambda self, key: calls.append(key) or find(self, key))
        region = Region(program, 0)
        for k in range(1, len(program.iterations)):
            merged = MergedRegion(program, region, Region(program, k))
            loop_structure_of(merged)
            region = merged.commit()
        monkeypatch.setattr(Region, "find", find)
        return len(calls)

    assert looked_at(180) < 3.2 * looked_at(60)
