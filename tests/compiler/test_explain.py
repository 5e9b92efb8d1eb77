"""gf.explain: every step, its equations with source lines, and a reason for each stored buffer."""

import re
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

X = np.ones((64, 32), np.float32)
W = np.ones((32, 16), np.float32)


def explained(f, *args):
    text = gf.explain(f, *args).text
    for line in re.findall(r"^ *source +(.*)$", text, re.M):
        # The file is there, and is the kernel's readable text.
        assert "def kernel" in Path(line).expanduser().read_text(encoding="utf-8")
    return text


def test_steps_equations_and_sources():
    def f(x, w):
        h = jnp.tanh(x @ w)
        return h - h.mean(1, keepdims=True)

    text = explained(f, X, W)
    assert text.startswith("f: 1 kernel, 1 library call; ")
    assert "1. library call: dot_general" in text and "2. row kernel row_" in text
    assert "65.5 kFLOP" in text  # 2 * 64 * 32 * 16
    assert "reads   a:f32[64,32] (8.19 kB), b:f32[32,16] (2.05 kB)" in text
    assert re.search(r"= tanh \w+  # .*test_explain\.py:\d+ \(f\)", text)
    assert "for step 2: dot_general is a library call" in text
    assert "for output" in text


def names_before_they_are_listed(text):
    """Operands of equations that neither an equation nor a list of what a step reads has named."""
    named, missing = set(), []
    for line in text.splitlines():
        reads = re.match(r" +reads +(.*)", line)
        if reads:
            named.update(re.findall(r"(\w+):\w+\[", reads[1]))
        equation = re.match(r" +((?:\w+:\w+\[[^=]*\] )+)= \w+(?:\[.*\])? (.*?)(?:  #.*)?$", line)
        if equation:
            operands = [word for word in equation[2].split() if re.fullmatch(r"[a-z]+", word)]
            missing += [(line, word) for word in operands if word not in named]
            named.update(re.findall(r"(\w+):", equation[1]))
    return missing


def test_no_name_is_used_before_it_is_listed():
    """A broadcast that no step computes, since it is only another way to read, was left out."""

    def f(x, w, b):
        h = jnp.tanh(x @ w + b)
        return (h.T * b[:, None]).sum(0), jnp.sort(h, 1), h - h.mean(1, keepdims=True)

    text = explained(f, X, W, W[0])
    assert names_before_they_are_listed(text) == []
    assert "broadcast_in_dim" in text
    assert names_before_they_are_listed(re.sub(".*broadcast_in_dim.*", "", text))


