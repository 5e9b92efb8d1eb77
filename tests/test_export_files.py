"""Bytes of exported functions that are damaged, foreign, of another version or another machine."""

from __future__ import annotations

import json
import pickle
import random as python_random
import zlib

import numpy as np
import pytest
from export_cases import read_elsewhere, write
from export_reader import digest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import export
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.errors import ExportError
from gpuflow.export import files, kernels
from gpuflow.export.records import Reader, Writer


def doubled(x):
    return x * 2 + 1


@pytest.fixture(scope="module")
def blob():
    return bytes(export.export(gf.jit(doubled))(jnp.arange(40)).serialize(vjp_order=1))


def repacked(blob, change):
    """The bytes with other content under a right checksum, as who can write the file can make."""
    container = files.Container(blob)
    names = [name for name in ("program", "arrays", "code", "vjp") if name in container]
    sections = {name: bytes(container.section(name)) for name in names}
    change(container.content, sections)
    return files.packed(container.content, sections)


def with_program(change):
    def changed(content, sections):
        records = json.loads(zlib.decompress(sections["program"]))
        change(records)
        sections["program"] = zlib.compress(json.dumps(records).encode())

    return changed


@pytest.mark.parametrize("other", [b"", b"hello", b"PK\x03\x04" * 100, pickle.dumps({"a": 1})])
def test_foreign_bytes(other):
    with pytest.raises(ExportError, match=r"what Exported.serialize gave; got \d+ bytes that"):
        export.deserialize(other)


