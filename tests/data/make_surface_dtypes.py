"""Writes surface_dtypes.json: the types of results of public functions by an installed JAX 0.10.

The calls are those of surface_calls.txt, and for each public function those among ``FORMS`` that
JAX takes. Run by hand: python tests/data/make_surface_dtypes.py (half an hour); with calls as
arguments, those alone are asked for anew. The tests need no JAX.
"""

import inspect
import json
import multiprocessing
import sys
import types
import warnings
from contextlib import ExitStack
from pathlib import Path

import jax
import jax.example_libraries.stax
import jax.experimental.ode
import jax.image
import jax.scipy as scipy
import jax.scipy.cluster.vq
import jax.scipy.optimize
import jax.scipy.sparse.linalg
import jax.scipy.spatial.transform

sys.path.insert(0, str(Path(__file__).parents[1]))
from surface_dtype_cases import (
    REFUSED,
    SETTINGS,
    constants,
    names_of,
    operand_types,
    operands,
    outcome,
    outcomes,
)

FOLDER = Path(__file__).parent
# All of random and of distributions, and most of linear algebra, stand in surface_calls.txt.
MODULES = (
    "jax.numpy",
    "jax.numpy.linalg",
    "jax.numpy.fft",
    "jax.lax",
    "jax.nn",
    "jax.scipy.special",
)
# The first of each row that JAX takes is kept.
FORMS = (
    ("f(a)", "f(x)", "f(m)", "f(w)"),
    ("f(a, b)", "f(x, y)", "f(m, n)", "f(m, y)"),
    ("f(a, b, c)", "f(x, x, y)"),
)
LEFT_OUT = {
    "jax.numpy.save",
    "jax.numpy.savez",
    "jax.numpy.load",
    "jax.numpy.fromfile",
    "jax.numpy.get_printoptions",
    "jax.numpy.set_printoptions",
    "jax.numpy.printoptions",
    "jax.lax.tie_in",
    "jax.lax.create_token",
    "jax.lax.composite",
    "jax.lax.dce_sink",
}


def functions():
    """The public functions, by the texts that name them."""
    by_path = {}
    for module_name in MODULES:
        module = eval(module_name)
        for name in sorted(dir(module)):
            value = getattr(module, name)
            path = f"{module_name}.{name}"
            if name.startswith("_") or path in LEFT_OUT or name.endswith("_p"):
                continue
            if module is scipy.stats and isinstance(value, types.ModuleType):
                by_path.update(
                    {
                        f"{path}.{own}": getattr(value, own)
                        for own in sorted(dir(value))
                        if not own.startswith("_")
                    }
                )
            elif callable(value) and not (isinstance(value, type) and inspect.isclass(value)):
                by_path[path] = value
    return {path: value for path, value in by_path.items() if callable(value)}


def is_taken(expression):
    """Whether JAX makes arrays of operands of some dtype, without looking at their values."""
    names = names_of(expression)
    for dtype in ("float32", "int32"):
        values = operands(jax.numpy.asarray, names, (dtype,) * len(names))
        text = outcome(jax, expression, {**constants(jax), **values}, True)
        if any(kind in text for kind in ("float", "int", "bool", "complex", "key")):
            return True
    return False


def calls():
    lines = (FOLDER / "surface_calls.txt").read_text().splitlines()
    expressions = [line for line in lines if line and not line.startswith("# ")]
    for path in functions():
        for row in FORMS:
            forms = [form.replace("f(", f"{path}(", 1) for form in row]
            expressions += [form for form in forms if is_taken(form)][:1]
    return list(dict.fromkeys(expressions))


def can_be_traced(expression):
    """Whether JAX tells the types while tracing, where nothing is computed."""
    names = names_of(expression)
    for types_ in operand_types(names, True):
        values = {**constants(jax), **operands(jax.numpy.asarray, names, types_)}
        if outcome(jax, expression, values, True) != REFUSED:
            return True
    return False


def start():
    warnings.simplefilter("ignore")
    jax.config.update("jax_traceback_filtering", "off")


def results(expression):
    """What JAX gives under each of the settings."""
    is_traced = can_be_traced(expression)
    own = [is_traced]
    for label, settings in SETTINGS.items():
        with ExitStack() as stack:
            for name, value in settings.items():
                stack.enter_context(getattr(jax, name)(value))
            own.append(list(outcomes(jax, expression, is_traced, "strict" in label)))
    return own


def read():
    """What is stored: the legend, the rows and the calls, the first two by their texts."""
    data = json.loads((FOLDER / "surface_dtypes.json").read_text())
    legend, rows = ({text: k for k, text in enumerate(data[own])} for own in ("legend", "rows"))
    return legend, rows, data["calls"]


def main():
    start()
    expressions = sys.argv[1:]
    legend, rows, stored = read() if expressions else ({}, {}, {})
    expressions = expressions or calls()
    print(len(expressions), "calls", flush=True)
    with multiprocessing.get_context("spawn").Pool(2, start) as pool:
        found = pool.imap(results, expressions, chunksize=8)
        for number, (expression, (is_traced, *lists)) in enumerate(zip(expressions, found)):
            texts = [
                "".join(chr(0x23 + legend.setdefault(t, len(legend))) for t in own) for own in lists
            ]
            stored[expression] = [is_traced, *(rows.setdefault(t, len(rows)) for t in texts)]
            if number % 100 == 99:
                print(number, len(rows), len(legend), flush=True)
                write(legend, rows, stored)
    write(legend, rows, stored)


def write(legend, rows, stored):
    data = {"jax": jax.__version__, "legend": list(legend), "rows": list(rows), "calls": stored}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    text = text.replace('],"', '],\n"').replace('","', '",\n"')
    (FOLDER / "surface_dtypes.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