def test_each_source_once_with_a_short_path(monkeypatch, tmp_path):
    def f(x):
        return jnp.sort(x * 2 + 1, 1), (x * 2 + 1).sum()

    monkeypatch.chdir(Path(__file__).parent)
    text = gf.explain(f, X).text
    for paragraph in text.split("\n\n"):
        sources = re.findall(r"^ *source +(.*)$", paragraph, re.M)
        assert len(sources) == len(set(sources))
    assert "# test_explain.py:" in text and str(Path.cwd()) not in text
    monkeypatch.setenv("HOME", str(Path(__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    assert "# ~/compiler/test_explain.py:" in gf.explain(f, X).text


REASONS = {
    "it would reduce different axes": lambda x: x.sum(1)[:, None] * (x * x) + x.sum(0),
    "selects elements of it": lambda x: (x * 2)[jnp.array([1, 0])] + 1,
    "a reduction of all elements cannot read them twice": lambda x: x / x.sum(),
    "only a reduction of the last axes": lambda x: x - x.mean(0),
    "it would store arrays of different axes": lambda x: (x.sum(1), x[0] * 2),
    "scan runs other programs": lambda x: lax.scan(lambda c, r: (c + r, r), x[0] * 2, x)[0],
    "sort is a library call": lambda x: jnp.sort(x * 2, 1),
}


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("reason", [r for r in REASONS if not r.startswith("it would store")])
def test_boundaries_have_a_reason(reason):
    text = explained(REASONS[reason], X)
    assert reason in text


def test_every_stored_buffer_has_a_reason():
    for f in REASONS.values():
        text = explained(f, X)
        written = re.findall(r"^ *writes +((?:.|\n {8,})*)$", text, re.M)
        names = {name for line in written for name in re.findall(r"(\w+):\w+\[", line)}
        stored = set(re.findall(r"^ *stores +(\w+) for ", text, re.M))
        assert names == stored


@pytest.mark.usefixtures("loops_of_steps")
def test_programs_inside_are_explained():
    def f(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))

    text = explained(f, X)
    assert "1 loop or branch" in text and "program 1: " in text and "program 2: " in text
    assert "temporaries of its programs" in text and "= sin " in text


def test_jitted_functions_and_structs():
    f = gf.jit(lambda tree, n: tree["x"] * n, static_argnums=1)
    struct = gf.ShapeDtypeStruct((3,), np.float32)
    text = explained(f, {"x": struct}, 3)
    assert text.startswith("<lambda>: 1 kernel; ")
    assert explained(lambda: None).startswith("<lambda>: nothing to compute; 0 FLOP")
    assert "1 copy" in explained(lambda x: x[::2], X)
    with pytest.raises(TypeError, match="must be arrays"):
        gf.explain(lambda x: x, "text")


def test_equal_kernels_run_as_one():
    text = explained(lambda xs: [x * 2 for x in xs], [np.ones(3 + k) for k in range(4)])
    assert text.startswith("<lambda>: 1 kernel; ") and "for 4 sets of arrays" in text


# --- stages -------------------------------------------------------------------------------------


def layer(x, w):
    return (x @ w - 1.0) / (1.0 * x[:, :1])


def at(stage, f=layer, args=(X, W), platform=None):
    return gf.jit(f).lower(*args).compile().explain(stage, platform)


def test_the_jaxpr_is_what_was_traced():
    assert str(gf.explain(layer, X, W, stage="jaxpr")) == f"{gf.make_jaxpr(layer)(X, W)}"


def test_passes_say_what_they_changed():
    text = at("passes")
    idle = "".join(f"{name}: nothing to do\n" for name in ("inline", "lanes", "merge"))
    assert text.startswith(idle + "simplify:\n{ lambda ;")
    # 1.0 * x is x.
    assert text.count(" mul ") == 0 and " mul " in at("jaxpr")
    assert text.endswith("overlap: nothing to do")


def test_groups_have_their_equations_and_names_are_apart():
    first, second, names = re.split(r"\n(?! )", at("groups"))
    assert first.startswith("one call: dot_general\n    ")
    assert second.startswith("one kernel: map over 64 x 16\n    ") and "= div " in second
    assert names.startswith("other names of arrays that are there\n    ") and "slice" in names
    rows = at("groups", lambda x: x.sum(1), (X,))
    assert rows.startswith("one kernel: row over 64 x 32 (reduced)")


def test_kernels_and_their_text_belong_together():
    kernels, text = at("kernels"), at("text")
    assert kernels.startswith("kernel map_sub_div(") and "store u0" in kernels
    assert "def kernel_map_sub_div(words, lo, hi):" in text
    # The text begins with its kernel, as comments.
    assert "# " + kernels.strip().replace("\n", "\n# ") in text


def test_binding_names_arrays_and_words():
    text = at("binding")
    assert f"a  f32[64,32], {64 * 32 * 4} bytes: argument 0" in text
    twice = at("binding", lambda x, w: x @ w @ w.T, (X, W))
    assert f"{64 * 16 * 4} bytes: temporary, from byte 0" in twice
    assert "bytes: result, new with each call" in text and "dot_general: a, b -> " in text
    # Literals are words too: their values, not their bits.
    assert re.search(r"map_sub_div: 1024 points, .*\n +x0 = .*= 1\.0, .*n_i0 = 64", text)
    donated = gf.jit(lambda x: x + 1, donate_argnums=0).lower(X).compile().explain("binding")
    assert "in the memory of a donated argument" in donated


@pytest.mark.usefixtures("loops_of_steps")
def test_programs_inside_have_stages_too():
    def loop(x):
        return lax.scan(lambda c, r: (jnp.sin(c) * r, c), x[0], x)

    assert "\nprogram 1 of scan:\none kernel: map over 32\n" in at("groups", loop, (X,))
    assert "kernel map_sin_mul(" in at("kernels", loop, (X,))
    assert "def kernel_map_sin_mul(" in at("text", loop, (X,))
    outer, inner = at("binding", loop, (X,)).split("program 1 of scan:\n")
    assert "scan: " in outer and "result, new with each call" in outer
    assert "map_sin_mul: 32 points" in inner and "an array that the caller passes" in inner


@pytest.mark.usefixtures("loops_of_steps")
def test_the_driver_shows_native_programs():
    text = at("driver")
    assert text.startswith("def driver(operands, device=None):\n")
    assert re.search(r"run\d+\(.*\)  # dot_general, map_sub_div\n", text)
    assert re.search(r"    word \d+ = array 0 \+ 0 bytes\n", text)
    assert re.search(r"    run map_sub_div with the words from \d+, 64 indices, \d+ at ", text)
    assert "run a function of the runtime with" in text

    def loop(x):
        return lax.scan(lambda c, r: (c + r, r), x[0], x)[0]

    assert re.search(r"^    scan$", at("driver", loop, (X,)), re.M)


def test_kernels_of_cuda_need_no_gpu():
    """The text of CUDA, and of none but the stages that take a device."""
    text = at("text", platform="cuda")
    assert "def map_sub_div(x0, " in text and "cuda.blockIdx.x" in text
    assert text == at("text", platform="gpu")
    assert "map_sub_div: 1024 points" in at("binding", platform="cuda")
    with pytest.raises(ValueError, match=r"stage 'plan' needs a device.* got platform='cuda'"):
        at("plan", platform="cuda")


def test_stages_and_platforms_that_there_are_not():
    with pytest.raises(ValueError, match=r"stage must be one of \('jaxpr', .*got 'image'\. Fix: "):
        at("image")
    with pytest.raises(ValueError, match=r"platform must be one of \('cuda', 'cpu'\); got 'tpu'"):
        at("text", platform="tpu")