def test_a_part_of_the_bytes(blob):
    places = python_random.Random(0).sample(range(16, len(blob)), 30)
    for cut in (len(blob) // 2, len(blob) - 1, 40, 17, *places):
        with pytest.raises(ExportError, match=rf"must be whole; got {cut} bytes of"):
            export.deserialize(blob[:cut])
    with pytest.raises(ExportError, match="must be whole"):
        export.deserialize(blob + b"x")


def test_any_damaged_byte_is_found(blob):
    for place in python_random.Random(1).sample(range(24, len(blob)), 60):
        damaged = bytearray(blob)
        damaged[place] ^= 0x10
        with pytest.raises(ExportError, match="must be as it was written; got other bytes"):
            export.deserialize(damaged)


def test_another_format(blob, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", 7)
    monkeypatch.setattr(files, "__version__", "9.1")
    other = repacked_now(blob)
    monkeypatch.undo()
    with pytest.raises(ExportError, match=r"of format 1.*got format 7, written by gpuflow 9\.1"):
        export.deserialize(other)


def repacked_now(blob):
    """With the format and the version that ``files`` has now, of bytes of format 1."""
    now, files.FORMAT = files.FORMAT, 1
    container = files.Container(blob)
    files.FORMAT = now
    names = ("program", "arrays", "code")
    sections = {name: bytes(container.section(name)) for name in names}
    return files.packed(container.content, sections)


def test_another_version_is_read_where_its_program_is_known(blob, monkeypatch):
    monkeypatch.setattr(files, "__version__", "9.1")
    other = repacked(blob, lambda content, sections: None)
    rename = with_program(lambda r: r["programs"][-1]["eqns"][0].__setitem__(0, "fused"))
    unknown = repacked(blob, rename)
    monkeypatch.undo()
    x = np.arange(40)
    np.testing.assert_array_equal(export.deserialize(other).call(jnp.asarray(x)), doubled(x))
    with pytest.raises(ExportError, match=r"gpuflow 9\.1, with the error: no op is called 'fused'"):
        export.deserialize(unknown)


WRONG = {
    "another shape": lambda r: r["programs"][-1]["eqns"][0][2][0].__setitem__(2, [41]),
    "an input that is not there": lambda r: r["programs"][-1].__setitem__("out", [99]),
    "no param of this one": lambda r: r["programs"][-1]["eqns"][0].__setitem__(3, [["axis", 1]]),
    "an unknown kind": lambda r: r["programs"][-1]["eqns"][0].__setitem__(
        3, [["axis", ["__init__"]]]
    ),
    "a class of Python": lambda r: r["programs"][-1]["eqns"][0].__setitem__(
        3, [["axis", ["record", "subprocess:Popen", "ls"]]]
    ),
    "a function of Python": lambda r: r["programs"][-1]["eqns"][0].__setitem__(
        3, [["axis", ["name", "os:system"]]]
    ),
    "a class that is no record": lambda r: r["programs"][-1]["eqns"][0].__setitem__(
        3, [["axis", ["record", "gpuflow.base.lazy:LazyModule", "os"]]]
    ),
    "a module that a module of ours imports": lambda r: r["programs"][-1]["eqns"][0].__setitem__(
        3, [["axis", ["name", "gpuflow.base.config:os.system"]]]
    ),
    "a program to start": lambda r: r["programs"][-1]["eqns"][0].__setitem__(
        3, [["axis", ["name", "gpuflow.__main__:main"]]]
    ),
    "no lists": lambda r: r["programs"][-1].__setitem__("eqns", 3),
}


@pytest.mark.parametrize("name", WRONG)
def test_programs_that_break_the_rules(blob, name):
    with pytest.raises(ExportError, match="the program of doubled must be readable by gpuflow"):
        export.deserialize(repacked(blob, with_program(WRONG[name])))


@pytest.mark.parametrize(
    "key", ["name", "in", "trees", "arrays", "settings", "kernels", "platforms"]
)
def test_content_that_is_missing(blob, key):
    with pytest.raises(ExportError, match="Fix: export again"):
        export.deserialize(repacked(blob, lambda content, sections: content.pop(key)))


def test_a_class_that_is_not_registered_here(blob):
    def change(content, sections):
        content["trees"][1] = ["node", "elsewhere.Pair", "", 0]

    read = export.deserialize(repacked(blob, change))
    with pytest.raises(ExportError, match=r"got 'elsewhere.Pair', which is not\. Fix: .*='elsewh"):
        read.call(jnp.arange(40))


def test_another_processor_builds_again_and_says_so(tmp_path):
    x = jnp.arange(40)
    write(tmp_path, "doubled", export.export(gf.jit(doubled))(x), [x])
    target = {"GPUFLOW_CPU_TARGET": "x86-64"}
    done, there = read_elsewhere(tmp_path, compiler=True, cache=tmp_path / "cache", **target)
    assert there["doubled"] == digest([gf.jit(doubled)(x)]) and there["built"] > 0
    assert "kernels of an exported function are for one processor" in done.stderr
    done, there = read_elsewhere(tmp_path, compiler=False, cache=tmp_path / "other", **target)
    assert not there
    assert "[export] kernels of doubled must be in its bytes where there is no" in done.stderr


def test_kernels_are_given_and_noted(tmp_path):
    cache, other = KernelCache(tmp_path), KernelCache(None)
    entry = kernels.CacheEntry(b"code", "image", "text", "f")
    with cache.record_keys() as keys:
        assert cache.load_once("ab1", lambda: cache.get("ab1", lambda: entry)) == entry
    cache.load_once("ab2", lambda: 1)
    assert keys == {"ab1"} and cache.loaded_keys(int) == ["ab2"]
    other.preload({"ab1": cache.lookup("ab1")})
    assert other.is_stored("ab1") and not other.is_stored("ab2")
    assert other.get("ab1", lambda: pytest.fail("it is there")) == entry
    assert other.stats.built == 0


def test_records_keep_what_params_hold():
    values = [
        None,
        True,
        3,
        "text",
        1.5,
        float("inf"),
        1 - 2j,
        (1, [2, (3,)]),
        {"a": 1, 2: None},
        frozenset({1, 2}),
        slice(1, None, 2),
        np.dtype("float32"),
        np.dtype(gf.dtypes.bfloat16),
        np.float32(0.1),
        np.int8(3),
        gf.dtypes.bfloat16(1.5),
        gf.tree.structure({"a": (1, None)}),
    ]
    for value in values:
        writer = Writer()
        record = json.loads(json.dumps(writer.value(value)))
        again = Reader(writer.programs, [x for x, _, _ in writer.arrays]).value(record)
        assert type(again) is type(value) and again == value, value
    with pytest.raises(ExportError, match=r"must hold data alone; got the .* .print."):
        Writer().value(print)
    with pytest.raises(ExportError, match=r"must hold data alone; got the function .doubled."):
        Writer().value(doubled)
