"""Random programs in the words of jax.numpy over awkward operands: eager, jit and JAX agree.

Operands are unaligned, reversed, strided, read-only, in Fortran's order, of no element or of eight
dimensions, and hold nan, infinities, -0.0, subnormal and largest numbers. Programs index with
every mode beyond the ends, scatter, cast from any dtype to any, change refs, and nest branches,
loops and mapped functions three deep (see awkward/).

The normal run takes the first programs of which JAX's results are stored, and some fresh ones.
``FUZZ_EXAMPLES=5000 FUZZ_SEED=7 pytest -n auto tests/test_awkward_programs.py`` takes 5000 others,
and from 1000 on all that are stored. A failing test names the number of its program;
``make_case(number, subnormal).source`` is its text.
"""

import json
import lzma
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from awkward.cases import (
    check_near,
    check_same,
    check_type,
    digest,
    function_of,
    make_case,
    operands,
    sample,
    source_digest,
)
from awkward.writer import EXACT

import gpuflow as gf
import gpuflow.numpy as jnp

STORED = json.loads(
    lzma.decompress((Path(__file__).parent / "data" / "awkward_values.json.xz").read_bytes())
)["results"]
FRESH = int(os.environ.get("FUZZ_EXAMPLES", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))

CHUNK = 20
PLAIN_STORED, PLAIN_FRESH = 200, 100  # of a normal run
MANY = 1000
NUMBERS = sorted(map(int, STORED))[: None if FRESH >= MANY else PLAIN_STORED]
FIRST = 1_000_000 + 1_000_000 * (SEED % 1_000_000)  # no stored one


def chunks(numbers):
    return [numbers[k : k + CHUNK] for k in range(0, len(numbers), CHUNK)]


def run_all(number, check):
    """Run ``check`` and say which program failed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex numbers that are cast, and such
            check(number)
    except Exception as error:
        raise AssertionError(f"program {number}: {error}") from error


def check_stored(number):
    case = make_case(number)
    source, *results = STORED[str(number)]
    assert source == source_digest(case), "run data/make_awkward_values.py again"
    function = function_of(case, gf)
    for what, way in (("eager", function), ("jit", gf.jit(function))):
        outs = way(*operands(case))
        for out, value, want in zip(outs, case.results, results, strict=True):
            check_type(out, value, what)
            if value.grade >= EXACT:
                assert digest(out, value.grade) == want, f"{what} {value}: got {np.asarray(out)}"
            else:
                check_near(sample(out), want, value, what)


def check_fresh(number):
    """Eager, jit, disable_jit and donation agree, and nobody writes into what it is given."""
    case = make_case(number, subnormal=True)
    function = function_of(case, gf)
    values = operands(case)
    before = [x.tobytes() for x in values]
    want = function(*values)
    for out, value in zip(want, case.results, strict=True):
        check_type(out, value, "eager")
    arrays = [jnp.array(x) for x in values]
    views = [np.asarray(x) for x in arrays[::2]]
    donating = gf.jit(function, donate_argnums=tuple(range(len(arrays))))
    ways = {
        "jit": lambda: gf.jit(function)(*values),
        "jit of arrays": lambda: gf.jit(function)(*arrays),
        "donated": lambda: donating(*arrays),
        "disable_jit": lambda: without_jit(function, values),
    }
    for what, way in ways.items():
        for got, wanted, value in zip(way(), want, case.results, strict=True):
            check_same(got, wanted, value, what)
    check_given_twice(function, [jnp.array(x) for x in values], case, want)
    assert [x.tobytes() for x in values] == before, "operands were written to"
    assert [x.tobytes() for x in views] == before[::2], "arrays that NumPy sees were written to"


def check_given_twice(function, arrays, case, want):
    """Arrays that are operands twice, and donated once: refused, or they stay what they are."""
    count = len(arrays)
    kept = [x.tobytes() for x in map(np.asarray, arrays)]

    def both(*xs):
        return function(*xs[:count]), xs[count:]

    try:
        got, others = gf.jit(both, donate_argnums=tuple(range(count)))(*arrays, *arrays)
    except ValueError as error:
        assert "donate" in str(error), error
        return
    for out, wanted, value in zip(got, want, case.results, strict=True):
        check_same(out, wanted, value, "given twice")
    assert [np.asarray(x).tobytes() for x in others] == kept


def without_jit(function, given):
    with gf.disable_jit():
        return function(*given)


@pytest.mark.parametrize("numbers", chunks(NUMBERS), ids=lambda numbers: str(numbers[0]))
def test_results_are_those_of_jax(numbers):
    for number in numbers:
        run_all(number, check_stored)


@pytest.mark.parametrize("first", range(0, FRESH or PLAIN_FRESH, CHUNK))
def test_ways_of_running_agree(first):
    for number in range(FIRST + first, FIRST + first + CHUNK):
        run_all(number, check_fresh)
