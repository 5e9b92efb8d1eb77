"""Programs with larger matrices on a device, the page on what they call, and CuPy's wheel."""

import importlib.util
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import stand_in_cupy
from cuda_tools import requires_cuda_tools
from device_calls import call, numbers, positive
from stand_in_cupy import device

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.ops.linalg import (
    cholesky,
    device_lapack,
    eig,
    eigh,
    lu,
    ormqr,
    qr,
    solve,
    svd,
    tridiagonal,
)

A = positive((34, 34), np.float32)
PROGRAMS = {
    "solve": (jnp.linalg.solve, ["sgetrf", "solve_triangular", "solve_triangular"]),
    "inv": (lambda a, b: jnp.linalg.inv(a), ["sgetrf", "solve_triangular", "solve_triangular"]),
    "det": (lambda a, b: jnp.linalg.det(a / 40), ["sgetrf"]),
    "slogdet": (lambda a, b: jnp.linalg.slogdet(a), ["sgetrf"]),
    "gradient": (
        gf.grad(lambda a, b: jnp.linalg.slogdet(a)[1] + jnp.linalg.solve(a, b).sum()),
        ["sgetrf"] + ["solve_triangular"] * 6,
    ),
    "cho_solve": (
        lambda a, b: gf.scipy.linalg.cho_solve(gf.scipy.linalg.cho_factor(a), b),
        ["spotrf", "solve_triangular", "solve_triangular"],
    ),
    "batch": (
        gf.vmap(jnp.linalg.solve, (None, 0)),
        ["sgetrf", "solve_triangular", "solve_triangular"],
    ),
    "complex": (
        lambda a, b: jnp.linalg.solve(a[:5, :5] + 1j * b[:5, :5], b[:5]),
        ["cgetrf", "solve_triangular", "solve_triangular"],
    ),
}


