"""cublasLt's calls, answered by a library that does in NumPy what its documentation says."""

import ctypes
import itertools
from contextlib import nullcontext
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from together import together

from gpuflow.core.epilogues import Epilogue, aux_type, with_epilogue
from gpuflow.targets.cuda.library.blas.epilogue_check import CheckedEpilogues, epilogue_is_right
from gpuflow.targets.cuda.library.blas.gemm_lt import _CREATING, _OTHER, CtypesLt, CuBlasLt
from gpuflow.targets.cuda.runtime.driver.api import Gemm
from gpuflow.targets.cuda_sim.driver import SimApi

KINDS = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
EPILOGUES = [
    Epilogue("", bias=True),
    *(
        Epilogue(act, bias, keeps)
        for act in ("relu", "gelu")
        for bias in (False, True)
        for keeps in (False, True)
    ),
    *(Epilogue(act, bias, gradient=True) for act in ("relu", "gelu") for bias in (False, True)),
]
F32 = np.dtype(np.float32)


def _bytes(place, size):
    return ctypes.string_at(place, size)


def _matrix(place, layout, transposed):
    """A column-major matrix in memory, as the library would multiply it."""
    kind, rows, columns, leading = layout
    dtype = KINDS[kind]
    count = (columns - 1) * leading + rows
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(place)
    strides = (dtype.itemsize, leading * dtype.itemsize)
    found = np.ndarray((rows, columns), dtype, np.frombuffer(memory, dtype), 0, strides)
    return found.T if transposed else found


class FakeLt:
    """The C interface; handles are numbers."""

    def __init__(self, has_algorithms=True, mask_at_zero=False):
        self.objects, self.numbers = {}, itertools.count(1)
        self.has_algorithms, self.mask_at_zero = has_algorithms, mask_at_zero
        self.computes, self.asked, self.destroyed = [], [], []
        for name in (*_CREATING, *_OTHER):
            words = "".join(word.capitalize() for word in name.split("_"))
            setattr(self, f"cublasLt{words}", self._function(name))

    def _function(self, name):
        def call(*given):
            return getattr(self, name)(*given) or 0

        return call

    def _new(self, place, value):
        number = next(self.numbers)
        self.objects[number] = value
        place._obj.value = number

    def create(self, place):
        self._new(place, "handle")

    def matmul_desc_create(self, place, compute, scale):
        assert scale == 0
        self.computes.append(compute)
        self._new(place, {})

    def matrix_layout_create(self, place, kind, rows, columns, leading):
        assert leading >= rows
        self._new(place, (kind, rows, columns, leading))

    def matmul_preference_create(self, place):
        self._new(place, {})

    def matmul_desc_set_attribute(self, desc, name, place, size):
        assert size == {3: 4, 4: 4, 7: 4, 8: 8, 11: 8, 12: 8}[name]
        self.objects[desc][name] = int.from_bytes(_bytes(place, size), "little")

    def matmul_preference_set_attribute(self, preference, name, place, size):
        assert size == {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}[name]
        self.objects[preference][name] = int.from_bytes(_bytes(place, size), "little")

    def _destroy(self, number):
        self.destroyed.append(self.objects.pop(number))

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def matmul_algo_get_heuristic(self, handle, desc, a, b, c, d, preference, most, found, count):
        assert self.objects[handle] == "handle" and most == 1 and c == d
        told = self.objects[desc]
        if told[7] & 128:
            assert told[12] % (128 if told[7] in (130, 134, 136, 152) else 8) == 0
        self.asked.append((dict(self.objects[preference]), dict(told)))
        if not self.has_algorithms:
            return 15
        ctypes.memmove(found, bytes([7] * 64), 64)
        ctypes.c_int.from_address(count).value = 1
        return 0

    def matmul(self, handle, desc, alpha, a, adesc, b, bdesc, beta, c, cdesc, d, ddesc, algorithm,
               workspace, count, stream):  # fmt: skip
        assert (c, cdesc, stream, workspace, count) == (d, ddesc, 77, 4096, 1 << 20)
        assert _bytes(algorithm, 64) == bytes([7] * 64)
        assert ctypes.c_float.from_address(alpha).value == 1
        assert ctypes.c_float.from_address(beta).value == 0
        told = self.objects[desc]
        left = _matrix(a, self.objects[adesc], told[3]).astype(np.float32)
        right = _matrix(b, self.objects[bdesc], told[4]).astype(np.float32)
        out = _matrix(d, self.objects[ddesc], False)
        out[...] = self._epilogue(left @ right, told, out.dtype).astype(out.dtype)

    def _epilogue(self, z, told, dtype):
        """z is column-major: the bias goes along its rows."""
        number, (rows, columns) = told[7], z.shape
        bias = aux = None
        if number & (4 | 16):
            memory = (ctypes.c_char * (rows * dtype.itemsize)).from_address(told[8])
            bias = np.frombuffer(memory, dtype)
        if number & 128:
            is_mask = bool(number & (2 | 8))
            size = told[12] * columns // 8 if is_mask else told[12] * columns * dtype.itemsize
            memory = (ctypes.c_char * size).from_address(told[11])
            aux = np.frombuffer(memory, np.uint8 if is_mask else dtype).reshape(columns, -1)
        if number in (136, 152):
            bits = np.unpackbits(aux, axis=1, bitorder="little")[:, :rows].T
            z = z * bits
        elif number in (192, 208):
            x = aux[:, :rows].T.astype(np.float32)
            t = np.tanh(0.7978845608 * (x + 0.044715 * x**3))
            z = z * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608 * (1 + 0.134145 * x**2))
        if number & 16:
            bias[...] = z.sum(1).astype(dtype)
        if number & 4:
            z = z + bias.astype(np.float32)[:, None]
        if number in (130, 134):
            bits = np.zeros((columns, told[12]), bool)
            bits[:, :rows] = (z >= 0 if self.mask_at_zero else z > 0).T
            aux[...] = np.packbits(bits, axis=1, bitorder="little")
        if number in (160, 164):
            aux[:, :rows] = z.T.astype(dtype)
        if number in (2, 6, 130, 134):
            z = np.maximum(z, 0)
        if number in (32, 36, 160, 164):
            z = 0.5 * z * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3)))
        return z


