"""Forged files of exported functions are ExportErrors when they are read, or functions that work.

Machine code in them is not forged: whoever loads a file trusts it as a program.
"""

from __future__ import annotations

import json
import os
import random as python_random
import sys
import zlib
from collections import namedtuple

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import export, lax
from gpuflow.errors import ExportError
from gpuflow.export import files
from gpuflow.export.texts import SymbolicScope
from gpuflow.export.trees import looked_up

sys.path.append(os.path.join(os.path.dirname(__file__), "checkpointing"))
from forging import changed, drawn, forgeries

SEED = int(os.environ.get("FUZZ_SEED", "1"))
X = jnp.arange(12.0).reshape(3, 4)


def body(x):
    _, loop = lax.fori_loop(0, 3, lambda i, c: (c[0] + 1, c[1] * 1.5 + i), (jnp.int32(0), x))
    branch = lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
    until = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 1.1), (0, x))
    return {
        "a": [loop @ jnp.ones((4, 2)), None],
        "b": (branch[1:, ::2], jnp.argmax(x, 1)),
        "c": until,
    }


def layers(d):
    return jnp.tanh(d["w"] @ d["x"].T) + 2.5, jnp.sort(d["x"], 1)


FUNCTIONS = {"body": (body, (X,)), "layers": (layers, ({"w": X[:2], "x": X},))}


@pytest.fixture(scope="module")
def written():
    return {
        name: bytes(export.export(gf.jit(f))(*args).serialize(vjp_order=name == "layers"))
        for name, (f, args) in FUNCTIONS.items()
    }


def parts(blob):
    container = files.Container(blob)
    names = [name for name in ("program", "arrays", "code", "vjp") if name in container]
    content = json.loads(json.dumps(container.content))
    return content, {name: bytes(container.section(name)) for name in names}


def records_of(sections):
    return json.loads(zlib.decompress(sections["program"]))


def packed(content, sections):
    """With the checksum that a forger computes, and without looking at what is packed."""
    places, data = {}, b""
    for name, section in sections.items():
        places[name] = [len(data), len(section)]
        data += section
    head = {"format": files.FORMAT, "gpuflow": "9.1", "content": content, "sections": places}
    return with_header(json.dumps(head).encode(), data)


def with_header(header, data):
    rest = len(header).to_bytes(8, "little") + header + data
    whole = len(files._MAGIC) + 8 + 32 + len(rest)
    digest = files.hashlib.sha256(rest).digest()
    return files._MAGIC + whole.to_bytes(8, "little") + digest + rest


def is_refused(blob, args, name, runs=True):
    """Read and call a forged function; True if it is refused when it is read."""
    try:
        exported = export.deserialize(blob)
    except ExportError as error:
        check_text(error, name)
        return True
    if runs:
        try:
            for leaf in gf.tree.leaves(exported.call(*args)):
                np.asarray(leaf)
        except ExportError as error:
            check_text(error, name)
    return False


def check_text(error, name):
    text = str(error)
    assert text.startswith("[export] ") and "Fix: " in text and len(text) < 20_000, (name, text)


@pytest.mark.filterwarnings("ignore:.export. kernels of an exported function")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forged_headers(written, name):
    content, sections = parts(written[name])
    del content["kernels"]["table"][1:]
    count = refused = 0
    for what, forged in forgeries(content, SEED, 61):
        runs = "kernels" not in what  # whose code would run
        refused += is_refused(packed(forged, sections), FUNCTIONS[name][1], what, runs)
        count += 1
    assert count > 30 and refused > 0.5 * count


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forged_programs(written, name):
    content, sections = parts(written[name])
    records = records_of(sections)
    rng = python_random.Random(SEED)
    refused = 0
    for _ in range(60):
        what, forged = drawn(records, rng)
        if "length" in what:
            continue  # a loop of 2**31 iterations is a program too
        sections["program"] = zlib.compress(json.dumps(forged).encode())
        refused += is_refused(packed(content, sections), FUNCTIONS[name][1], what)
    assert refused > 25


@pytest.mark.filterwarnings("ignore:.export. kernels of an exported function")
def test_flipped_bytes_under_a_right_checksum(written):
    content, sections = parts(written["body"])
    content["kernels"]["table"] = []
    container, rng = files.Container(packed(content, sections)), python_random.Random(SEED)
    header = json.dumps(
        {"format": 1, "gpuflow": "9.1", "content": content, "sections": container._sections}
    ).encode()
    data = bytes(container._data)
    program = json.dumps(records_of(sections)).encode()
    for _ in range(20):
        flipped = bytearray(header)
        flipped[rng.randrange(len(header))] ^= 1 << rng.randrange(8)
        is_refused(with_header(bytes(flipped), data), (X,), "header")
        flipped = bytearray(program)
        flipped[rng.randrange(len(program))] ^= 1 << rng.randrange(8)
        forged = {**sections, "program": zlib.compress(bytes(flipped))}
        is_refused(packed(content, forged), (X,), "program")
        flipped = bytearray(sections["program"])
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        is_refused(packed(content, {**sections, "program": bytes(flipped)}), (X,), "compressed")
        cut = rng.randrange(len(header))
        assert is_refused(with_header(header[:cut], data), (X,), "cut")


