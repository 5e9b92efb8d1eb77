"""Building the stand-in for CUDA, and putting it in the place of CUDA in CuPy.

CuPy calls CUDA's driver through ``libcuda.so.1``, which is the stand-in itself, and CUDA's runtime
through copies that are linked into its own modules. The functions of these copies begin with a jump
to the stand-in's functions of the same names, or to "not supported": only documented calls are
stood in for. This changes the process for good, so it is done in one of its own.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_cuda.c"
CUBLAS = Path(__file__).parent / "fake_cublas.c"
# What CUDA's headers want of a compiler that is not nvcc; a wheel without it is common.
_NO_NVCC = """
#define CUDARTAPI
#define CUDART_CB
#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
"""
_NOT_SUPPORTED = 801
_FUNCTION, _SYMBOLS = 2, 2  # STT_FUNC, SHT_SYMTAB


def headers() -> Path | None:
    """The folder of CUDA's headers, of the wheels or of a toolkit."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else [f"{p}/*/include" for p in found.submodule_search_locations]
    folders += [os.environ.get("CUDA_PATH", "") + "/include", "/usr/local/cuda*/include"]
    for pattern in folders:
        for folder in sorted(glob.glob(pattern)):
            if Path(folder, "cuda.h").exists() and Path(folder, "cuda_runtime_api.h").exists():
                return Path(folder)
    return None


def build(folder: Path) -> Path:
    """Compile the stand-ins for CUDA and, beside it, for cuBLAS; gives the first one's path."""
    include = headers()
    assert include is not None
    (folder / "without_nvcc" / "crt").mkdir(parents=True, exist_ok=True)
    (folder / "without_nvcc" / "crt" / "host_defines.h").write_text(_NO_NVCC)
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    places = [f"-I{include}", f"-I{folder / 'without_nvcc'}"]
    for source, name in ((SOURCE, "libcuda.so.1"), (CUBLAS, "libcublas.so")):
        target, named = str(folder / name), f"-Wl,-soname,{name}"
        command = ["gcc", *flags, named, *places, "-o", target, str(source), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
    return folder / "libcuda.so.1"


# --- putting it in the place of CUDA ---


def install(library: Path) -> ctypes.CDLL:
    """Make the stand-in this process's CUDA; before CuPy is imported."""
    assert "cupy" not in sys.modules
    fake = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # found again by its name
    import cupy  # which calls nothing yet

    root = Path(cupy.__file__).parent.parent
    for package in ("cupy_backends", "cupy"):
        for module in sorted((root / package).rglob("*.so")):
            functions = _functions(module)
            if functions:
                _redirect(module, functions, fake)
    return fake


def _functions(module: Path) -> dict[str, tuple[int, int]]:
    """Place and size of the functions of CUDA's runtime in an ELF file, and of PyInit."""
    data = module.read_bytes()
    place, entry, count = struct.unpack_from("<40x Q 10x HH", data)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, place + k * entry) for k in range(count)]
    found: dict[str, tuple[int, int]] = {}
    for kind, offset, size, link in [(s[1], s[4], s[5], s[6]) for s in sections]:
        if kind != _SYMBOLS:
            continue
        names = sections[link][4]
        for start in range(offset, offset + size, 24):
            name, info, _, _, value, length = struct.unpack_from("<IBBHQQ", data, start)
            if info & 15 != _FUNCTION:
                continue
            text = data[names + name : data.index(0, names + name)].decode()
            is_cudas = text.startswith("cuda") and text[4:5].isupper()
            if is_cudas or text.startswith("PyInit_"):
                found[text] = value, length
    return found if any(name.startswith("cuda") for name in found) else {}


def _redirect(module: Path, functions: dict[str, tuple[int, int]], fake: ctypes.CDLL) -> None:
    """Let each function begin with a jump to the stand-in's."""
    (known,) = [name for name in functions if name.startswith("PyInit_")]
    try:
        loaded = ctypes.PyDLL(str(module))
    except OSError:
        return  # needs a library that is not installed, so CuPy cannot load it either
    base = ctypes.cast(getattr(loaded, known), ctypes.c_void_p).value - functions.pop(known)[0]
    pages = mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    first = (base + min(place for place, _ in functions.values())) // pages * pages
    last = base + max(place + size for place, size in functions.values())
    assert protect(first, last - first, 7) == 0, os.strerror(ctypes.get_errno())
    for name, (place, size) in functions.items():
        try:
            target = ctypes.cast(getattr(fake, name), ctypes.c_void_p).value
            code = b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0"  # mov rax, target; jmp rax
        except AttributeError:
            code = b"\xb8" + struct.pack("<I", _NOT_SUPPORTED) + b"\xc3"  # mov eax, 801; ret
        assert len(code) <= size, name
        ctypes.memmove(base + place, code, len(code))
