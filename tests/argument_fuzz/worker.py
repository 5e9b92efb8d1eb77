"""A process that makes calls with awkward arguments and reports on them on standard output.

    python worker.py SEED FIRST LAST [TEXT]

makes the calls numbered FIRST to LAST - 1, of functions whose names contain TEXT. It prints
``> number call`` before each, so that a call that ends the process is known, a line of JSON after
one with a wrong outcome, and ``done`` at the end.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import re
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path
from types import FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpuflow as gf
from argument_fuzz import calls

FORM = re.compile(r"\[[^\]\s]+\] .+; got .+ Fix: \S", re.DOTALL)
CALLBACK_FILES = ("<string>", "<example>", calls.__file__)
SECONDS = 60  # that a call may take, most of them for kernels on a busy machine
MEMORY = 6 << 30  # bytes of addresses, so that nothing large is allocated


class TooLong(BaseException):
    """A call exceeds its time."""


def too_long(*_: Any) -> None:
    raise TooLong


def outcome(function: Any, args: list[Any], keywords: dict[str, Any]) -> dict[str, str] | None:
    """What is wrong with a call; None if it returned or raised an error of the package's form."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        gf.block_until_ready(function(*args, **keywords))
    except TooLong:
        return {"kind": "TooLong", "text": traceback.format_exc()[-1500:], "path": ""}
    except BaseException as error:
        text = str(error)
        if FORM.match(text) or is_of_others(error) or calls_builtin(function, args, keywords):
            return None
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/gpuflow/" in f.filename]
        names = [f"{f.filename.rpartition('/gpuflow/')[2]}:{f.lineno}" for f in frames[::-1]]
        return {"kind": type(error).__name__, "text": text[:300], "path": " < ".join(names[:6])}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gf.set_mesh(None)
    return None


def is_of_others(error: BaseException) -> bool:
    """Whether a callback failed or was called with other arguments than it takes, or a file."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return isinstance(error, OSError) or last.filename in CALLBACK_FILES or "_none()" in str(error)


def calls_builtin(function: Any, args: list[Any], keywords: dict[str, Any]) -> bool:
    """Whether a callback is not a Python function: its errors cannot be told from ours."""
    signature = inspect.signature(function)
    given = signature.bind(*args, **keywords).arguments
    return any(
        callable(value) and not isinstance(value, FunctionType)
        for name, value in given.items()
        if re.search("Callable|Function|IsLeaf", str(signature.parameters[name].annotation))
    )


def main(seed: str, first: int, last: int, wanted: str) -> None:
    """Make calls and report."""
    signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    functions = calls.functions()
    bases: dict[str, Any] = {}
    report = sys.stdout
    for number in range(first, last):
        draw = random.Random(f"{seed} {number}")
        name, function = draw.choice(functions)
        if wanted not in name:
            continue
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            if name not in bases:
                with gf.disable_jit():
                    bases[name] = list(calls.calls_in_examples(function))
            made = calls.make_call(function, bases[name], draw)
            if made is None:
                continue
            args, keywords, text = made
            print(f"> {number} {name}({text})", file=report, flush=True)
            wrong = outcome(function, args, keywords)
        if wrong is not None:
            line = {"number": number, "call": f"{name}({text})", **wrong}
            print(json.dumps(line), file=report, flush=True)
    print("done", file=report, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
