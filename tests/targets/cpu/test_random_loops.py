"""Random loops, as vectors and as LLVM makes them, compute what their statements say.

Each program runs by the rules of this processor, of AVX2 and of AVX-512, for several lengths, in
memory that ends where a page begins that may not be read, and begins where one ends.

``FUZZ_EXAMPLES=3000 FUZZ_SEED=7 pytest tests/targets/cpu/test_random_loops.py`` draws others;
``FUZZ_CASE=7-12`` runs one of them again. With ``-s`` each is named before it runs: what reads past
the memory ends the process.
"""

import ctypes
import os
import zlib

import numpy as np
import pytest
from guarded_memory import Region, needs_guards
from loop_reference import Reference, dtype_of
from loop_texts import set_masks
from random_loops import MAX_OPERANDS, drawn

from gpuflow.targets.cpu.codegen.build import build_cpu, load_cpu
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.loops.parser import parsed_source
from gpuflow.targets.cpu.codegen.processor import cpu_target

pytestmark = pytest.mark.skipif(
    not cpu_target().is_x86 or "avx2" not in cpu_target().features, reason="AVX2"
)
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0")) or 120
SEED = os.environ.get("FUZZ_SEED", "0")
ONE = os.environ.get("FUZZ_CASE")
SEEDS = [f"{SEED}-{k}" for k in range(EXAMPLES)]
CHUNK = 20  # programs of a test
# Whether masked stores are cheap; None: as on this processor.
RULES = {"this processor": None, "AVX2": False, "AVX-512": True}
FILL = 0x5A


@pytest.fixture(scope="module")
def regions():
    return [Region(1 << 16) for _ in range(MAX_OPERANDS)]


def same(found, right, is_exact):
    if is_exact and found.tobytes() == right.tobytes():  # -0.0 as well
        return True
    wide = [np.asarray(one, "float64") for one in (found, right)]
    if not is_exact:
        return np.allclose(*wide, rtol=1e-4, atol=1e-4, equal_nan=True)
    signs = [np.signbit(one) | np.isnan(one) for one in wide]
    return np.array_equal(*wide, equal_nan=True) and np.array_equal(*signs)


class Call:
    """One call of a program: its arguments, what it touches of them, and what they become."""

    def __init__(self, case, program, length, seed):
        generator = np.random.default_rng([zlib.crc32(seed.encode()), length])
        room = 5 * (length + 3) * case.rows + 32
        self.case, self.length, self.begun = case, length, []
        for one in case.operands:
            values = one.drawn(generator, 1 if one.is_scalar else room)
            values = values.astype(dtype_of(one.storage))
            self.begun.append(values[0] if one.is_scalar else values)
        self.ended = [one.copy() for one in self.begun]
        self.touched = Reference(program, [*self.ended], length).touched

    def check(self, loaded, regions, at_end):
        """Compare what a kernel makes of memory at one end of the regions."""
        words, placed = [], []
        taken = regions[: len(self.begun)]
        operands = zip(self.case.operands, self.begun, self.ended, taken, strict=True)
        for k, (one, before, after, region) in enumerate(operands):
            if one.is_scalar:
                words.append(int.from_bytes(before.tobytes(), "little"))
                continue
            first, last = self.touched.get(k, (0, -1))
            region.bytes[:] = FILL
            copy = region.put(before[first : last + 1], at_end)
            start = region.start(copy.nbytes, at_end)
            words.append(region.bytes.ctypes.data + start - int(first) * before.itemsize)
            outside = region.bytes[:start] if at_end else region.bytes[copy.nbytes :]
            placed.append((one.name, copy, after[first : last + 1], outside))
        block = np.array(words, "uint64")
        loaded.call(block.ctypes.data_as(ctypes.c_void_p), 0, self.length)
        for name, found, right, outside in placed:
            where = f"{name}, length {self.length}, at {'end' if at_end else 'begin'}"
            assert same(found, right, self.case.is_exact), f"{where}: {found} is not {right}"
            assert (outside == FILL).all(), f"{where}: written beside it"


def run(seed, regions, monkeypatch):
    """Check one program."""
    print(seed, flush=True)
    case = drawn(seed)
    source = parsed_source(case.text, "kernel_f")
    calls = [Call(case, source.program, length, seed) for length in case.lengths]
    for rules, has_masks in RULES.items():
        with monkeypatch.context() as patch:
            if has_masks is not None:
                set_masks(patch, has_masks)
            loaded = load_cpu(build_cpu(source))
        try:
            for call in calls:
                call.check(loaded, regions, False)
                call.check(loaded, regions, True)
        except AssertionError as error:
            pytest.fail(f"FUZZ_CASE={seed} ({rules}): {error}\n{case.text}", pytrace=False)


@needs_guards
@pytest.mark.parametrize("chunk", range(-(-EXAMPLES // CHUNK)))
def test_random_loops(chunk, regions, monkeypatch):
    for seed in [ONE] if ONE else SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]:
        run(seed, regions, monkeypatch)


def test_about_half_of_the_programs_are_vectors():
    """The rest is LLVM's: a loop that is never vectorized would be tested for nothing."""
    sources = (parsed_source(drawn(seed).text, "kernel_f") for seed in SEEDS)
    assert sum(compile_module(source).is_fully_vectorized for source in sources) >= EXAMPLES / 4
