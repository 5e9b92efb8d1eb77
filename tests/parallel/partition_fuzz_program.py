"""Random programs, mapped over a batch that is split in random ways, compared with one device.

``partition_fuzz_program.py rank size port count seed``: ``count`` programs of each kind, on four
processes. All ranks draw the same ones.
"""

import random
import sys
import warnings
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

import gpuflow as gf
from gpuflow import NamedSharding, P
from gpuflow.experimental import multihost_utils

sys.path.append(str(Path(__file__).resolve().parents[1]))

from fuzzing.programs import random_inputs
from fuzzing.running import run
from fuzzing.strategy import control_programs, programs, reducing_programs

rank, size, port, count, start = (int(argument) for argument in sys.argv[1:6])
SPECS = [P("x"), P("y"), P(("x", "y")), P()]


def drawn(strategy):
    found = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(program):
        found.append(program)

    collect()
    return found


def mapped(program):
    """The program for each row, and sums over the rows, which are terms where these are split."""

    def function(*xs):
        outs = gf.vmap(lambda *row: list(run(program, row, plain=False)))(*xs)
        return [*outs, *[x.sum(0) for x in outs if x.dtype in (np.float32, np.int32)]]

    return gf.jit(function)


def compare(got, want, text):
    assert got.shape == want.shape and got.dtype == want.dtype, text
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want, err_msg=text)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    got, want, exact = got.astype(wide), want.astype(wide), want.dtype.itemsize > 2
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite, err_msg=text)
    # Other orders of summation, and programs that amplify errors.
    scale = np.abs(want[finite]).max(initial=1e-30)
    limit = (1e-4 if exact else 2e-2) * scale
    assert np.abs(got[finite] - want[finite]).max(initial=0) <= limit, text


gf.distributed.initialize(f"127.0.0.1:{port}", size, rank)
warnings.simplefilter("ignore")
number = 0
for strategy in (programs(), reducing_programs(), control_programs()):
    for program in drawn(strategy):
        choose = random.Random(number)
        number += 1
        if not program.inputs:
            continue
        mesh = gf.make_mesh((2, 2), ("x", "y"))
        specs = [choose.choice(SPECS) for _ in program.inputs]
        inputs = random_inputs(program, [4] * len(specs))
        pairs = zip(inputs, specs, strict=True)
        split = [gf.device_put(x, NamedSharding(mesh, spec)) for x, spec in pairs]
        function = mapped(program)
        wanted = [np.asarray(x) for x in function(*inputs)]
        for got, want in zip(function(*split), wanted, strict=True):
            whole = np.asarray(multihost_utils.process_allgather(got, tiled=True))
            compare(whole, want, f"{specs} of {program.to_json()}")
print(f"rank {rank} of {size}: {number} programs agree")
