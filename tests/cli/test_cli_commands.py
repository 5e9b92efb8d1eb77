"""The command line: parsing, the error of a missing extra, `bench` and `doctor`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import pytest

from gpuflow.cli import bench, doctor
from gpuflow.cli import main as command_line
from gpuflow.cli.main import build_parser, main
from gpuflow.cli.problems import CommandError, require
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache
from gpuflow.targets.cuda.codegen import toolchain
from gpuflow.version import __version__

BENCH_FILE = """
def plain():
    return 3

def cases():
    return [("sum of a list", sum, ([1, 2],)), ("length", len, ("abc",))]

def one_fails():
    return [("bad", int, ("x",)), ("good", int, ("1",))]

def needs(x, y=1):
    return x

def empty():
    return []

import gpuflow

@gpuflow.jit
def jitted():
    return 3

number = 3
"""


@pytest.fixture
def bench_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "a_bench_of_mine.py"
    path.write_text(BENCH_FILE)
    yield path
    sys.modules.pop(path.stem, None)


def test_version(capsys):
    with pytest.raises(SystemExit) as exit_status:
        main(["--version"])
    assert exit_status.value.code == 0
    assert capsys.readouterr().out == f"gpuflow {__version__}\n"


def test_without_a_command_the_help_is_printed(capsys):
    assert main([]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: gpuflow") and not captured.err
    assert all(name in captured.out for name in ("demo", "bench", "doctor", "launch"))


def test_an_interrupted_command_is_one_line(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "gpuflow doctor: interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "a.py:f", "--seconds", "-1"],
        ["fly"],
        ["demo", "--steps", "0"],
        ["demo", "--epochs", "-1"],
        ["demo", "--steps", "x"],
        ["demo", "--steps", "1", "--epochs", "1"],
        ["demo", "--platform", "abacus"],
        ["bench"],
    ],
    ids=" ".join,
)
def test_refused_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as exit_status:
        build_parser().parse_args(arguments)
    assert exit_status.value.code == 2
    assert "usage: gpuflow" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e999", "0", "-1", "soon"])
@pytest.mark.parametrize("option", [("bench", "a.py:f", "--seconds"), ("smi", "--interval")])
def test_seconds_are_finite_and_above_0(option, seconds, capsys):
    with pytest.raises(SystemExit) as exit_status:
        build_parser().parse_args([*option, seconds])
    assert exit_status.value.code == 2
    text = f"must be a finite number of seconds above 0; got {seconds}. Fix: 0.5"
    assert f"error: argument {option[-1]}: {text}" in capsys.readouterr().err


def test_demo_arguments():
    options = build_parser().parse_args(
        ["demo", "--steps", "20", "--no-progress", "--plot", "a.png", "--platform", "cpu"]
    )
    assert (options.steps, options.no_progress, options.plot) == (20, True, "a.png")
    assert (options.platform, options.seed) == ("cpu", 0)
    assert build_parser().parse_args(["demo"]).steps is None


def test_missing_extra_is_one_line_with_the_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["demo"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("gpuflow demo: rich must be installed")
    assert re.search(r'Fix: pip install "\S+\[demo\]"$', captured.err.strip())


def test_missing_plot_extra_is_told_before_training(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--plot", "loss.png"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and re.search(r'pip install "\S+\[plot\]"', captured.err)


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("launch", "gpuflow launch -n 4 train.py"),
        ("bench", "gpuflow bench model.py:step"),
        ("smi --nothing", "gpuflow --help"),
        ("nothing", "gpuflow --help"),
    ],
)
def test_errors_of_arguments_end_with_a_command(command, fix, capsys):
    with pytest.raises(SystemExit) as caught:
        main(command.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f". Fix: {fix}\n")


def test_require_names_the_package_of_a_submodule():
    with pytest.raises(CommandError, match="no_such_package must be installed"):
        require("no_such_package.inner", "demo")
    assert require("json", "demo").loads("1") == 1


def test_bench_times_a_function(bench_file, capsys):
    assert main(["bench", f"{bench_file}:plain", "--seconds", "0.001"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("plain  ") and "runs)" in line


def test_bench_times_every_case(bench_file, capsys):
    assert main(["bench", f"{bench_file}:cases", "--runs", "2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("sum of a list  ") and first.endswith("(2 runs)")
    assert second.startswith("length         ")


def test_bench_marks_a_failed_case_and_goes_on(bench_file, capsys):
    assert main(["bench", f"{bench_file}:one_fails", "--runs", "2"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("bad   FAILED ValueError: invalid literal")
    assert second.startswith("good  ") and "FAILED" not in second


def test_bench_of_a_function_that_returns_no_cases(bench_file):
    name, function = bench.load_function(f"{bench_file}:empty")
    assert bench.find_cases(name, function) == [("empty", function, ())]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("bench.py", "target must be FILE.py:function"),
        (":f", "target must be FILE.py:function"),
        ("nowhere.py:f", "nowhere.py must be a Python file; found none"),
        ("{file}:missing", "must define the function missing; it defines: plain, cases"),
        ("{file}:missing", "empty, jitted. Fix: use one of these"),
        ("{file}:number", "must define the function number"),
        ("{file}:needs", "needs must be callable without arguments; it needs x."),
        ("{text}:f", "must be a Python file, named"),
    ],
)
def test_bench_errors(bench_file, target, message, capsys):
    text = bench_file.with_suffix(".txt")
    text.write_text("")
    assert main(["bench", target.format(file=bench_file, text=text)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gpuflow bench: ") and message in error


def test_doctor_reports_what_is_there(capsys):
    assert main(["doctor"]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["gpuflow"] == __version__
    assert lines["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert {"numpy", "numba", "libmvec", "threads", "processor"} <= lines.keys()


def test_doctor_fails_where_a_required_package_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "REQUIRED", ("numpy", "no-such-package"))
    assert main(["doctor"]) == 1
    assert "MISSING: pip install no-such-package" in capsys.readouterr().out


def test_doctor_on_the_cache_folder(tmp_path, monkeypatch):
    assert dict(doctor.cache(tmp_path / "new" / "er"))["cache"] == "empty"
    KernelCache(tmp_path).get("ab" * 32, lambda: CacheEntry(bytes(60_000), "o", "source", "entry"))
    (tmp_path / "notes.txt").write_bytes(bytes(100_000))  # not the cache's
    assert dict(doctor.cache(tmp_path))["cache"] == "3 files, 0.1 MB"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert dict(doctor.cache(tmp_path))["cache"].startswith("not writable")


def test_doctor_on_libraries():
    assert doctor.can_load("libc.so.6") and not doctor.can_load("libnowhere.so.7")


@pytest.mark.cuda_toolchain
def test_doctor_builds_a_cuda_kernel_on_request(capsys):
    assert "CUDA compiler" not in dict(doctor.versions())
    assert main(["doctor", "--cuda"]) == 0
    assert "built a kernel for sm_90 in" in capsys.readouterr().out


@pytest.fixture
def no_toolchain(monkeypatch):
    """An environment without numba-cuda, which is what `pip install .` makes; the sentence."""
    monkeypatch.setattr(toolchain, "toolchain_fault", lambda: "[cuda build] none. Fix: pip.")
    return "[cuda build] none. Fix: pip."


def test_doctor_without_a_cuda_toolchain(no_toolchain, capsys):
    assert main(["doctor", "--cuda"]) == 1
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "CUDA compiler" in one]
    assert line.endswith(f"  MISSING: {no_toolchain}")


def test_a_command_without_a_cuda_toolchain_says_so_in_one_line(no_toolchain, capsys, monkeypatch):
    def run(options):
        toolchain.load_numba_cuda()

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=run, command="demo")
    monkeypatch.setattr(command_line, "build_parser", lambda: parser)
    assert main([]) == 2
    assert capsys.readouterr().err == f"gpuflow demo: {no_toolchain}\n"


def test_the_demo_on_a_simulated_gpu_without_a_toolchain(tmp_path):
    """From outside, in an environment that has one or not: never a traceback."""
    program = (
        "import sys; from gpuflow.targets.cuda.codegen import toolchain;"
        "toolchain.toolchain_fault = lambda: '[cuda build] none. Fix: pip.';"
        "from gpuflow.cli.main import main;"
        "sys.exit(main(['demo', '--platform', 'cuda_sim', '--steps', '2']))"
    )
    # A kernel in the cache would need no toolchain.
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stderr.endswith("gpuflow demo: [cuda build] none. Fix: pip.\n")


def test_module_runs_as_a_command():
    command = [sys.executable, "-m", "gpuflow.cli.main", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"gpuflow {__version__}\n"
