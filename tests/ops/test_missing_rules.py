"""docs/missing_rules.md lists exactly the rules that primitives lack."""

import re
from pathlib import Path

from gpuflow.core.primitive import registry

DOCUMENT = Path(__file__).parents[2] / "docs" / "missing_rules.md"
# Primitives that hold programs; they are registered when gpuflow is imported.
RULES = ("jvp", "batch", "lower")


def test_the_table_is_the_registry():
    text = DOCUMENT.read_text(encoding="utf-8").split("## Derivatives")[0]
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    documented = {(name, rule) for name, rule, why in rows if rule in RULES and why.strip()}
    missing = {
        (name, rule)
        for name, primitive in registry().items()
        for rule in RULES
        if getattr(primitive, rule) is None
    }
    assert documented == missing
