"""gf.explain: every step, its equations with source lines, and a reason for each stored buffer."""

import re

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

X = np.ones((64, 32), np.float32)
W = np.ones((32, 16), np.float32)


def explained(f, *args, capsys, **kwargs):
    assert gf.explain(f, *args, **kwargs) is None
    text = capsys.readouterr().out
    for line in re.findall(r"^ *source +(.*)$", text, re.M):
        # The file is there, and is the kernel's readable text.
        with open(line) as file:
            assert "def kernel" in file.read()
    return text


def test_steps_equations_and_sources(capsys):
    def f(x, w):
        h = jnp.tanh(x @ w)
        return h - h.mean(1, keepdims=True)

    text = explained(f, X, W, capsys=capsys)
    assert text.startswith("f: 1 kernel, 1 library call; ")
    assert "1. library call: dot_general" in text and "2. row kernel row_" in text
    assert "65.5 kFLOP" in text  # 2 * 64 * 32 * 16
    assert "reads   a:f32[64,32] (8.19 kB), b:f32[32,16] (2.05 kB)" in text
    assert re.search(r"= tanh \w+  # .*test_explain\.py:\d+ \(f\)", text)
    assert "for step 2: dot_general is a library call" in text
    assert "for a result of the program" in text


REASONS = {
    "it would reduce different axes": lambda x: x.sum(1)[:, None] * (x * x) + x.sum(0),
    "chooses elements of it": lambda x: (x * 2)[jnp.array([1, 0])] + 1,
    "a reduction of all elements cannot go over them again": lambda x: x / x.sum(),
    "only a reduction of the last axes": lambda x: x - x.mean(0),
    "it would store arrays of different axes": lambda x: (x.sum(1), x[0] * 2),
    "scan runs programs of its own": lambda x: lax.scan(lambda c, r: (c + r, r), x[0] * 2, x)[0],
    "sort is a library call": lambda x: jnp.sort(x * 2, 1),
}


@pytest.mark.parametrize("reason", [r for r in REASONS if not r.startswith("it would store")])
def test_boundaries_have_a_reason(reason, capsys):
    text = explained(REASONS[reason], X, capsys=capsys)
    assert reason in text


def test_every_stored_buffer_has_a_reason(capsys):
    for f in REASONS.values():
        text = explained(f, X, capsys=capsys)
        written = re.findall(r"^ *writes +((?:.|\n {8,})*)$", text, re.M)
        names = {name for line in written for name in re.findall(r"(\w+):\w+\[", line)}
        stored = set(re.findall(r"^ *stores +(\w+) for ", text, re.M))
        assert names == stored


def test_programs_inside_are_explained(capsys):
    def f(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))

    text = explained(f, X, capsys=capsys)
    assert "1 loop or branch" in text and "program 1: " in text and "program 2: " in text
    assert "temporaries of its programs" in text and "= sin " in text


def test_jitted_functions_and_structs(capsys):
    f = gf.jit(lambda tree, n: tree["x"] * n, static_argnums=1)
    struct = gf.ShapeDtypeStruct((3,), np.float32)
    text = explained(f, {"x": struct}, 3, capsys=capsys)
    assert text.startswith("<lambda>: 1 kernel; ")
    assert explained(lambda: None, capsys=capsys).startswith("<lambda>: nothing to compute; 0 FLOP")
    assert "1 copy" in explained(lambda x: x[::2], X, capsys=capsys)
    with pytest.raises(TypeError, match="must be arrays"):
        gf.explain(lambda x: x, "text")


def test_equal_kernels_run_as_one(capsys):
    text = explained(lambda xs: [x * 2 for x in xs], [np.ones(3 + k) for k in range(4)],
                     capsys=capsys)  # fmt: skip
    assert text.startswith("<lambda>: 1 kernel; ") and "for 4 sets of arrays" in text
