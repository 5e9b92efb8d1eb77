"""Every op can be written to a file of an exported function, or says why not."""

from __future__ import annotations

import json

import pytest
from op_sweep import (
    DTYPES_32,
    DTYPES_64,
    accepted_dtypes,
    all_primitives,
    default_samples,
    operand_avals,
    x64,
)
from samples import SAMPLES
from together import together

from gpuflow.core.jaxpr import one_op
from gpuflow.core.lowering import HostCall
from gpuflow.errors import ExportError
from gpuflow.export.records import Reader, Writer

CASES = [
    (primitive, sample)
    for name, primitive in all_primitives().items()
    for sample in SAMPLES.get(name) or default_samples(primitive)
]


@together(size=10)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].name)
def test_an_op_is_the_same_behind_its_record(case):
    primitive, sample = case
    with x64():
        dtype = accepted_dtypes(primitive, sample, [*DTYPES_32, *DTYPES_64])[0]
        check_one(one_op(primitive, operand_avals(sample, dtype), sample.params_for(dtype)))


def check_one(program):
    writer, primitive = Writer(), program.eqns[0].primitive
    if isinstance(primitive.lower, HostCall):
        with pytest.raises(ExportError, match="must not call Python; got"):
            writer.program(program)
        return
    number = writer.program(program)
    records = json.loads(json.dumps(writer.programs))
    again = Reader(records, [value for value, _, _ in writer.arrays]).program(number)
    assert str(again) == str(program)
    (eqn,), (copied,) = program.eqns, again.eqns
    assert copied.primitive is primitive and copied.params.keys() == eqn.params.keys()
    second = Writer()
    second.program(again)
    assert second.programs == writer.programs
