"""The compiler of kernel text: it knows all that is printed; the code does what kernels mean."""

import ast
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cpu_harness import argument_words
from cuda_programs import PROGRAMS
from cuda_zoo import zoo
from plan_on_cuda import plan_of

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.interpret import run
from gpuflow.targets.cpu.codegen import build, loop_compiler
from gpuflow.targets.cpu.codegen.build import build_cpu, load_cpu
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.loops.nodes import InvalidProgram
from gpuflow.targets.cpu.codegen.loops.parser import parsed_source
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.runtime.kernels import print_cpu, runtime_function


def kernel_sources():
    """The text of every kernel of the zoo and of some plans, each once."""
    kernels = [kernel for kernel in zoo().values() if not kernel.segmented]
    for program in PROGRAMS.values():
        steps = plan_of(program.function, program.args, program.donate).steps
        kernels += [step.calls[0].kernel for step in steps if isinstance(step, KernelStep)]
    return list({source.text: source for source in map(print_cpu, kernels)}.values())


def test_all_that_is_printed_is_known():
    sources = kernel_sources()
    assert len(sources) > 70
    for source in sources:
        assert str(compile_module(source)).count("define") == 1


RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((7, 133)).astype(np.float32)
ROWS[2, 5], ROWS[3, 0], ROWS[4, 1] = np.nan, np.inf, -np.inf
STRIDES = {("x", "i0"): 133, ("o", "i0"): 133, ("largest", "i0"): 1, ("place", "i0"): 1}
BATCH = ROWS[:6, :132].reshape(2, 3, 132).copy()
CASES = {
    "map": ({name: ROWS[0] for name in "xy"} | {"o": ROWS[1] * 0}, {"i0": 133}, None, 133),
    "row": ({"x": ROWS, "o": np.zeros_like(ROWS)}, {"i0": 7, "i1": 133}, STRIDES, 7),
    "row_tuple": (
        {"x": ROWS, "position": 0, "largest": np.zeros(7, np.float32),
         "place": np.zeros(7, np.int32)},
        {"i0": 7, "i1": 133}, {**STRIDES, ("position", "i1"): 1}, 7,
    ),
    "column": (
        {"x": ROWS, "o": np.zeros(133, np.float32)}, {"row": 7, "column": 133},
        {("x", "row"): 133}, 133,
    ),
    "column_between": (
        {"x": BATCH, "scale": np.float32(0.5), "mean": np.zeros(3, np.float32),
         "o": np.zeros_like(BATCH)},
        {"channel": 3, "image": 2, "pixel": 132},
        {("x", "channel"): 132, ("x", "image"): 396, ("o", "channel"): 132,
         ("o", "image"): 396, ("mean", "channel"): 1}, 3,
    ),
    "full": (
        {"x": ROWS[0], "scale": np.float32(2), "norm": np.zeros((), np.float32),
         "largest": np.zeros((), np.float32), "square": ROWS[0] * 0}, {"i0": 133}, None, 1,
    ),
    "loop": (
        {"x": np.arange(1, 100), "o": np.zeros(99, np.int32)}, {"i0": 99}, None, 99,
    ),
    "no_axes": (
        {"x": np.full((), 2, np.float32), "y": np.float32(3), "o": np.zeros((), np.float32)},
        {}, None, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_compiled_text_means_what_the_kernel_means(name):
    kernel = zoo()[name]
    arrays, extents, strides, total = CASES[name]
    compiled, meant = (
        {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arrays.items()}
        for _ in range(2)
    )
    words = argument_words(kernel, compiled, extents, strides or {})
    load_cpu(build_cpu(print_cpu(kernel)), runtime_function).call(words.ctypes.data, 0, total)
    flat = {k: v.reshape(-1) if isinstance(v, np.ndarray) else v for k, v in meant.items()}
    run(kernel, flat, extents, strides)
    for key in arrays:
        # Products and sums may be contracted here and not there.
        np.testing.assert_allclose(compiled[key], meant[key], rtol=2e-6, atol=1e-7)


def text_of(body):
    return parsed_source(f"def kernel(words, lo, hi):\n{textwrap.indent(body, '    ')}", "kernel")


@pytest.mark.parametrize(
    "body",
    [
        "x = [1, 2]", "x = 'text'", "x = lo < hi < 3", "x = lo + np.float32(1)", "lo = 3",
        "x = lo / hi", "x = lo\nx = np.float32(lo)", "x = unknown(lo)", "x = missing",
        "for k in range(0, lo, 2):\n    pass", "for k in words:\n    pass",
        "while lo < hi:\n    pass", "return lo", "x, y = lo, hi", "x = np.int32(np.float32(2))",
        "x = np.float16(2)", "if lo:\n    pass", "x = ~np.float32(1)", "x = not lo",
        "x = np.float32(1) & np.float32(2)", "x = lo % hi", "x: int = lo", "with lo:\n    pass",
    ],
)  # fmt: skip
def test_other_texts_are_refused(body):
    with pytest.raises(InvalidProgram):
        compile_module(text_of(body))


def test_what_is_refused_is_said(monkeypatch):
    """A printer that prints something else is wrong, and must not be helped out in silence."""
    monkeypatch.setattr(
        build, "compile_module", lambda source: compile_module(text_of("x = [1, 2]"))
    )
    with pytest.raises(InvalidProgram, match=r"\[1, 2\]"):
        build_cpu(print_cpu(zoo()["row"]))


def test_a_build_imports_no_numba(tmp_path):
    """Numba takes half a second to load: the first call of a program would feel it."""
    program = """
        import sys
        import gpuflow as gf
        import gpuflow.numpy as jnp
        x = jnp.arange(1000.0)
        gf.jit(lambda x: gf.nn.softmax(jnp.sin(x)).reshape(10, 100).sum(0))(x)
        assert "numba" not in sys.modules, "numba"
    """
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, check=True, timeout=120
    )
    assert list(tmp_path.rglob("*")), "nothing was built"


def test_threads_may_parse_at_once():
    """CPython 3.11 raises SystemError now and then; others of the process may parse as well."""
    sources = kernel_sources()[:12]

    def work(k):
        ast.parse(sources[k % len(sources)].text) if k % 3 == 0 else None
        return str(compile_module(sources[k % len(sources)]))

    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda k: _without_system_errors(work, k), range(200)))
    assert all(text == found[k % len(sources)] for k, text in enumerate(found))


