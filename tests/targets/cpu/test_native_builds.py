"""What library calls run is built beside a program's kernels, not when instructions are written."""

import os
import subprocess
import sys
import textwrap

PROGRAM = """
    import numpy as np
    import gpuflow as gf, gpuflow.numpy as jnp, gpuflow.lax as lax
    from gpuflow.runtime.kernel_cache import kernel_cache
    from gpuflow.targets.cpu.runtime import program

    written = program.build_driver_function
    late = []

    def build_driver_function(*arguments):
        before = kernel_cache().stats.built
        driver = written(*arguments)
        late.append(kernel_cache().stats.built - before)
        return driver

    program.build_driver_function = build_driver_function
    fft = jnp.fft
    floats = np.random.default_rng(0).standard_normal
    square, stack = floats((24, 24)).astype("float32"), floats((40, 4, 4)).astype("float32")
    positive = square @ square.T + 24 * np.eye(24, dtype="float32")
    bytes_ = np.ones((40, 40), "int8")
    programs = {
        "fft2": (fft.fft2, floats((32, 48)).astype("complex64")),
        "rfft": (fft.rfft, floats((32, 48)).astype("float32")),
        "irfft": (fft.irfft, floats((32, 25)).astype("complex64")),
        "odd rfft": (fft.rfft, floats((32, 45)).astype("float32")),
        "odd irfft": (lambda x: fft.irfft(x, 45), floats((32, 23)).astype("complex64")),
        "long rfft": (fft.rfft, floats((1, 1 << 17)).astype("float32")),
        "chirp": (fft.fft, floats((32, 1009)).astype("complex64")),
        "one line": (fft.fft, floats(30).astype("complex64")),
        "product": (jnp.matmul, square, square),
        "with a vector": (jnp.matmul, square, square[0]),
        "of bytes": (lambda x, y: lax.dot(x, y, preferred_element_type="int32"), bytes_, bytes_),
        "convolution": (
            lambda x, k: lax.conv(x, k, (1, 1), "SAME"),
            floats((2, 3, 16, 16)).astype("float32"), floats((4, 3, 3, 3)).astype("float32"),
        ),
        "triangular": (lambda a, b: lax.linalg.triangular_solve(a, b), positive, square),
        "lu": (lambda a: lax.linalg.lu(a)[0], square),
        "qr": (lambda a: jnp.linalg.qr(a)[1], stack),
        "cholesky": (jnp.linalg.cholesky, positive),
        "eigvalsh": (jnp.linalg.eigvalsh, positive),
        "sort": (jnp.sort, floats(5000).astype("float32")),
        "cumsum": (jnp.cumsum, floats(50000).astype("float32")),
        "in a loop": (
            lambda x: lax.fori_loop(0, 3, lambda _, c: fft.ifft(fft.fft(c) * 2), x),
            floats((16, 32)).astype("complex128"),
        ),
        "a loop with a condition": (
            lambda x: lax.while_loop(lambda c: abs(c).max() < 10, lambda c: fft.fft(c), x),
            floats(48).astype("complex64"),
        ),
        "a branch": (
            lambda x: lax.cond(x[0, 0] < 9, jnp.linalg.cholesky, lambda x: x @ x, x), positive
        ),
        "turns apart": (
            lambda x: lax.map(lambda a: a @ a, x),
            floats((64, 40, 40)).astype("float32"),
        ),
        "segments": (lambda xs: [2 * x for x in xs], [stack, square]),
    }
    with gf.enable_x64(True):
        for name, (function, *arguments) in programs.items():
            del late[:]
            gf.block_until_ready(gf.jit(function)(*arguments))
            assert late and not any(late), f"{name}: {late} built while it was written"
"""


def test_nothing_is_built_while_instructions_are_written(tmp_path):
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(tmp_path), "GPUFLOW_NUM_THREADS": "2"}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], check=True, env=environment, timeout=300
    )
