"""Texts of kernels with straight loops, and how ``vector_loops`` writes them."""

import ctypes
import re
from types import SimpleNamespace

import numpy as np

from gpuflow.targets.cpu.codegen import vector_loops
from gpuflow.targets.cpu.codegen.build import build_cpu, load_cpu
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.loops.parser import parsed_source
from gpuflow.targets.cpu.codegen.processor import cpu_target

# Two inputs and one output, each in a scope of its own or in one that it shares.
HEAD = """
load_x = reader("{x}", 0, 2)
load_y = reader("{y}", 0, 2)
store_o = writer("{o}", 1, 2)

def kernel_f(words, lo, hi):
    x = word_pointer(words, 0)
    y = word_pointer(words, 1)
    o = word_pointer(words, 2)
"""
# And a third input, in the output's scope.
HEAD_Z = HEAD.replace("\n\ndef", '\nload_z = reader("float32", 1, 2)\n\ndef')


def source(body, x="float32", y="float32", o="float32", head=HEAD):
    lines = head.format(x=x, y=y, o=o) + "".join(f"    {line}\n" for line in body)
    return parsed_source(lines, "kernel_f")


def loop(*statements, bounds="lo, hi"):
    return [f"for i in range({bounds}):", *(f"    {one}" for one in statements)]


def called(text, *arrays, size):
    words = np.array([array.ctypes.data for array in arrays], "int64")
    loaded = load_cpu(build_cpu(text))
    loaded.call(words.ctypes.data_as(ctypes.c_void_p), 0, size)


def vectors(text):
    """How many vectors the loops of a text take a turn, or None: they are left to LLVM."""
    written = compile_module(text)
    if not written.is_fully_vectorized:
        return None
    inside = re.search(r"^bulk:(.*?)br i1", str(written), re.DOTALL | re.MULTILINE)
    return (inside[1].count("store") or inside[1].count(" load ")) if inside else 0


def set_masks(monkeypatch, has_masks):
    """Write loops by the rules of AVX-512, or of AVX2."""
    target = SimpleNamespace(
        is_x86=True,
        has_masks=has_masks,
        features=cpu_target().features,
        vector_registers=(32, 512) if has_masks else (16, 256),
    )
    monkeypatch.setattr(vector_loops, "cpu_target", lambda: target)