def test_nothing_can_be_too_deep_or_too_large(written):
    content, sections = parts(written["body"])
    for text in (b"[" * 200_000, b'{"content":' * 200_000):
        assert is_refused(with_header(text, b""), (X,), "deep header")
        forged = {**sections, "program": zlib.compress(text)}
        assert is_refused(packed(content, forged), (X,), "deep program")
    bomb = zlib.compress(bytes(1 << 22)) * 2
    assert is_refused(packed(content, {**sections, "program": bomb}), (X,), "bomb")
    for length in (0, 1, 2**40, 2**64 - 1):
        blob = bytearray(written["body"])
        blob[56:64] = length.to_bytes(8, "little")
        blob[24:56] = files.hashlib.sha256(blob[56:]).digest()
        assert is_refused(bytes(blob), (X,), "length of the header")


def test_deep_arguments_are_refused_when_they_are_written():
    """A file was written that deserialize called too deep."""
    deep = X
    for _ in range(70):
        deep = [deep]
    exported = export.export(gf.jit(lambda d: gf.tree.leaves(d)[0] * 2))(deep)
    with pytest.raises(ExportError, match=r"must fit its format; got .*deeper than 64 .*Fix: fla"):
        exported.serialize()


def held_by(records, op, param):
    """A program that an equation of ``op`` has in a param."""
    for program in records["programs"]:
        for eqn in program["eqns"]:
            if eqn[0] == op:
                value = dict(eqn[3])[param]
                return records["programs"][(value if value[0] == "program" else value[2])[1]]
    raise AssertionError(f"no {op}")


def branch_inputs(records):
    """The program that ended the process: a branch with more inputs than there are operands."""
    program = held_by(records, "cond", "branches")
    program["in"].append(program["in"][0])
    program["out"] = [n + 1 if type(n) is int and n else n for n in program["out"]]


