"""The folder of the kernel cache stays below its limit."""

import ast
import os
import shutil
import time
import warnings
from pathlib import Path

import pytest

import gpuflow
from gpuflow.base.config import read_environment
from gpuflow.compiler.cache import kernel_cache
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache
from gpuflow.compiler.cache.size import stored_files, trim


def key_of(number):
    return f"{number:02x}" + "0" * 60 + f"{number:02x}"


def store(cache, number, age=1000.0, size=10_000):
    """An entry that was used ``age`` seconds ago."""
    key = key_of(number)
    cache.get(key, lambda: CacheEntry(bytes(size), "o", "source", "entry"))
    then = time.time() - age
    for suffix in ("o", "py", "json"):
        os.utime(cache.path(key, suffix), (then, then))


def present(cache):
    return {number for number in range(256) if cache.path(key_of(number), "json").exists()}


def test_what_lay_unused_longest_goes_first(tmp_path):
    cache = KernelCache(tmp_path)
    for number in range(10):
        store(cache, number, age=10_000 - 100 * number)
    trim(tmp_path, 1 << 20)
    assert present(cache) == set(range(10))
    os.utime(cache.path(key_of(0), "o"))  # read a moment ago
    trim(tmp_path, 60_000)
    assert present(cache) == {0, 7, 8, 9}
    for folder in tmp_path.iterdir():
        assert not {path.name.split(".")[0] for path in folder.iterdir()} & set(
            map(key_of, range(1, 7))
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(key_of(3), lambda: CacheEntry(b"again", "o", "", "entry")).code == b"again"


def test_files_and_folders_that_vanish_meanwhile_are_left_out(tmp_path):
    cache = KernelCache(tmp_path)
    for number in range(4):
        store(cache, number, size=10)
    found = stored_files(tmp_path)
    next(found)
    for number in range(4):  # as another process does
        shutil.rmtree(cache.path(key_of(number), "o").parent)
    assert len(list(found)) <= 2  # what the folder that is being read had named
    assert list(stored_files(tmp_path)) == list(stored_files(tmp_path / "nowhere")) == []


def test_entries_in_use_stay(tmp_path):
    cache = KernelCache(tmp_path)
    for number in range(5):
        store(cache, number, age=0)
    trim(tmp_path, 1)
    assert present(cache) == set(range(5))


def test_leftovers_of_dead_processes_go(tmp_path):
    store(KernelCache(tmp_path), 1, age=0)
    left = tmp_path / "01" / ".new-abc12_xy"
    left.write_bytes(bytes(1000))
    os.utime(left, (0, 0))
    (tmp_path / "notes.txt").write_text("not ours")
    trim(tmp_path, 10)
    assert not left.exists() and (tmp_path / "notes.txt").exists()


def test_a_cache_with_a_limit_trims_itself(tmp_path):
    unlimited = KernelCache(tmp_path)
    for number in range(10):
        store(unlimited, number, age=10_000 - 100 * number)
    limited = KernelCache(tmp_path, limit=50_000)
    store(limited, 100)
    assert present(limited) < {6, 7, 8, 9, 100} | {5} and 100 in present(limited)


def test_the_limit_holds_between_any_two_writes(tmp_path):
    # A process looked at the size once every 256 writes, whatever it wrote.
    cache = KernelCache(tmp_path, limit=200_000)
    most = 0
    for number in range(100):
        store(cache, number)
        most = max(most, sum(file.stat().st_size for file in tmp_path.glob("??/*")))
    assert 100_000 < most <= 200_000 + 11_000


def test_entries_in_use_are_not_looked_at_with_each_write(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(kernel_cache, "trim", lambda *args: looks.append(args) or trim(*args))
    cache = KernelCache(tmp_path, limit=100_000)
    for number in range(100):
        store(cache, number, age=0, size=1000)
    assert 2 <= len(looks) <= 20 and len(present(cache)) == 100


def test_of_processes_that_write_little_few_look(tmp_path, monkeypatch):
    """Each read the whole folder after its first write: a second, where that holds 1 GiB."""
    looks = []
    monkeypatch.setattr(kernel_cache, "trim", lambda *args: looks.append(args) or trim(*args))
    for start in range(100):  # where the random numbers of a hundred processes lie
        number = (1000 * start).to_bytes(8)
        monkeypatch.setattr(os, "urandom", lambda count, number=number: number)
        store(KernelCache(tmp_path, limit=16 * 100_000), start, size=3000)
    assert 3 <= len(looks) <= 5


def test_the_copy_of_openblas_and_processors_count(tmp_path):
    cache = KernelCache(tmp_path)
    store(cache, 1, age=10)
    for used, name in ((1000, "blas/libopenblas-1.2.so"), (2000, f"processors/{key_of(1)}.json")):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(bytes(50_000))
        os.utime(path, (used, used))
    assert trim(tmp_path, 200_000) > 100_000
    assert trim(tmp_path, 80_000) < 64_000 and not (tmp_path / "blas/libopenblas-1.2.so").exists()


def test_what_is_no_file_is_left_alone(tmp_path):
    store(KernelCache(tmp_path), 1, age=100)
    (tmp_path / "01" / "folder").mkdir()
    (tmp_path / "01" / "link").symlink_to(tmp_path / "gone")
    os.utime(tmp_path / "01" / "link", (0, 0), follow_symlinks=False)
    assert trim(tmp_path, 1) == 0 and (tmp_path / "01" / "folder").exists()


def test_files_of_a_user_in_the_folder_stay(tmp_path):
    """GPUFLOW_CACHE_DIR may be a folder with translations in en/ and de/; they were deleted."""
    cache = KernelCache(tmp_path)
    store(cache, 0xDE, age=100)
    names = [
        "en/app.po",
        "de/app.po",
        "de/notes.json",
        "de/" + "0" * 64 + ".json",
        "DE/" + key_of(0xDE),
        "de/" + key_of(0xDE).upper() + ".json",
        "de/" + key_of(0xDE) + ".txt",
        "de/" + key_of(0xDE) + "x.json",
        "de/.new-report",
        "de/.new-a file",
        "ab/.hidden",
        "blas/mine.so",
        "blas/notes.txt",
        "processors/mine.json",
        "processors/.new-",
        "xy/" + "z" * 9,
        "01/" + key_of(0xDE) + ".json",
    ]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(20_000))
        os.utime(path, (0, 0))
    target = tmp_path / "target"
    target.write_text("mine")
    link = cache.path(key_of(0xDF), "o")
    link.parent.mkdir()
    link.symlink_to(target)
    os.utime(link, (0, 0), follow_symlinks=False)
    assert trim(tmp_path, 1) == 0
    assert not cache.path(key_of(0xDE), "json").exists()
    assert link.is_symlink() and target.read_text() == "mine"
    assert all((tmp_path / name).stat().st_size == 20_000 for name in names)


@pytest.mark.parametrize("suffix", ["o", "image", "cubin", "tuned"])
def test_all_kinds_of_entries_are_deleted(suffix, tmp_path):
    cache = KernelCache(tmp_path)
    cache.get(key_of(1), lambda: CacheEntry(bytes(1000), suffix, "source", "entry"))
    for path in (tmp_path / "01").iterdir():
        os.utime(path, (0, 0))
    assert trim(tmp_path, 1) == 0 and not list((tmp_path / "01").iterdir())


def test_every_kind_of_entry_is_known():
    """A kind that trim does not know would fill the disk."""
    calls = [
        node
        for path in (Path(gpuflow.__file__).parent).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] == "CacheEntry"
        and len(node.args) >= 4
        and isinstance(node.args[1], ast.Constant)
    ]
    assert {node.args[1].value for node in calls} == {"cubin", "tuned"}


def test_an_entry_that_another_process_deletes_is_built_again_in_silence(tmp_path, monkeypatch):
    cache = KernelCache(tmp_path)
    store(cache, 1)
    parse = cache._parse

    def delete_first(key, record):
        for suffix in ("json", "o", "py"):
            cache.path(key, suffix).unlink()
        return parse(key, record)

    monkeypatch.setattr(cache, "_parse", delete_first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(key_of(1), lambda: CacheEntry(b"again", "o", "", "entry")).code == b"again"


@pytest.mark.parametrize("text", ["-1", "much"])
def test_the_limit_is_checked(text, monkeypatch):
    monkeypatch.setenv("GPUFLOW_CACHE_LIMIT", text)
    with pytest.raises(ValueError, match="GPUFLOW_CACHE_LIMIT must be an integer"):
        read_environment()
