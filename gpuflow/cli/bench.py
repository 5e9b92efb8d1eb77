"""`gpuflow bench FILE.py:function`: times a user's function.

Tests: tests/cli/test_cli_commands.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuflow.cli.problems import CommandError, positive_seconds
from gpuflow.timing import timeit

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]


def add_parser(commands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "bench",
        help="time a function of a file",
        description="Imports FILE.py and calls its function. If the result is a list of (name, "
        "callable, arguments), times each of them, otherwise the function.",
    )
    parser.add_argument("target", metavar="FILE.py:function")
    parser.add_argument(
        "--seconds", type=positive_seconds, default=0.5, help="seconds of each case (default: 0.5)"
    )
    parser.add_argument("--runs", type=int, default=None, help="number of samples of each case")
    parser.example = "gpuflow bench model.py:step"
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints one line per case; returns 1 if a case failed, and times the others."""
    name, function = load_function(options.target)
    cases = find_cases(name, function)
    width = max(len(case[0]) for case in cases)
    failures = 0
    for label, timed, args in cases:
        try:
            timing = str(timeit(timed, *args, runs=options.runs, seconds=options.seconds))
        except Exception as error:
            failures += 1
            timing = f"FAILED {type(error).__name__}: {error}"
        print(f"{label:<{width}}  {timing}", flush=True)
    return 1 if failures else 0


def load_function(target: str) -> tuple[str, Callable[..., Any]]:
    """The function that `FILE.py:function` names, and its name.

    Raises:
        CommandError: the target has another form, or there is no such file or function.
    """
    file, separator, name = target.rpartition(":")
    if not separator or not file or not name:
        raise CommandError(
            f"the target must be FILE.py:function; got {target!r}. Fix: model.py:step"
        )
    path = Path(file)
    if not path.is_file():
        raise CommandError(f"{file} must be a Python file; found none. Fix: the path of the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{file} must be a Python file, named *.py. Fix: rename it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        names = (_name_if_defined_here(key, vars(module)) for key in vars(module))
        known = ", ".join(filter(None, names))
        raise CommandError(
            f"{file} must define the function {name}; it defines: {known}. Fix: use one of these"
        )
    return name, function


def _name_if_defined_here(key: str, names: dict[str, Any]) -> str | None:
    """`key` if it is a function, jitted or not, that was defined in the file itself."""
    value = names[key]
    is_function = callable(value) and not inspect.isclass(value)
    return key if is_function and value.__module__ == names["__name__"] else None


def find_cases(name: str, function: Callable[..., Any]) -> list[Case]:
    """Calls `function` once: a list of cases is taken as such, anything else times `function`.

    Raises:
        CommandError: the function needs arguments, so there is nothing to call it with.
    """
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise CommandError(
            f"{name} must be callable without arguments; it needs {', '.join(needed)}. "
            "Fix: write a function that returns [(name, callable, arguments), ...]"
        )
    result = function()
    if isinstance(result, list) and result and all(map(_is_case, result)):
        return [(label, timed, tuple(args)) for label, timed, args in result]
    return [(name, function, ())]


def _is_case(item: Any) -> bool:
    return (
        isinstance(item, tuple)
        and len(item) == 3
        and isinstance(item[0], str)
        and callable(item[1])
        and isinstance(item[2], (tuple, list))
    )
