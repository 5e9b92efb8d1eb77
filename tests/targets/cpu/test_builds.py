"""What is asked of LLVM: its level for a text, how many vectors at once, and how many loops."""

import os
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
from cpu_harness import calls_of
from loop_texts import set_masks

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.scipy import special
from gpuflow.targets.cpu.codegen import loop_compiler, vector_loops
from gpuflow.targets.cpu.codegen.build import _optimization_level
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.machine_code import SIMPLIFY_ONLY, compile_ir
from gpuflow.targets.cpu.runtime.kernels import print_cpu


def sources(function, *shapes):
    return [print_cpu(call.kernel) for call in calls_of(function, *shapes)]


def steps(x):
    return lax.while_loop(lambda y: y < 2, lambda y: y * 1.5 + 1, x)


def sixty(x):
    for _ in range(60):
        x = jnp.tanh(x) * 1.1 + 0.3
    return x


@pytest.fixture
def plain(monkeypatch):
    """No loop is written as one of vectors: a processor without AVX2."""
    monkeypatch.setattr(vector_loops, "cpu_target", lambda: SimpleNamespace(is_x86=False))
    monkeypatch.setattr(loop_compiler, "cpu_target", lambda: SimpleNamespace(has_masks=False))


def levels(function, shape):
    return {
        _optimization_level(source, compile_module(source)) for source in sources(function, shape)
    }


PROGRAMS = {
    "short": (jnp.tanh, (1000,), 3),
    "decides by strides": (lambda x: abs(x.T), (500, 500), 3),
    "lanes that stop": (gf.vmap(steps), (1000,), 3),
    "long": (sixty, (1000,), 2),
    "nest of loops": (lambda x: x.sum((1, 2)), (30, 40, 50, 60), 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_levels(name, plain):
    function, shape, level = PROGRAMS[name]
    assert levels(function, shape) == {level}


@pytest.mark.parametrize(
    "function, shapes, count",
    [
        (lambda x: x + 1, [(1000,)], []),
        (jnp.tanh, [(1000,)], [4]),
        (gf.nn.mish, [(1000,)], [2]),
        (jnp.sin, [(1000,)], [2]),
        (lax.lgamma, [(1000,)], []),
        (lambda x, row: jnp.tanh(x + row), [(1000, 300), (300,)], [2]),
    ],
    ids=["cheap", "a series", "long", "calls", "longer", "rows"],
)
def test_vectors_at_once(function, shapes, count, plain):
    (source,) = sources(function, *shapes)
    module = str(compile_module(source))
    assert [int(n) for n in re.findall(r'interleave\.count", i32 (\d)', module)] == count


@pytest.mark.parametrize(
    "function, widths",
    [
        (lambda x: jnp.interp(x, x[:100], x[:100]), [16]),
        (lambda x: special.wofz(lax.complex(x, x)), [16]),
        (lambda x: jnp.take(x, x.astype(int), mode="clip"), []),
    ],
    ids=["a long search", "a long chain with calls", "a short gather"],
)
def test_long_loops_that_are_scalar_in_part_get_a_width(function, widths, monkeypatch):
    """LLVM overestimates gathers and calls; a search in a million elements took twice as long."""
    set_masks(monkeypatch, True)
    monkeypatch.setattr(loop_compiler, "cpu_target", vector_loops.cpu_target)
    modules = [str(compile_module(source)) for source in sources(function, (1000,))]
    found = re.findall(r'vectorize\.width", i32 (\d+)', "".join(modules))
    assert [int(width) for width in found] == widths


@pytest.mark.parametrize(
    "function, loops",
    [(lambda x: x.sum(0), 5), (lambda x: jnp.where(x.max(0) > 0, x.max(0), 0), 3)],
    ids=["sum", "maximum"],
)
def test_loops_over_columns_stand_together(function, loops):
    """Of a sum: to begin; for 64 rows: to begin, a row, their sum; and to end."""
    (source,) = sources(function, (20, 300))
    assert len(re.findall(r"for i1 in range\(", source.text)) == loops


def test_a_text_that_stays_as_it_is_written():
    twice = "define internal i64 @twice(i64 %x) alwaysinline"
    inner = f"{twice} {{\n  %y = add i64 %x, %x\n  ret i64 %y\n}}"
    outer = "define i64 @four(i64 %x) {\n  %y = call i64 @twice(i64 %x)\n  ret i64 %y\n}"
    assert compile_ir(f"{inner}\n{outer}", SIMPLIFY_ONLY).imports == ()
    with pytest.raises(RuntimeError):
        compile_ir("define i64 @f() {", SIMPLIFY_ONLY)


def test_llvm_prints_nothing_about_loops_without_vectors(tmp_path):
    """Rows far apart in a long body: LLVM printed a warning when vectors were demanded of it."""
    text = """
        import numpy as np, gpuflow as gf
        rows = gf.jit(lambda x: gf.lax.scan(lambda c, row: (c, row.T * 2), 0.0, x)[1])
        x = np.arange(72, dtype=np.float32).reshape(3, 8, 3)
        np.testing.assert_array_equal(rows(x), 2 * x.swapaxes(1, 2))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        env={**os.environ, "GPUFLOW_CACHE_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