def _lt(fake):
    return CuBlasLt(CtypesLt(fake), (4096, 1 << 20), nullcontext())


@together(size=26)
@pytest.mark.parametrize("right_transposed", [False, True])
@pytest.mark.parametrize("left_transposed", [False, True])
@pytest.mark.parametrize("dtype", KINDS.values(), ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_epilogues(epilogue, dtype, left_transposed, right_transposed):
    rng = np.random.default_rng(0)
    m, n, k = 5, 16, 6
    shapes = [(k, m) if left_transposed else (m, k), (n, k) if right_transposed else (k, n)]
    left, right = ((rng.integers(-4, 5, shape) / 2).astype(dtype) for shape in shapes)
    bias = (rng.integers(-4, 5, n) / 2).astype(dtype)
    gemm = Gemm(
        m,
        n,
        k,
        left_transposed,
        right_transposed,
        shapes[0][1],
        shapes[1][1],
        1,
        0,
        0,
        m * n,
        dtype,
        dtype,
    )
    (rows, columns), kind = aux_type(epilogue, m, n, dtype)
    kept = rng.integers(0, 256, (rows, columns)).astype(np.uint8)
    if epilogue.activation == "gelu":
        kept = (rng.integers(-16, 17, (rows, columns)) / 4).astype(kind)
    a, b = left.astype(np.float32), right.astype(np.float32)
    product = (a.T if left_transposed else a) @ (b.T if right_transposed else b)
    if epilogue.gradient:
        want, sums = with_epilogue(np, epilogue, product, aux=kept)
        want_bias, want_kept = bias if sums is None else sums, kept
    else:
        want, extra = with_epilogue(np, epilogue, product, bias if epilogue.bias else None)
        want_bias, want_kept = bias.copy(), kept if extra is None else extra
    out = np.full((m, n), 99).astype(dtype)
    run = _lt(FakeLt()).gemm_with(gemm, epilogue, 77)
    run(*[x.ctypes.data for x in (left, right, out, bias, kept)])
    tolerance = 1e-5 if dtype == F32 else 1e-2

    def check(got, wanted):
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance
        )

    check(out, want.astype(dtype))
    check(bias, want_bias)
    check(kept, want_kept)


