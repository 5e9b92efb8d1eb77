"""Results of JAX for the cases of tests/awkward: ``python make_awkward_values.py 700``.

Run under JAX 0.10.2 on a CPU, without gpuflow. What JAX refuses is left out; programs that are
what they were keep their results.
"""

import json
import lzma
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import jax  # noqa: E402
import jax.numpy  # noqa: E402
from awkward.cases import (  # noqa: E402
    check_type,
    digest,
    function_of,
    make_case,
    operands,
    sample,
    source_digest,
)
from awkward.writer import EXACT  # noqa: E402

FILE = HERE / "awkward_values.json.xz"


def result_of(number: int, before: list) -> list:
    """A digest for each exact result, some elements of each other one."""
    case = make_case(number)
    if before[:1] == [source_digest(case)]:
        return before
    outs = function_of(case, jax)(*operands(case))
    for out, value in zip(outs, case.results):
        check_type(out, value, str(number))
    return [source_digest(case)] + [
        digest(out, value.grade) if value.grade >= EXACT else sample(out)
        for out, value in zip(outs, case.results)
    ]


def main() -> None:
    count, results, refused = int(sys.argv[1]), {}, {}
    before = json.loads(lzma.decompress(FILE.read_bytes()))["results"] if FILE.exists() else {}
    for number in range(count):
        if number % 50 == 0:
            jax.clear_caches()  # gigabytes else
        try:
            results[number] = result_of(number, before.get(str(number), []))
        except Exception as error:
            refused[number] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(number, refused[number][:150], flush=True)
    stored = {"jax": jax.__version__, "count": count, "results": results}
    text = json.dumps(stored, separators=(",", ":")).encode()
    FILE.write_bytes(lzma.compress(text))
    print(len(results), "stored,", len(refused), "refused")


warnings.simplefilter("ignore")
main()
