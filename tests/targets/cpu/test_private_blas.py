"""The private copy of OpenBLAS is what NumPy's is, whatever happened to the file."""

import ctypes
import os
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest

from gpuflow.base.errors import CacheWarning
from gpuflow.targets.cpu.library import blas

ORIGINAL = blas._numpy_openblas()
pytestmark = pytest.mark.skipif(ORIGINAL is None, reason="NumPy has no OpenBLAS of its own here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def copy(folder, monkeypatch):
    """The copy, stored and good."""
    monkeypatch.setattr(blas, "cache_folder", lambda: folder)
    monkeypatch.setattr(
        blas, "_load_descriptor", lambda descriptor: os.pread(descriptor, 1 << 30, 0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load()
    return folder / "blas" / ORIGINAL.name


def load():
    """The bytes that would be mapped."""
    return blas._load_copy(ORIGINAL)


def test_a_good_copy_stays(copy):
    before = copy.stat()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load() == ORIGINAL.read_bytes()
    assert (copy.stat().st_ino, copy.stat().st_mode & 0o777) == (before.st_ino, 0o600)


@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_is_seen_and_mended(copy, seed):
    """One flipped bit gave products that were wrong by 21.85: the copy was known by its size."""
    content = bytearray(copy.read_bytes())
    chosen = random.Random(seed)
    # The ends as well: those of the file and of the parts in which it is compared.
    edge = [0, len(content) - 1, blas._CHUNK_BYTES - 1, blas._CHUNK_BYTES]
    place = edge[seed] if seed < len(edge) else chosen.randrange(len(content))
    content[place] ^= 1 << chosen.randrange(8)
    copy.write_bytes(content)
    with pytest.warns(CacheWarning, match=r"differs from NumPy's library\. It is replaced"):
        assert load() == ORIGINAL.read_bytes()
    assert copy.read_bytes() == ORIGINAL.read_bytes()


@pytest.mark.parametrize("kind", ["short", "long", "fifo", "open to others", "link", "absent"])
def test_other_damages(copy, kind):
    if kind in ("fifo", "link", "absent"):
        copy.unlink()
    if kind == "short":
        os.truncate(copy, 1000)
    elif kind == "long":
        with open(copy, "ab") as file:
            file.write(b"x")
    elif kind == "fifo":
        os.mkfifo(copy)
    elif kind == "link":
        copy.symlink_to(ORIGINAL)
    elif kind == "open to others":
        copy.chmod(0o666)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert load() == ORIGINAL.read_bytes()
    assert copy.read_bytes() == ORIGINAL.read_bytes()
    assert not copy.is_symlink() and copy.stat().st_mode & 0o777 == 0o600


def test_a_copy_above_the_limit_is_not_kept(folder, copy, monkeypatch):
    copy.unlink()
    monkeypatch.setattr(blas.config, "environment", replace_limit(1 << 20))
    assert load() == ORIGINAL.read_bytes() and not copy.exists()


def replace_limit(limit):
    return replace(blas.config.environment, cache_limit=limit)


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_library_is_a_second_one(tmp_path, monkeypatch, is_kept):
    monkeypatch.setattr(blas, "cache_folder", lambda: tmp_path if is_kept else None)
    own, numpys = blas._load_copy(ORIGINAL), ctypes.CDLL(str(ORIGINAL))
    first, second = (
        ctypes.cast(one.scipy_cblas_sgemm64_, ctypes.c_void_p).value for one in (own, numpys)
    )
    assert first != second
    assert np.allclose(np.eye(3) @ np.ones(3), 1)


def test_what_is_loaded_later_is_not_what_was_loaded_before(tmp_path, monkeypatch):
    """The dynamic linker takes a name for the library that had it, and descriptors come again."""
    monkeypatch.setattr(blas, "cache_folder", lambda: None)
    first = blas._load_copy(ORIGINAL)
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    with pytest.raises(OSError, match=r"file too short|invalid ELF"):
        blas._load_copy(other)
    assert first.scipy_openblas_get_num_threads64_() >= 1


def test_a_folder_from_which_nothing_can_be_loaded_costs_nothing_else(copy, monkeypatch):
    before, opens = copy.stat().st_ino, []

    def refuse_the_first(descriptor):
        opens.append(os.fstat(descriptor).st_ino)
        if len(opens) == 1:
            raise OSError("the folder is mounted noexec")
        return "loaded"

    monkeypatch.setattr(blas, "_load_descriptor", refuse_the_first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load() == "loaded"
    assert opens[0] == before == copy.stat().st_ino != opens[1]
