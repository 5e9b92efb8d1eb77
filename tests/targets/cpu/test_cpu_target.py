"""Kernels for processors that have less than this one, as GPUFLOW_CPU_TARGET asks for."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuflow.base.config import read_environment
from gpuflow.base.variables import CPU_TARGETS
from gpuflow.targets.cpu.codegen import processor
from gpuflow.targets.cpu.codegen.host import HostProcessor
from gpuflow.targets.cpu.codegen.processor import target_named

PACKAGE = str(Path(__file__).resolve().parents[3])
IS_X86 = platform.machine() in ("x86_64", "AMD64")

PROGRAM = """
import json, sys
import numpy as np
import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.runtime.kernel_cache import cache_stats

special = np.array([
    0.0, -0.0, 1, -1, 0.5, 2.5, -3.7, 88.9, -104, 700, 710, -746, 1e-45, -1e-40, 1e-310,
    1e10, -1e10, 3e38, -3e38, np.inf, -np.inf, np.nan,
] * 3)
random = np.random.default_rng(0)

def functions(x):
    return [f(x) for f in (
        jnp.exp, jnp.exp2, jnp.expm1, jnp.log, jnp.log2, jnp.log1p, jnp.tanh, jnp.sin, jnp.cos,
        jnp.tan, lax.erf, lax.erfc, gf.nn.sigmoid, jnp.sqrt, lax.rsqrt, jnp.cbrt, jnp.floor,
        jnp.round, jnp.sign, jnp.arctan, jnp.sinh,
    )]

def pairs(x, y):
    names = jnp.power, jnp.arctan2, jnp.maximum, jnp.minimum, lax.rem, jnp.hypot
    return [f(x, y) for f in names]

def reductions(x):
    return [
        x.sum(0), x.sum(1), x.max(1), x.min(0), x.argmax(1), x.var(0), gf.nn.softmax(x),
        jnp.cumsum(x, 0), gf.nn.logsumexp(x, 1), (x > 0).sum(), x.T + 1, x.astype(jnp.int32),
        x.astype(jnp.float16).astype(np.float32), x.astype(jnp.bfloat16).astype(np.float32),
    ]

def products(x, images, w):
    def convolved(w):
        return lax.conv(images, w, (2, 1), "SAME")
    return [x.T @ x, convolved(w), gf.grad(lambda w: (convolved(w) ** 2).sum())(w)]

def bits(key):
    return [gf.random.bits(key, (1000,)), gf.random.uniform(key, (50,))]

out = []
def add(f, *args):
    out.extend(np.asarray(y) for y in gf.jit(f)(*args))

add(functions, special.astype("f"))
add(pairs, np.repeat(special, 66).astype("f"), np.tile(special, 66).astype("f"))
x = random.standard_normal((70, 33)).astype("f")
add(reductions, x)
images = random.standard_normal((2, 4, 9, 11)).astype("f")
add(products, x, images, random.standard_normal((5, 4, 3, 3)).astype("f"))
add(bits, gf.random.PRNGKey(7))
with gf.enable_x64():
    add(functions, special)
    add(reductions, random.standard_normal((41, 130)))
np.savez(sys.argv[1], *out)
print(json.dumps([cache_stats().built, cache_stats().loaded]))
"""


def run(folder, target, name):
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(folder), "PYTHONPATH": PACKAGE}
    path = folder / f"{name}.npz"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        env={**environment, "GPUFLOW_CPU_TARGET": target},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    with np.load(path) as stored:
        return [stored[key] for key in stored], json.loads(ran.stdout)


def reachable():
    found = []
    for name in CPU_TARGETS[1:]:
        try:
            found.append(target_named(name).name)
        except RuntimeError:
            continue
    return found


@pytest.mark.skipif(not IS_X86, reason="levels of x86-64")
def test_targets_differ_in_last_bits_only_and_share_no_kernel(tmp_path):
    """nan and infinities stand at the same places, integers and random bits are equal."""
    reference, (built, _) = run(tmp_path, "native", "native")
    for target in reachable():
        got, (own, _) = run(tmp_path, target, target)
        assert own == built
        for number, (a, b) in enumerate(zip(got, reference, strict=True)):
            assert a.dtype == b.dtype and a.shape == b.shape
            if a.dtype.kind != "f":
                np.testing.assert_array_equal(a, b)
                continue
            for kind in (np.isnan, np.isposinf, np.isneginf):
                np.testing.assert_array_equal(kind(a), kind(b), str((target, number)))
            # A few ulp for functions, more for sums, of which only the absolute error is small.
            finite, form = np.isfinite(b), np.finfo(a.dtype)
            largest = np.abs(b[finite]).max(initial=1)
            scale = largest if largest < 1e4 else 1
            np.testing.assert_allclose(
                a[finite],
                b[finite],
                rtol=64 * form.eps,
                atol=64 * form.eps * scale,
                err_msg=str((target, number)),
            )
        _, (again, loaded) = run(tmp_path, target, target)
        assert again == 0 and loaded == own


@pytest.mark.skipif(not IS_X86, reason="levels of x86-64")
def test_a_target_beyond_this_processor_is_refused(monkeypatch):
    features = (*target_named("x86-64").features, "avx")
    old = HostProcessor("core2", "", features)
    monkeypatch.setattr(processor, "host_processor", lambda: old)
    assert target_named("x86-64").openblas_core_type == "Prescott"
    with pytest.raises(RuntimeError, match=r"GPUFLOW_CPU_TARGET must be a level.*avx2.*Fix"):
        target_named("x86-64-v3")


def test_the_setting_is_one_of_the_targets(monkeypatch):
    monkeypatch.setenv("GPUFLOW_CPU_TARGET", "i386")
    with pytest.raises(ValueError, match=r"GPUFLOW_CPU_TARGET must be one of native, x86"):
        read_environment()
    monkeypatch.setenv("GPUFLOW_CPU_TARGET", "x86-64-v2")
    assert read_environment().cpu_target == "x86-64-v2"
    monkeypatch.delenv("GPUFLOW_CPU_TARGET")
    assert read_environment().cpu_target == "native"


def test_no_target_has_arithmetic_of_float16(monkeypatch):
    """LLVM would contract a product and a sum of float16 over the rounding between them."""
    features = ("avx512f", "avx512fp16", "f16c", "fma")
    flags = ",".join(f"+{feature}" for feature in features)
    own = HostProcessor("sapphirerapids", flags, features)
    monkeypatch.setattr(processor, "host_processor", lambda: own)
    target = target_named("native")
    assert target.flags == "+avx512f,+f16c,+fma,-avx512fp16,+prefer-no-gather"
    assert target.features == {"avx512f", "f16c", "fma"}
