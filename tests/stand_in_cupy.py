"""CuPy and its bindings of CUDA's libraries, over NumPy's memory and SciPy's LAPACK.

Bindings get what CUDA's libraries get: addresses, sizes by columns, places for workspaces, pivots
and infos. ``SIGNATURES`` are those of CuPy 14.2, which a test compares with its wheel. Arrays
refuse to be read by the host, as a device would have to be waited for.
"""

import ctypes
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import scipy.linalg
from scipy.linalg import get_lapack_funcs

DTYPES = {letter: np.dtype(name) for letter, name in zip("sdcz", "fdFD", strict=True)}
LOWER, UPPER = 0, 1
CONSTANTS = {
    "CUBLAS_FILL_MODE_LOWER": LOWER,
    "CUBLAS_FILL_MODE_UPPER": UPPER,
    "CUBLAS_SIDE_LEFT": 0,
    "CUBLAS_SIDE_RIGHT": 1,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLAS_OP_C": 2,
}
# Arguments by the routine's name without the letter of its dtype.
_MQR = "handle side trans m n k A lda tau C ldc"
SIGNATURES = {
    "cublas": {"getrfBatched": "handle n Aarray lda PivotArray infoArray batchSize"},
    "cusolver": {
        "getrf_bufferSize": "handle m n A lda",
        "getrf": "handle m n A lda work devIpiv devInfo",
        "potrf_bufferSize": "handle uplo n A lda",
        "potrf": "handle uplo n A lda work lwork devInfo",
        "potrfBatched": "handle uplo n Aarray lda infoArray batchSize",
        "geqrf_bufferSize": "handle m n A lda",
        "geqrf": "handle m n A lda tau work lwork devInfo",
        "orgqr_bufferSize": "handle m n k A lda tau",
        "orgqr": "handle m n k A lda tau work lwork devInfo",
        "ormqr_bufferSize": _MQR,
        "ormqr": f"{_MQR} work lwork devInfo",
    },
    "cusparse": {
        "gtsv2_bufferSizeExt": "handle m n dl d du B ldb",
        "gtsv2": "handle m n dl d du B ldb pBuffer",
    },
}
HANDLES = {"cublas": 11, "cusolver": 12, "cusparse": 13}
# What is asked of the module cupy, and of cupy.linalg.
NAMES = {
    "arange",
    "array",
    "ascontiguousarray",
    "asarray",
    "broadcast_to",
    "copyto",
    "empty",
    "eye",
    "full",
    "isfinite",
    "tril",
    "triu",
    "where",
    "zeros",
}
LINALG_NAMES = {"eig", "eigh", "eigvals", "eigvalsh", "qr", "svd"}


class Waits(Exception):
    """The host has read an array of the device."""


def _refuse(*args, **options):
    raise Waits


class DeviceArray(np.ndarray):
    """An array with an address, whose elements the host cannot see."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    __bool__ = __int__ = __float__ = __complex__ = __index__ = __iter__ = item = tolist = _refuse

    def get(self):
        return np.array(self.view(np.ndarray))


def device(array):
    """An array of the device that lies as NumPy's does; its memory is shared."""
    return np.asarray(array).view(DeviceArray)


def _wrapped(value):
    if isinstance(value, tuple | list):
        return tuple(_wrapped(part) for part in value)
    return value.view(DeviceArray) if isinstance(value, np.ndarray) else value


def _plain(value):
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


class _Module:
    """Some of NumPy's functions, of arrays of the device."""

    def __init__(self, module, names, calls, **others):
        self._module, self._names, self._calls = module, names, calls
        self.__dict__.update(others)

    def __getattr__(self, name):
        if name not in self._names:
            raise AttributeError(f"the stand-in for CuPy has no {name}")
        function = getattr(self._module, name)

        def call(*args, **options):
            if self._calls is not None:
                self._calls.append(name)
            return _wrapped(function(*map(_plain, args), **options))

        return call


# --- CUDA's libraries ----------------------------------------------------------------------


