"""Copies between operands and local arrays: text, rules, and the loops that they stand for."""

from dataclasses import replace

import numpy as np
import pytest
from copy_kernels import slices

from gpuflow.kir.interpret import run
from gpuflow.kir.nodes import Block, Copy, Mode, Strip
from gpuflow.kir.rewrite import copy_loops, substituted
from gpuflow.kir.rules import KernelError
from gpuflow.kir.text import kernel_text
from gpuflow.kir.verify import verify
from gpuflow.kir.walk import next_value_number, statements


def changed(kernel, change):
    """The kernel with its copies changed, ``change(copy)``."""
    (strip,) = kernel.body.body
    body = tuple([change(s) if isinstance(s, Copy) else s for s in strip.body.body])
    return replace(kernel, body=Block(body=(Strip(strip.axis, strip.size, Block(body=body)),)))


def in_loops(kernel):
    arrays = {local.name: local for local in kernel.locals}
    free = iter(range(next_value_number(kernel.body), 1000, 100))

    def change(copy):
        array = arrays.get(copy.source) or arrays[copy.target]
        return copy_loops(copy, array, next(free))

    return changed(kernel, change)


def test_text():
    text = kernel_text(slices("float32"))
    assert "    copy a x rows %0 at (%1: i64) { %2: i64 = load sx; " in text
    assert "    copy o b rows %0 at (" in text
    part = changed(slices("float32"), lambda copy: replace(copy, component=1))
    assert "copy a x imaginary rows %0" in kernel_text(part)
    bare = changed(slices("float32"), lambda copy: Copy(copy.target, copy.source))
    assert "    copy a x\n" in kernel_text(bare)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_it_means_loops(dtype):
    kernel = slices(dtype)
    loops = in_loops(kernel)
    verify(kernel)
    verify(loops)
    assert not any(isinstance(s, Copy) for s in statements(loops.body))
    x = np.random.default_rng(0).integers(0, 2, 40 * 37).astype("uint8" if dtype == "bool" else "f")
    if dtype != "bool":
        x = x.view(np.uint16)[: 40 * 37] if dtype == "bfloat16" else x
    found = []
    for each in (kernel, loops):
        out = np.zeros_like(x)
        scalars = {"n": np.int64(37), "sx": np.int64(1), "so": np.int64(40)}
        strides = {("x", "i"): 37, ("o", "i"): 1}
        run(each, {"x": x, "o": out, **scalars}, {"i": 40}, strides)
        found.append(out)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0].reshape(37, 40), x.reshape(40, 37).T)


def test_names_are_replaced():
    kernel = slices("float32")
    names = {"a": "c", "x": "y"}
    copies = [s for s in statements(substituted(kernel.body, {}, names)) if isinstance(s, Copy)]
    assert [(copy.target, copy.source) for copy in copies] == [("c", "y"), ("o", "b")]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda copy: replace(copy, source="o", target="x"), "between a local array and"),
        (lambda copy: replace(copy, source=copy.target, target=copy.source), "IN as its source"),
        (lambda copy: replace(copy, component=2), "one dtype"),
        (lambda copy: replace(copy, count=None, row_offsets=Block()), "if the array has rows"),
        (lambda copy: replace(copy, row_offsets=Block()), "an int64 from an int64"),
    ],
)
def test_rules(change, rule):
    with pytest.raises(KernelError, match=rule):
        verify(changed(slices("float32"), change))


def test_what_may_be_copied():
    with pytest.raises(KernelError, match="IN as its source"):
        verify(slices("float32", mode=Mode.INOUT))
    with pytest.raises(KernelError, match="one dtype"):
        verify(slices("complex64"))
    kernel = slices("float32")
    (strip,) = kernel.body.body
    with pytest.raises(KernelError, match="strips that fit"):
        verify(replace(kernel, body=Block(body=(replace(strip, size=64),))))
    with pytest.raises(KernelError, match="strips that fit"):
        verify(replace(kernel, body=strip.body))
