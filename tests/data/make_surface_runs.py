"""Writes surface_runs.json: what JAX gives where it computes, and not only traces, a call.

surface_dtypes.json holds what JAX says while tracing. Some of that it cannot compile afterwards
(factorizations of 16-bit floats, order of complex numbers), and some calls it refuses only where
it traces them. So the rows of surface_dtypes_differ.txt run once more, without tracing; what
differs then is kept, beside what was kept before. Run by hand under an installed JAX 0.10, after
``python tests/surface_settings/test_surface_dtypes.py``: python tests/data/make_surface_runs.py
"""

import json
import subprocess
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from surface_dtype_cases import (  # noqa: E402
    REFUSED,
    SETTINGS,
    constants,
    names_of,
    operands,
    outcome,
)


def worker():
    """Reads rows, and writes what each gives; JAX may end this process by an error of its own."""
    import jax
    import jax.example_libraries.stax
    import jax.experimental.ode
    import jax.scipy.cluster.vq
    import jax.scipy.sparse.linalg
    import jax.scipy.spatial.transform

    warnings.simplefilter("ignore")
    for line in sys.stdin:
        label, expression, kinds = json.loads(line)
        with ExitStack() as stack:
            for name, value in SETTINGS[label].items():
                stack.enter_context(getattr(jax, name)(value))
            names = names_of(expression)
            types = tuple(kinds.split(", ")) if names else ()
            values = {**constants(jax), **operands(jax.numpy.asarray, names, types)}
            print(json.dumps(outcome(jax, expression, values, False)), flush=True)


class Workers:
    """A process that runs rows; another one where JAX ended it."""

    def __init__(self):
        self.process = None

    def run(self, row):
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "worker"],
                stdin=subprocess.PIPE,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        self.process.stdin.write(json.dumps(row) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer:
            return json.loads(answer)
        self.process.wait()
        self.process = None
        return REFUSED


def main():
    target = FOLDER / "surface_runs.json"
    stored = json.loads((FOLDER / "surface_dtypes.json").read_text())["calls"]
    results_by_label = json.loads(target.read_text()) if target.exists() else {}
    lines = (FOLDER / "surface_dtypes_differ.txt").read_text().splitlines()
    workers = Workers()
    rows = [line for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(rows):
        label, expression, kinds, _, traced = line.split(" | ")
        results = results_by_label.setdefault(label, {}).setdefault(expression, {})
        if stored[expression][0] and kinds not in results:
            result = workers.run((label, expression, kinds))
            if result != traced.removeprefix("JAX "):
                results[kinds] = result
        if number % 100 == 99:
            print(number, flush=True)
    kept = {
        label: {expression: rows for expression, rows in results.items() if rows}
        for label, results in results_by_label.items()
    }
    text = json.dumps(kept, separators=(",", ":"), ensure_ascii=False)
    target.write_text(text.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