def vector(address, count, dtype):
    """Elements that lie at an address."""
    dtype = np.dtype(dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def matrix(address, rows, columns, leading, dtype):
    """A matrix that lies by columns at an address."""
    assert leading >= max(rows, 1)
    return vector(address, leading * columns, dtype).reshape(columns, leading).T[:rows]


WORK = 24  # elements, or bytes, of workspaces


class Library:
    """A library's bindings.

    Args:
        name: of the library.
        calls: names of routines are put there.
        enqueue: is given the work of each call.
    """

    def __init__(self, name, calls, enqueue=lambda work: work()):
        self._name, self._signatures = name, SIGNATURES[name]
        self._calls, self._enqueue = calls, enqueue
        if name == "cublas":
            self.__dict__.update(CONSTANTS)

    def __getattr__(self, name):
        letter, plain = name[:1], name[1:].replace("un", "or", 1) if "un" in name else name[1:]
        is_unitary = plain != name[1:]
        known = plain in self._signatures and letter in DTYPES
        if not known or (plain.startswith("or") and is_unitary != (letter in "cz")):
            raise AttributeError(f"CuPy's {self._name} has no {name}")
        return partial(self._call, name, plain, DTYPES[letter])

    def _call(self, name, plain, dtype, *args):
        arguments = dict(zip(self._signatures[plain].split(), args, strict=True))
        assert all(type(value) is int for value in args), arguments
        assert arguments.pop("handle") == HANDLES[self._name]
        if "bufferSize" in plain:
            return WORK
        self._calls.append(name)
        work = arguments.get("work") or arguments.get("pBuffer")
        assert arguments.get("lwork", WORK) == WORK

        def run():
            if work:  # it is there, and nothing else is
                vector(work, WORK, dtype if "work" in arguments else np.uint8)[:] = 1
            _ROUTINES[plain](dtype, SimpleNamespace(**arguments))

        self._enqueue(run)
        return None


def _getrf(dtype, given, address=None, pivots=None, info=None):
    (getrf,) = get_lapack_funcs(("getrf",), dtype=dtype)
    rows = getattr(given, "m", given.n)
    a = matrix(address or given.A, rows, given.n, given.lda, dtype)
    a[...], order, status = getrf(a)
    vector(pivots or given.devIpiv, len(order), np.int32)[:] = order + 1
    vector(info or given.devInfo, 1, np.int32)[:] = status


def _getrf_batched(dtype, given):
    for k, address in enumerate(vector(given.Aarray, given.batchSize, np.uintp)):
        _getrf(
            dtype, given, int(address), given.PivotArray + 4 * k * given.n, given.infoArray + 4 * k
        )


def _potrf(dtype, given, address=None, info=None):
    (potrf,) = get_lapack_funcs(("potrf",), dtype=dtype)
    a = matrix(address or given.A, given.n, given.n, given.lda, dtype)
    a[...], status = potrf(a, lower=given.uplo == LOWER, clean=False)
    vector(info or given.devInfo, 1, np.int32)[:] = status


def _potrf_batched(dtype, given):
    for k, address in enumerate(vector(given.Aarray, given.batchSize, np.uintp)):
        _potrf(dtype, given, int(address), given.infoArray + 4 * k)
        # The other triangle is a workspace, as cuSOLVER's documentation says.
        a = matrix(int(address), given.n, given.n, given.lda, dtype)
        a[np.tril_indices(given.n, -1) if given.uplo == UPPER else np.triu_indices(given.n, 1)] = 7


def _geqrf(dtype, given):
    (geqrf,) = get_lapack_funcs(("geqrf",), dtype=dtype)
    a = matrix(given.A, given.m, given.n, given.lda, dtype)
    a[...], tau, *_ = geqrf(a)
    vector(given.tau, len(tau), dtype)[:] = tau


def _orgqr(dtype, given):
    (orgqr,) = get_lapack_funcs(("ungqr" if dtype.kind == "c" else "orgqr",), dtype=dtype)
    assert given.m >= given.n >= given.k > 0
    a = matrix(given.A, given.m, given.n, given.lda, dtype)
    a[...] = orgqr(a, vector(given.tau, given.k, dtype))[0]


def _ormqr(dtype, given):
    is_complex = dtype.kind == "c"
    (ormqr,) = get_lapack_funcs(("unmqr" if is_complex else "ormqr",), dtype=dtype)
    assert given.trans != (1 if is_complex else 2)
    a = matrix(given.A, given.n if given.side else given.m, given.k, given.lda, dtype)
    c = matrix(given.C, given.m, given.n, given.ldc, dtype)
    side, trans = "LR"[given.side], "NTC"[given.trans]
    tau = vector(given.tau, given.k, dtype)
    c[...] = ormqr(side, trans, a, tau, c, 64 * max(given.m, given.n))[0]


def _gtsv2(dtype, given):
    (gtsv,) = get_lapack_funcs(("gtsv",), dtype=dtype)
    assert given.m >= 3
    low, middle, high = (vector(place, given.m, dtype) for place in (given.dl, given.d, given.du))
    assert low[0] == 0 == high[-1]
    b = matrix(given.B, given.m, given.n, given.ldb, dtype)
    *_, x, info = gtsv(low[1:], middle, high[:-1], b)
    b[...] = x if info == 0 else np.inf


_ROUTINES = {
    "getrf": _getrf,
    "getrfBatched": _getrf_batched,
    "potrf": _potrf,
    "potrfBatched": _potrf_batched,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "gtsv2": _gtsv2,
}


# --- CuPy ----------------------------------------------------------------------------------


def _solve_triangular(a, b, lower, unit_diagonal, check_finite):
    """As cupyx.scipy.linalg has it, for batches too."""
    assert not check_finite
    out = np.empty(b.shape, b.dtype)
    for place in np.ndindex(*a.shape[:-2]):
        out[place] = scipy.linalg.solve_triangular(
            _plain(a[place]), _plain(b[place]), lower=lower, unit_diagonal=unit_diagonal
        )
    return device(out)


class Bindings(ModuleType):
    """``cupy_backends.cuda.libs``, which has a library's bindings as an attribute.

    As in CuPy 14, asking for the attribute loads the library. There are no modules of the full
    names to import: CuPy's fail where nothing else has loaded the library (a fresh process).
    """

    __path__ = ()  # type: ignore[assignment]

    def __init__(self, libraries):
        super().__init__("cupy_backends.cuda.libs")
        self._libraries = libraries

    def __getattr__(self, name):
        if name not in self._libraries:
            raise AttributeError(f"the stand-in for CuPy has no bindings of {name}")
        return self._libraries[name]


def package(name):
    """A package without modules."""
    made = ModuleType(name)
    made.__path__ = []
    return made


class StandIn:
    """The module cupy, its bindings and the calls that were made.

    Attributes:
        xp: the module.
        modules: what ``sys.modules`` must have, by name.
        calls: names of routines and of functions of cupy.linalg and cupyx.scipy.linalg, in order.
    """

    def __init__(self):
        self.calls = []
        handles = {f"get_{name}_handle": partial(int, value) for name, value in HANDLES.items()}
        self.xp = _Module(
            np,
            NAMES,
            None,
            linalg=_Module(np.linalg, LINALG_NAMES, self.calls),
            cuda=SimpleNamespace(device=SimpleNamespace(**handles)),
        )
        libraries = {name: Library(name, self.calls) for name in SIGNATURES}
        self.modules = {
            "cupy_backends": package("cupy_backends"),
            "cupy_backends.cuda": package("cupy_backends.cuda"),
            "cupy_backends.cuda.libs": Bindings(libraries),
            **{f"cupy_backends.cuda.libs.{name}": None for name in SIGNATURES},
        }

    def cupy_linalg(self):
        def solve_triangular(*args, **options):
            self.calls.append("solve_triangular")
            return _solve_triangular(*args, **options)

        return SimpleNamespace(solve_triangular=solve_triangular)