SMALL = Gemm(2, 8, 2, False, False, 2, 8, 1, 0, 0, 16, F32, F32)


def test_tensorfloat32_only_where_that_may_be():
    fake = FakeLt()
    lt = _lt(fake)
    lt.gemm_with(SMALL, Epilogue("relu"), 77)
    lt.gemm_with(replace(SMALL, reduced=True), Epilogue("relu"), 77)
    assert fake.computes == [68, 77]


def test_algorithms_are_asked_for_by_alignment_and_kept():
    fake = FakeLt()
    run = _lt(fake).gemm_with(SMALL, Epilogue("relu", bias=True), 77)
    assert fake.asked[0][0] == {1: 1 << 20, 3: 3, 5: 16, 6: 16, 7: 16, 8: 16}
    memory = np.zeros(4096, np.uint8)
    start = -memory.ctypes.data % 256 + memory.ctypes.data
    places = [start, start + 256, start + 512, start + 768, 0]
    for _ in range(2):
        run(*places)
    assert len(fake.asked) == 2 and fake.asked[1][0][5] == 256
    assert fake.asked[1][1][8] == start + 768
    run(start + 4, *places[1:])
    assert len(fake.asked) == 3 and fake.asked[2][0][6] == 4  # left is cublasLt's second operand
    run(*places)
    assert len(fake.asked) == 3
    before = len(fake.destroyed)
    del run
    assert len(fake.destroyed) == before + 4


def test_what_the_library_cannot_do_is_none():
    assert _lt(FakeLt(has_algorithms=False)).gemm_with(SMALL, Epilogue("relu"), 77) is None
    f64 = np.dtype(np.float64)
    wide = Gemm(2, 8, 2, False, False, 2, 8, 1, 0, 0, 16, f64, f64)
    assert _lt(FakeLt()).gemm_with(wide, Epilogue("relu"), 77) is None


def test_a_status_is_an_error():
    fake = FakeLt()
    run = _lt(fake).gemm_with(SMALL, Epilogue("relu"), 77)
    fake.matmul = lambda *given: 14
    with pytest.raises(RuntimeError, match=r"\[cublaslt\] matmul .* status 14 .*Fix:"):
        run(*[256] * 3, 0, 0)


@pytest.mark.parametrize("dtype", KINDS.values(), ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_epilogues_are_compared_with_numpy_before_they_are_used(epilogue, dtype):
    api = SimApi(1 << 24)  # its addresses are those of real memory
    api.activate()

    def right(make):
        return epilogue_is_right(api, 77, make, epilogue, dtype)

    assert right(_lt(FakeLt()).gemm_with)
    assert right(api.gemm_with)
    assert not right(lambda gemm, epilogue, stream: None)
    has_mask = epilogue.activation == "relu" and (epilogue.keeps or epilogue.gradient)
    assert right(_lt(FakeLt(mask_at_zero=True)).gemm_with) != has_mask
    other = FakeLt()
    other._epilogue = lambda z, told, dtype: z
    assert not right(_lt(other).gemm_with)


def test_an_epilogue_is_checked_once_and_left_alone_where_it_fails():
    api = SimApi(1 << 24)
    api.activate()
    good, bad = FakeLt(), FakeLt()
    bad.matmul = lambda *given: 14  # an error of the library is no error of the program
    for fake, works in ((good, True), (bad, False)):
        api.stream = lambda: 77
        epilogues = CheckedEpilogues(api, _lt(fake).gemm_with)
        for _ in range(2):
            assert epilogues.supports(Epilogue("relu", bias=True), F32, False) == works
    made = len([value for value in bad.destroyed if isinstance(value, dict) and 4 in value])
    assert made == 1  # one product, for the check


def test_a_library_that_is_none_of_cublaslt():
    with pytest.raises(AttributeError):
        CtypesLt(ctypes.CDLL("libm.so.6"))