def _without_system_errors(work, k):
    while True:
        try:
            return work(k)
        except SystemError as error:
            assert "recursion depth" in str(error)  # of the foreign parse above


def long_chain(x, y):
    """About 90 statements."""
    for k in range(12):
        x = jnp.where(x > y, x * y, x + 1 / (k + 2))
        x = x - jnp.maximum(y, 0) * x
    return x, x > y


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint16"])
@pytest.mark.parametrize("step", [1, 3])
def test_long_loops_end_where_their_arrays_do(dtype, step):
    """Their last elements are a vector with a mask: each length, and nothing is written beyond."""
    with gf.enable_x64(True):
        for size in (1, 2, 15, 16, 17, 33, 63, 100):
            x = (RANDOM.standard_normal(size * step) * 2).astype(dtype)[::step]
            y = (RANDOM.standard_normal(size * step) * 2).astype(dtype)[::step]
            got, want = gf.jit(long_chain)(x, y), long_chain(jnp.asarray(x), jnp.asarray(y))
            # 24 roundings of each type; products and sums may be contracted here and not there.
            rtol = 50 * np.finfo(dtype).eps if np.issubdtype(dtype, np.floating) else 1e-5
            np.testing.assert_allclose(got[0], want[0], rtol=rtol, atol=rtol)
            assert np.asarray(got[1]).mean() == pytest.approx(np.asarray(want[1]).mean(), abs=0.1)


def test_long_loops_are_written_once():
    """By LLVM for vectors alone, where the processor has masks and the loop is not written here; a
    loop that carries a sum is not marked.
    """
    mark = "llvm.loop.vectorize.predicate.enable"
    arrays = ROWS[0], ROWS[1]

    def is_marked(function):
        (step,) = plan_of(function, arrays).steps
        return mark in str(compile_module(print_cpu(step.calls[0].kernel)))

    assert not is_marked(long_chain)
    assert is_marked(lambda x, y: long_chain(x[::-1], y)) == cpu_target().has_masks
    assert not is_marked(lambda x, y: long_chain(x, y)[0].sum())


def test_a_table_of_escapes_that_another_thread_fills(monkeypatch):
    """llvmlite's is filled when it is first used, which several threads may do at once."""
    from llvmlite.ir import values

    table = values._escape_string.__defaults__[0]
    before = dict(table)
    values._escape_string(b"")
    full = dict(table)
    table.clear()
    table[0] = full[0]  # another thread has begun
    filler = threading.Timer(0.05, table.update, [full])
    filler.start()
    loop_compiler._fill_escape_table.cache_clear()
    loop_compiler._fill_escape_table()
    assert table == full
    filler.join()
    table.update(before)
