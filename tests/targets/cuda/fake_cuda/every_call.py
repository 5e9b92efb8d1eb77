"""Library calls of all ops with CuPy's arrays: which of them CuPy refuses, one a line.

``test_on_cupy.py`` runs this on the stand-in for CUDA, which has none of CUDA's other libraries.
"""

import sys
from pathlib import Path

import cupy
import numpy as np
import stand_in

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[3] / "ops"))

from op_sweep import accepted_dtypes, all_primitives, operands
from samples import SAMPLES

import gpuflow as gf
from gpuflow.compiler.planning.plan import CallStep, StepOperand
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Library, OnHost
from gpuflow.targets.cuda.library.target import GpuTarget

DTYPES = [np.dtype(name) for name in ("float32", "complex64", "int32")]


def outputs(primitive, ins, params):
    found = primitive.shape(*ins, **params)
    return found if primitive.multiple_results else [found]


def is_ours(primitive, ins, params):
    """Whether a provider makes it: none of it is left to CuPy."""
    jaxpr = gf.make_jaxpr(lambda *operands: primitive.bind(*operands, **params))(*ins)
    (eqn,) = (eqn for eqn in jaxpr.eqns if eqn.primitive is primitive)
    places = tuple(StepOperand(k, atom.aval) for k, atom in enumerate(eqn.inputs))
    outputs = tuple(range(len(places), len(places) + len(eqn.outputs)))
    return GpuTarget().implementation_of(CallStep(eqn, places, outputs)) is not None


def refusal(primitive, outs, arrays, params):
    """What CuPy says, or None."""
    given = [cupy.asarray(x) for x in arrays]
    try:
        if primitive.lower.call is not None:
            places = [cupy.empty(out.shape, out.dtype) for out in outs]
            primitive.lower.call(cupy, places, *given, **params)
        else:
            primitive.impl(cupy, *given, **params)
        cupy.cuda.get_current_stream().synchronize()
    except (OnHost, ImportError):
        return None  # the page has the first ones, and the libraries of the others are not here
    except Exception as error:
        unknown, stand_in.kernels.unknown[:] = list(stand_in.kernels.unknown), []
        return None if unknown else f"{type(error).__name__}: {error}"
    return None


count = 0
for name, primitive in all_primitives().items():
    is_collective = "collectives" in primitive.shape.__module__
    if not isinstance(primitive.lower, Library) or is_collective:
        continue
    for dtype in DTYPES:
        samples = [s for s in SAMPLES.get(name, ()) if accepted_dtypes(primitive, s, [dtype])]
        for sample in samples[:1]:
            arrays, params = operands(primitive, sample, dtype), sample.params_for(dtype)
            ins = [ShapedArray(x.shape, x.dtype) for x in arrays]
            outs = outputs(primitive, ins, params)
            if is_ours(primitive, ins, params):
                continue
            count += 1
            why = refusal(primitive, outs, arrays, params)
            if why is not None:
                print(f"refused {name} {dtype} {why}")
print(f"calls {count}")
