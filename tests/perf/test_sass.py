"""The table of machine code: what it counts, and that a kernel's row can be made."""

import sys
from pathlib import Path

import pytest
from cuda_tools import requires_cuda_tools

from gpuflow.targets.cuda.codegen.disassembly import INSTALL, disassembler

PERF = Path(__file__).resolve().parents[2] / "perf"
LINES = [
    "LDC R1, c[0x0][0x28]",
    "LDG.E.128.CONSTANT R4, desc[UR4][R2.64]",
    "@!P0 LDG.E.U16 R5, desc[UR4][R2.64+0x2]",
    "@P0 LDG.E R5, desc[UR4][R2.64]",
    "LDG.E.64.STRONG.GPU R6, desc[UR4][R2.64]",
    "STG.E.128 desc[UR4][R2.64], R4",
    "STG.E.U8 desc[UR4][R2.64], R4",
    "LDS R1, [R2]",
    "STS [R2], R1",
    "I2F.U32.RP R0, R2",
    "@P1 I2F.RP R0, R2",
    "I2F.U64.RP R0, R8",
    "CALL.ABS.NOINC `(__cuda_sm20_div_s64)",
    "@!P0 CALL.REL.NOINC `($k$__cuda_sm20_rem_u64)",
    "I2FP.F32.U32 R2, R3",
    "NOP",
]


@pytest.fixture
def sass(monkeypatch):
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(PERF), *sys.path])
    yield __import__("sass")
    for name in set(sys.modules) - before:
        if str(PERF) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_what_is_counted(sass):
    code = sass.code_of(LINES)
    assert code.instructions == len(LINES) - 1
    assert code.loads == {128: 1, 64: 1, 32: 1, 16: 1}
    assert code.stores == {128: 1, 8: 1}
    assert (code.wide_divisions, code.divisions) == (2, 2)
    # Where no routine is called the division stands in the text itself.
    assert sass.code_of(["I2F.U64.RP R0, R8"]).wide_divisions == 1


@requires_cuda_tools
def test_the_row_of_a_program(sass):
    if disassembler() is None:
        pytest.skip(f"nvdisasm is not installed: {INSTALL}")
    _, _, row = sass.table((9, 0), "column sum bfloat16")[:3]
    assert row.startswith("| column sum bfloat16: column_reduce_sum_parts | ")
    assert "| 0 |" in row