CHANGES = {
    "an operand twice": lambda r: r["programs"][-1]["eqns"][-1][1].append(0),
    "a negative variable": lambda r: r["programs"][-1]["out"].__setitem__(0, -1),
    "a result too few": lambda r: r["programs"][-1]["out"].pop(),
    "a result too many": lambda r: r["programs"][-1]["out"].append(0),
    "a constant too many": lambda r: r["consts"].append(3),
    "a constant that is a text": lambda r: r["consts"].append("x"),
    "another branch": branch_inputs,
    "a branch with another result": lambda r: held_by(r, "cond", "branches")["out"].append(0),
    "a while loop with other carries": lambda r: held_by(r, "while", "body")["out"].reverse(),
    "a while loop with a carry too few": lambda r: held_by(r, "while", "body")["out"].pop(),
    "a condition that is not a bool": lambda r: (
        held_by(r, "while", "condition")["out"].reverse()
        or held_by(r, "while", "condition")["out"].__setitem__(0, 0)
    ),
    "a scan with a result too few": lambda r: held_by(r, "scan", "jaxpr")["out"].pop(),
    "a scan with other carries": lambda r: held_by(r, "scan", "jaxpr")["out"].reverse(),
    "no programs": lambda r: r.__setitem__("programs", []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_programs_that_ended_in_other_errors(written, name):
    content, sections = parts(written["body"])
    records = records_of(sections)
    CHANGES[name](records)
    sections["program"] = zlib.compress(json.dumps(records).encode())
    assert is_refused(packed(content, sections), (X,), name)


def test_a_derivative_must_be_that_of_the_function(written):
    content, sections = parts(written["layers"])
    _, args = FUNCTIONS["layers"]

    def gradient(blob):
        read = export.deserialize(blob)
        return gf.grad(lambda d: read.call(d)[0].sum())(*args)

    wanted = gf.grad(lambda d: layers(d)[0].sum())(*args)
    got = gradient(packed(content, sections))
    np.testing.assert_allclose(got["w"], wanted["w"], rtol=1e-6)
    for other in (b"", b"none", written["body"], written["layers"]):
        with pytest.raises(ExportError, match=r"\[export\] .*Fix: "):
            gradient(packed(content, {**sections, "vjp": other}))


def test_only_bytes_are_read(tmp_path):
    for other in ("text", None, 3, tmp_path):
        with pytest.raises(TypeError, match=r"\[export\] an exported function must be bytes; got "):
            export.deserialize(other)


Pair = namedtuple("Pair", "x y")


def test_classes_that_refuse_what_a_file_says():
    export.register_namedtuple_serialization(Pair, serialized_name="forged.Pair")
    exported = export.export(gf.jit(lambda p: p.x + p.y))(Pair(X, X))
    content, sections = parts(bytes(exported.serialize()))
    place = ("trees", 0, 1, 1)
    assert content["trees"][0][1][1] == ["node", "forged.Pair", "", 0, 0]
    for record in (
        ["node", "forged.Pair", "", 0, 0, None],
        ["node", "forged.Pair", "%%%", 0, 0],
        ["node", "gpuflow.numpy.linalg:EighResult", "", 0, 0, None],
    ):
        forged = changed(content, place, "replaced", record)
        read = export.deserialize(packed(forged, sections))
        with pytest.raises(ExportError, match=r"\[export\] .*Fix: "):
            read.call(Pair(X, X))


@pytest.mark.parametrize(
    "text",
    [
        "-" * 9000 + "b",
        "(" * 5000 + "b" + ")" * 5000,
        "((a**8)**8)**8",
        "((((9**8)**8)**8)**8)**8",
        "*".join(["(a+b)"] * 900),
        "(a+b+c+d+e+f)**8",
        "floordiv(3, 0)",
        "mod(b, 0)",
        "b // (2 - 2)",
        "+".join("abcdefgh" * 500),
        "1" * 9000,
        "b.c",
        "open('x')",
        "lambda: b",
    ],
)
def test_texts_of_sizes_are_bounded(text):
    """Powers of powers took time and memory without end; a division by 0 was ZeroDivisionError."""
    with pytest.raises(ValueError, match=r"\[export\] a size must be written .*Fix: ") as caught:
        export.symbolic_shape(text)
    assert len(str(caught.value)) < 500


def test_divisions_by_a_size_that_is_0_at_a_call():
    scope = SymbolicScope(["floordiv(b, c - 3) >= 1"])
    assert not scope.constraints[0].holds({"b": 8, "c": 3})
    assert scope.constraints[0].holds({"b": 8, "c": 5})
    sizes = export.symbolic_shape("b, 2*b")
    exported = export.export(gf.jit(lambda x: x * 2))(gf.ShapeDtypeStruct(sizes, jnp.float32))
    content, sections = parts(bytes(exported.serialize(sizes=[])))
    forged = json.loads(json.dumps(content).replace("2*b", "2*b + 0*floordiv(b, b - 7)"))
    assert export.deserialize(packed(forged, sections)).call(jnp.ones((3, 6))).shape == (3, 6)
    forged = json.loads(json.dumps(content).replace("2*b", "2*b + mod(7, b - 7) - mod(7, b - 7)"))
    assert export.deserialize(packed(forged, sections)).call(jnp.ones((7, 14))).shape == (7, 14)
    forged = json.loads(
        json.dumps(content).replace("2*b", "2*b + floordiv(1, 2 + (b - 7)*(b - 7))")
    )
    assert export.deserialize(packed(forged, sections)).call(jnp.ones((7, 14))).shape == (7, 14)
    forged = json.loads(json.dumps(content).replace("2*b", "2*b + floordiv(0, b - 7)"))
    with pytest.raises(
        ExportError, match=r"must not be divided by 0; got .* for b = 7\. Fix: othe"
    ):
        export.deserialize(packed(forged, sections)).call(jnp.ones((7, 14)))


def test_forged_symbolic_programs():
    sizes = export.symbolic_shape("b, 3", constraints=["b >= 2"])
    function = gf.jit(lambda x: jnp.tanh(x).mean(0) + x.shape[0])
    exported = export.export(function)(gf.ShapeDtypeStruct(sizes, jnp.float32))
    content, sections = parts(bytes(exported.serialize(sizes=[])))
    rng, refused = python_random.Random(SEED), 0
    for _ in range(30):
        what, forged = drawn(records_of(sections), rng)
        changed_sections = {**sections, "program": zlib.compress(json.dumps(forged).encode())}
        refused += is_refused(packed(content, changed_sections), (jnp.ones((5, 3)),), what)
        what, forged = drawn({k: v for k, v in content.items() if k != "kernels"}, rng)
        forged["kernels"] = content["kernels"]
        is_refused(packed(forged, sections), (jnp.ones((5, 3)),), what)
    assert refused > 10


def test_names_are_those_that_modules_define():
    """gpuflow.cli.worker:os.system was found, because that module imports os."""
    assert looked_up("gpuflow.errors:ExportError") is None  # defined elsewhere
    assert looked_up("gpuflow.base.errors:ExportError") is ExportError
    for path in (
        "gpuflow.base.config:os.system",
        "gpuflow.base.config:os",
        "os:system",
        "gpuflow.__main__:main",
        "gpuflow.none:x",
        "gpuflow.:x",
        "gpuflow.base.errors:",
        "gpuflow.base.errors:check.__globals__",
        "gpuflow..base:x",
    ):
        assert looked_up(path) is None, path


def test_a_program_to_start_is_not_started(written):
    content, sections = parts(written["body"])
    records = records_of(sections)
    records["programs"][-1]["eqns"][0][3] = [["axis", ["name", "gpuflow.__main__:main"]]]
    sections["program"] = zlib.compress(json.dumps(records).encode())
    assert is_refused(packed(content, sections), (X,), "main")
    assert "gpuflow.__main__" not in sys.modules