@requires_cuda_tools
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_stay_on_the_device(name, cupy, monkeypatch):
    function, calls = PROGRAMS[name]
    gpu = gf.devices("cuda_sim")[0]
    api, view = gpu.driver.api, gpu.driver.api.view
    b = numbers((34, 5), np.float32)
    b = np.stack([b, b + 1]) if name == "batch" else b
    want = gf.jit(function)(A, b)
    monkeypatch.setattr(api, "xp", cupy.xp)
    monkeypatch.setattr(api, "view", lambda data: device(view(data)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = gf.jit(function)(*[gf.device_put(x, gpu) for x in (A, b)])
    for one, other in zip(gf.tree.leaves(got), gf.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert cupy.calls == calls and not gpu.driver.host_calls


@requires_cuda_tools
@pytest.mark.parametrize("shape", [(3,), (2, 33)])
def test_permutations_are_a_kernel(shape):
    gpu = gf.devices("cuda_sim")[0]
    pivots = np.broadcast_to(np.minimum(np.arange(shape[-1]) + 2, 34), shape).astype(np.int32)
    function = gf.jit(lambda p: lax.linalg.lu_pivots_to_permutation(p, 35))
    np.testing.assert_array_equal(function(gf.device_put(pivots, gpu)), function(pivots))
    with gf.default_device(gpu):
        assert "kernel map_row_order" in function.lower(pivots).compile().as_text()


# --- the page ---

_ALL = {"lower": True, "sort_eigenvalues": True, "subset_by_index": None}
_SIDES = {
    "left_side": True,
    "lower": True,
    "transpose_a": False,
    "conjugate_a": False,
    "unit_diagonal": False,
}


def _eig_params(right):
    return {
        "compute_left_eigenvectors": False,
        "compute_right_eigenvectors": right,
        "enable_eigvec_derivs": False,
    }


# For each op of the page: params, and ranks of operands.
OF_PAGE = {
    "lu": (lu.lu_p, [{}], (2,)),
    "triangular_solve": (solve.triangular_solve_p, [_SIDES], (2, 2)),
    "cholesky": (cholesky.cholesky_p, [{}], (2,)),
    "geqrf": (qr.geqrf_p, [{}], (2,)),
    "householder_product": (qr.householder_product_p, [{}], (2, 1)),
    "ormqr": (ormqr.ormqr_p, [{"left": True, "transpose": False}], (2, 1, 2)),
    "tridiagonal_solve": (
        tridiagonal.tridiagonal_solve_p,
        [{"perturb_singular": False}],
        (1, 1, 1, 2),
    ),
    "qr": (qr.qr_p, [{"pivoting": False, "full_matrices": full} for full in (True, False)], (2,)),
    "eigh": (eigh.eigh_p, [_ALL | {"compute_vectors": v} for v in (True, False)], (2,)),
    "eig": (eig.eig_p, [_eig_params(right) for right in (True, False)], (2,)),
    "svd": (
        svd.svd_p,
        [{"full_matrices": True, "compute_uv": True, "subset_by_index": None}],
        (2,),
    ),
}


def rows_of_page():
    """Routines of each op in the table of docs/gpu.md."""
    text = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    table = text.partition("| op on larger or complex matrices |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    return {name.strip(" `"): set(re.findall(r"`(\w+)`", cell)) for name, cell in rows}


def test_the_pages_routines_are_those_that_are_called(cupy):
    found = {}
    for name, (primitive, several, ranks) in OF_PAGE.items():
        cupy.calls.clear()
        for params in several:
            for batch in [(), (3,)]:
                operands = [positive((*batch, 34, 34), np.float32) for _ in ranks]
                operands = [x[..., 0] if rank == 1 else x for x, rank in zip(operands, ranks)]
                call(primitive, cupy, *operands, **params)
        called_routines = {called[1:] for called in cupy.calls if called[:1] == "s"}
        known = {routine for names in stand_in_cupy.SIGNATURES.values() for routine in names}
        found[name] = {one[1:] if one[1:] in known & called_routines else one for one in cupy.calls}
    assert found == rows_of_page()


# --- the wheel ---


def _text_of(library):
    """The bytes of CuPy's bindings, which import only where the library is installed."""
    (folder,) = importlib.util.find_spec("cupy_backends").submodule_search_locations
    (path,) = (Path(folder) / "cuda" / "libs").glob(f"{library}.*.so")
    return path.read_bytes().decode("latin-1")


@pytest.mark.parametrize("library", stand_in_cupy.SIGNATURES)
def test_bindings_are_those_of_the_wheel(library):
    pytest.importorskip("cupy", reason="CuPy is not installed")
    text = _text_of(library)
    for name, wanted in stand_in_cupy.SIGNATURES[library].items():
        for letter in "sdcz":
            unitary = letter in "cz" and name.startswith("or")
            full = letter + (f"un{name[2:]}" if unitary else name)
            (arguments,) = {*re.findall(rf"\b{full}\((intptr_t handle.*?)\)", text)}
            assert [one.split()[-1] for one in arguments.split(",")] == wanted.split(), full


@pytest.mark.parametrize("library", stand_in_cupy.SIGNATURES)
def test_a_library_alone_is_found_in_a_fresh_process(library):
    """CuPy's bindings find a wheel's library only through their package, which loads it."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder is not installed")
    try:
        pathfinder.load_nvidia_dynamic_lib(library)
    except pathfinder.DynamicLibNotFoundError:
        pytest.skip(f"{library} is not installed")
    names = [
        f"s{name}" for name in stand_in_cupy.SIGNATURES[library] if name not in ("orgqr", "ormqr")
    ] + [f"d{name}" for name in stand_in_cupy.SIGNATURES[library]]
    program = (
        "from gpuflow.ops.linalg import device_lapack\n"
        f"library = device_lapack.bindings({library!r})\n"
        f"assert all(callable(getattr(library, name)) for name in {names})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_planted_imports_by_the_full_name_are_refused(cupy, monkeypatch):
    """Batched LU that imports cuBLAS by its full name, as if something else had loaded it."""
    lu_of(cupy, positive((2, 34, 34), np.float32))
    monkeypatch.setattr(
        device_lapack, "bindings", lambda name: import_module(f"cupy_backends.cuda.libs.{name}")
    )
    with pytest.raises(ImportError, match=r"cupy_backends.cuda.libs.cublas"):
        lu_of(cupy, positive((2, 34, 34), np.float32))


def lu_of(cupy, a):
    return device_lapack.lu(cupy.xp, device(a))


def test_functions_are_those_of_the_wheel():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    from cupy.cuda import device as devices

    assert all(hasattr(cupy, name) for name in stand_in_cupy.NAMES)
    assert all(hasattr(cupy.linalg, name) for name in stand_in_cupy.LINALG_NAMES)
    assert all(hasattr(devices, f"get_{name}_handle") for name in stand_in_cupy.HANDLES)
