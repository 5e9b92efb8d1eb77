"""``python -m ptxsim``: what it prints, and what it says of arguments that cannot be used."""

import subprocess
import sys

import numpy as np
import pytest

from ptxsim.__main__ import main

AXPY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 a)
.maxntid 256, 1, 1
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<6>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
    ld.param.u32 %r1, [n]; ld.param.f32 %f4, [a];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4]; ld.global.f32 %f2, [%rd5];
    fma.rn.f32 %f3, %f1, %f4, %f2;
    st.global.f32 [%rd5], %f3;
DONE:
    ret;
}
.visible .entry other(.param .u64 x)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [x];
    tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd1;
    ret;
}
"""
RUN = ("--grid", "4", "--block", "128", "--run")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_text(AXPY)
    return str(path)


def test_what_a_file_holds(file, capsys):
    assert main([file]) == 0
    text = capsys.readouterr().out
    assert "axpy(x: u64, y: u64, n: u32, a: f32)\n" in text
    assert "blocks of at most 256 threads, 0 bytes of static shared memory" in text
    assert "other(x: u64)\n" in text and "cannot be run: [ptx" in text and "tensormap" in text


def test_a_launch(file, tmp_path, capsys):
    np.save(tmp_path / "y.npy", np.arange(512.0))
    arguments = ["axpy", "f32[512]=ramp", f"f32[512]={tmp_path / 'y.npy'}", "500", "-0.5"]
    assert main([file, "--thorough", "--out", str(tmp_path), *RUN, *arguments]) == 0
    text = capsys.readouterr().out
    assert "1000 loads and 500 stores of threads in global memory, 6000 bytes" in text
    assert "x = [  0.   1.   2.   3. ... 508. 509. 510. 511.]" in text
    index = np.arange(512, dtype=np.float32)
    want = np.where(index < 500, index / 2, index)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), want)


def test_a_fault_is_an_error_with_its_line(file, capsys):
    arguments = ["axpy", "f32[512]=ramp", "f32[500]", "512", "1"]
    assert main([file, *RUN, *arguments]) == 1
    assert "byte 2000 of an allocation of 2000. At line" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["axpy", "3"], r"axpy must have 4 arguments (x: u64, y: u64, n: u32, a: f32); got 1"),
        (
            ["axpy", "f32[4]=what", "0", "1", "1"],
            "a filling must be one of zeros, ones, ramp, random",
        ),
        (["axpy", "f31[4]", "0", "1", "1"], "an array must have one of the types"),
        (["axpy", "f32[4]=none.npy", "0", "1", "1"], "none.npy"),
        (["axpy", "f32[4]", "f32[4]", "1.5", "1"], "n must be a number of type u32, or an array"),
        (["axpy", "f32[4]", "f32[4]", "0x100000000", "1"], "n must be a number of type u32"),
        (["axpy", "f32[4]", "f32[4]", "4", "one"], "a must be a number of type f32"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, text, file, capsys):
    assert main([file, *RUN, *arguments]) == 2
    said = capsys.readouterr()
    assert text in said.err and not said.out


def test_a_file_of_another_size(file, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros(3))
    assert main([file, *RUN, "axpy", f"f32[4]={tmp_path / 'x.npy'}", "0", "1", "1"]) == 2
    assert "must have 4 elements; got 3" in capsys.readouterr().err


def test_other_errors(file, tmp_path, capsys):
    assert main([file, "--run", "axp"]) == 1
    assert "it has ['axpy', 'other']" in capsys.readouterr().err
    assert main([str(tmp_path / "none.ptx")]) == 2
    assert "must be a file of PTX; got" in capsys.readouterr().err
    (tmp_path / "broken.ptx").write_text(".version 8.0\n.visible .entry k( {")
    assert main([str(tmp_path / "broken.ptx")]) == 1
    assert capsys.readouterr().err.startswith("ptxsim: [ptx]")


def test_the_command_in_a_process(file):
    command = [sys.executable, "-m", "ptxsim", file, *RUN, "axpy", "f32[8]=ramp", "f32[8]", "8"]
    done = subprocess.run([*command, "2"], capture_output=True, text=True, check=True)
    assert "y = [ 0.  2.  4.  6.  8. 10. 12. 14.]" in done.stdout
