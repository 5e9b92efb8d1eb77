"""docs/missing_rules.md lists exactly the rules that primitives lack."""

import importlib
import pkgutil
import re
from pathlib import Path

import gpuflow.ops
from gpuflow.core.lowering import Lowering
from gpuflow.core.primitive import registry

DOCUMENT = Path(__file__).parents[2] / "docs" / "missing_rules.md"
RULES = {
    "jvp": lambda primitive: primitive.derivatives.jvp,
    "batch": lambda primitive: primitive.batch,
    "lower": lambda primitive: primitive.lower,
}


def test_the_table_is_the_registry():
    # Some are registered where they are first needed.
    for module in pkgutil.walk_packages(gpuflow.ops.__path__, "gpuflow.ops."):
        importlib.import_module(module.name)
    text = DOCUMENT.read_text(encoding="utf-8").split("## Derivatives")[0]
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    documented = {(name, rule) for name, rule, why in rows if rule in RULES and why.strip()}
    missing = {
        (name, rule)
        for name, primitive in registry().items()
        for rule, of in RULES.items()
        if of(primitive) is None or type(of(primitive)) is Lowering
    }
    assert documented == missing
