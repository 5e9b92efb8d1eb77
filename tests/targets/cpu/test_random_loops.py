"""Random loops, as vectors and as LLVM makes them, compute what their statements say.

Each program runs by the rules of this processor, of AVX2 and of AVX-512, for several lengths, in
memory that ends where a page begins that may not be read, and begins where one ends.

``FUZZ_EXAMPLES=3000 FUZZ_SEED=7 pytest tests/targets/cpu/test_random_loops.py`` draws others;
``FUZZ_CASE=7-12`` runs one of them again. With ``-s`` each is named before it runs: what reads past
the memory ends the process.
"""

import ctypes
import mmap
import os
import zlib

import numpy as np
import pytest
from guarded_memory import needs_guards
from loop_reference import Reference, dtype_of
from loop_texts import set_masks
from random_loops import drawn

from gpuflow.targets.cpu.codegen.build import build_cpu, load_cpu
from gpuflow.targets.cpu.codegen.loop_compiler import module_of
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.loops.parser import parsed_source

pytestmark = pytest.mark.skipif(
    not cpu_target().is_x86 or "avx2" not in cpu_target().features, reason="AVX2"
)
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0")) or 120
SEED = os.environ.get("FUZZ_SEED", "0")
ONE = os.environ.get("FUZZ_CASE")
CHUNK = 20  # programs of a test
# Whether masked stores are cheap; None: as on this processor.
RULES = {"this processor": None, "AVX2": False, "AVX-512": True}
FILL = 0x5A


class Region:
    """Memory between two pages that may not be read or written."""

    def __init__(self, pages: int = 16) -> None:
        page = mmap.PAGESIZE
        self._memory = mmap.mmap(-1, (pages + 2) * page)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for guard in (begin, begin + (pages + 1) * page):
            assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        self.bytes = np.frombuffer(self._memory, np.uint8, pages * page, page)

    def put(self, array: np.ndarray, at_end: bool) -> np.ndarray:
        """A copy that ends where the memory ends, or begins where it begins."""
        self.bytes[:] = FILL
        size = array.nbytes
        used = self.bytes[self.bytes.size - size :] if at_end else self.bytes[:size]
        copy = used.view(array.dtype)
        copy[:] = array
        return copy

    def address(self, copy: np.ndarray, at_end: bool) -> int:
        """Where the copy begins, also an empty one."""
        return self.bytes.ctypes.data + (self.bytes.size - copy.nbytes if at_end else 0)

    def rest(self, array: np.ndarray, at_end: bool) -> np.ndarray:
        """The bytes beside the copy."""
        size = array.nbytes
        return self.bytes[: self.bytes.size - size] if at_end else self.bytes[size:]


@pytest.fixture(scope="module")
def regions():
    return [Region() for _ in range(12)]


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
        operands = zip(self.case.operands, self.begun, self.ended, regions, strict=False)
        for k, (one, before, after, region) in enumerate(operands):
            if one.is_scalar:
                words.append(int.from_bytes(before.tobytes(), "little"))
                continue
            first, last = self.touched.get(k, (0, -1))
            copy = region.put(before[first : last + 1], at_end)
            words.append(region.address(copy, at_end) - int(first) * before.itemsize)
            placed.append((one.name, region, copy, after[first : last + 1]))
        block = np.array(words, "uint64")
        loaded.call(block.ctypes.data_as(ctypes.c_void_p), 0, self.length)
        for name, region, found, right in placed:
            where = f"{name}, length {self.length}, at {'end' if at_end else 'begin'}"
            assert same(found, right, self.case.is_exact), f"{where}: {found} is not {right}"
            assert (region.rest(found, at_end) == FILL).all(), f"{where}: written beside it"


def run(seed, regions, monkeypatch):
    """Check one program; returns by how many rules all its loops are vectors."""
    print(seed, flush=True)
    case, vectors = drawn(seed), 0
    assert len(case.operands) <= len(regions)
    source = parsed_source(case.text, "kernel_f")
    calls = [Call(case, source.program, length, seed) for length in case.lengths]
    for rules, has_masks in RULES.items():
        with monkeypatch.context() as patch:
            if has_masks is not None:
                set_masks(patch, has_masks)
            vectors += module_of(source).is_final
            loaded = load_cpu(build_cpu(source))
        try:
            for call in calls:
                call.check(loaded, regions, False)
                call.check(loaded, regions, True)
        except AssertionError as error:
            pytest.fail(f"FUZZ_CASE={seed} ({rules}): {error}\n{case.text}", pytrace=False)
    return vectors


@needs_guards
@pytest.mark.parametrize("chunk", range(-(-EXAMPLES // CHUNK)))
def test_random_loops(chunk, regions, monkeypatch):
    seeds = [f"{SEED}-{k}" for k in range(chunk * CHUNK, min((chunk + 1) * CHUNK, EXAMPLES))]
    vectors = sum(run(seed, regions, monkeypatch) for seed in ([ONE] if ONE else seeds))
    assert ONE or vectors >= len(seeds) / 2  # about half of the programs are; the rest is LLVM's
