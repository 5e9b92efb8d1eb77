"""The registry of caches: names, bounds and sizes."""

import sys

import numpy as np

import gpuflow as gf
from gpuflow.base import caches


def test_cached_functions_are_registered(monkeypatch):
    monkeypatch.setattr(caches, "_sizes", {})

    @caches.cache
    def square(x):
        return x * x

    @caches.lru_cache(2, typed=True)
    def text(x):
        return repr(x)

    assert caches.cache_sizes() == []
    assert [square(3), square(3), square(4)] == [9, 9, 16]
    assert [text(1), text(1.0), text(1)] == ["1", "1.0", "1"]
    name = f"{__name__}.test_cached_functions_are_registered.<locals>."
    assert {*caches.cache_sizes()} == {(f"{name}square", 2, None), (f"{name}text", 2, 2)}
    text(2)
    assert text.cache_info().currsize == 2
    square.cache_clear()
    assert caches.cache_sizes() == [(f"{name}text", 2, 2)]


def test_tables_are_listed_by_size(monkeypatch):
    monkeypatch.setattr(caches, "_sizes", {})
    tables = {"few": {1: 1}, "many": {1: 1, 2: 2}, "none": {}}
    for name, table in tables.items():
        caches.register_table(name, table, 10)
    assert caches.cache_sizes() == [("many", 2, 10), ("few", 1, 10)]
    tables["none"].update(dict.fromkeys(range(5)))
    assert caches.cache_sizes()[0] == caches.CacheSize("none", 5, 10)


def test_users_see_what_programs_leave_in_memory():
    gf.jit(lambda x: x * 2 + 1)(np.ones(7, np.float32))
    listed = {cache.name: cache for cache in gf.cache_stats().caches}
    programs = listed["symbolic programs"]
    assert 1 <= programs.entries <= programs.bound
    assert "kernels in use" in listed and "types of arrays" in listed
    # A module and a function of it, or words.
    functions = [name for name in listed if " " not in name]
    assert functions and all(name.startswith("gpuflow.") for name in functions)
    assert {name.rpartition(".")[0] for name in functions} <= {*sys.modules}
    gf.clear_caches()
    assert "symbolic programs" not in {cache.name for cache in gf.cache_stats().caches}
