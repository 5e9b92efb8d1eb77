"""The table of gpuflow.as_jax: a row for each module of JAX that is not gpuflow's of its name."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from gpuflow.as_jax import surfaces
from gpuflow.as_jax.surfaces import REASONS, TABLE, module_of, target_of
from gpuflow.base.dtypes import ExtendedDType

TEXT = (Path(surfaces.__file__).with_name("table.txt")).read_text(encoding="utf-8")
MADE = [name for name, row in TABLE.items() if row.same is None]
# Its objects are those of tensorstore, which tests do not need.
NEEDS_A_PACKAGE = "TS_CONTEXT"


def run(code):
    install = "import gpuflow.as_jax; gpuflow.as_jax.install()\n"
    done = subprocess.run([sys.executable, "-c", install + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", TABLE)
def test_every_row_is_a_module_with_its_names(name):
    module = module_of(name)
    assert isinstance(module, types.ModuleType) and module.__doc__
    same = TABLE[name].same
    if same is None:
        assert module.__name__ == name and module.__spec__.name == name
        missing = object()
        for one in dir(module):
            if one != NEEDS_A_PACKAGE:
                assert getattr(module, one, missing) is not missing, one
    else:
        assert module is (module_of(same) if same in TABLE else importlib.import_module(same))


def test_the_table_has_each_name_once_and_in_order():
    rows = re.findall(r"^(?!reason|#)(\S+)", TEXT, re.MULTILINE)
    assert rows == sorted({*rows}) == list(TABLE)
    text = TEXT.replace("\n        ", " ")
    for line in re.findall(r"^    (?!#|removed)\S.*: (.*)", text, re.MULTILINE):
        assert line.split() == sorted({*line.split()}), line
    for module, row in TABLE.items():
        assert not {*row.origins} & {*row.refused}, module
        parent = module.rpartition(".")[0]
        assert not parent or target_of(parent) is not None, module
    assert {*REASONS} == {*re.findall(r"^    refused (\w+):", TEXT, re.MULTILINE)}


def test_refused_names_say_why():
    refused = [
        (module, name, TABLE[module].refused[name])
        for module in MADE
        for name in TABLE[module].refused
    ]
    assert len(refused) > 140
    for module, name, reason in refused:
        value = getattr(module_of(module), name)
        assert value is getattr(module_of(module), name) and value.is_absent
        assert not isinstance(3, value) and (value | None) is not None
        assert value.__module__ == module and value.__name__ == name
        with pytest.raises(NotImplementedError) as error:
            value(1, two=2)
        assert str(error.value) == f"[{module}.{name}] {reason}"


def test_targets():
    code = "gpuflow.as_jax.internals"
    for name, ours in {
        "jax": "jax",
        "jax.numpy.linalg": "gpuflow.numpy.linalg",
        "jax.core": f"{code}.core",
        "jax._src.core": f"{code}.core",
        "jax._src.interpreters.ad": f"{code}.ad",
        "jax._src.lib.xla_client": "jaxlib.xla_client",
        "jax._src.nothing": None,
        "jax.extend.nothing": None,
        "numpy": None,
    }.items():
        assert target_of(name) == ours, name
    assert module_of("jax._src.nothing") is module_of("jax.nothing") is module_of("numpy") is None


def test_names_of_whole_modules():
    lax = module_of("jax._src.lax.lax")
    assert "sin" in dir(lax) and lax.sin is importlib.import_module("gpuflow.lax").sin
    assert "_publish" not in dir(lax) and not hasattr(lax, "_publish")
    dtypes = module_of("jax._src.dtypes")
    assert dtypes.ExtendedDType is ExtendedDType and {"DType", "finfo"} < {*dtypes.__all__}


def test_names_are_imported_when_they_are_asked_for():
    out = run(
        """
import sys
import jax, jax._src.state.types, jax.experimental.array_serialization, jax.extend.core
names = ("core", "tensorstore_impl", "primitives", "hijax")
print([name for name in names if f"gpuflow.as_jax.internals.{name}" in sys.modules])
print(jax.extend.core.Jaxpr.__name__, "gpuflow.as_jax.internals.core" in sys.modules)
"""
    )
    assert out.split("\n")[:2] == ["[]", "Jaxpr True"]


def test_ways_to_import():
    run(
        """
import importlib, importlib.util, sys
import jax._src.tree_util as tree_util
import jax.experimental.pallas.ops.tpu.splash_attention as splash
from jax._src import ad_util, tree_util as again
from jax._src.ad_util import Zero
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import *
from jax.interpreters.ad import Zero as zero
assert tree_util is again is sys.modules["jax._src.tree_util"]
assert ad_util.Zero is Zero is zero and Jaxpr is gpuflow.core.jaxpr.Jaxpr
assert pallas.tpu is pltpu and splash.BlockSizes is pallas.ops.tpu.splash_attention.BlockSizes
assert primitives.sin_p.name == "sin"  # a submodule, of jax.extend.core
for name in ("jax", "jax._src", "jax._src.tree_util", "jax.experimental.pallas.tpu", "jax.core"):
    assert importlib.util.find_spec(name) is not None, name
import jax
assert importlib.import_module("jax._src.state").AbstractRef is jax._src.state.types.AbstractRef
assert importlib.reload(jax) is jax and jax.__version__ == jax.version.__version__
assert jax.__spec__.name == "jax" and jax.__path__ == []
star = {}
exec("from jax import *", star)
assert star["jit"] is jax.jit and "tree_map" not in star
"""
    )


def test_classes_are_pickled():
    out = run(
        """
import pickle
import jax.extend.core, jax.experimental.pallas, jax._src.tree_util, jax._src.mesh
classes = (jax.extend.core.Jaxpr, jax._src.tree_util.SequenceKey, jax._src.mesh.AxisType.Auto,
           jax.experimental.pallas.BlockSpec, jax.extend.core.JaxprTypeError)
assert pickle.loads(pickle.dumps(classes)) == classes
print("same")
"""
    )
    assert out == "same\n"
    key = module_of("jax._src.tree_util").SequenceKey(3)
    assert pickle.loads(pickle.dumps(key)) == key


def test_installing_twice_changes_nothing():
    run(
        """
from gpuflow import Array
gpuflow.as_jax.install()
assert Array.__module__ == "jax"
gpuflow.as_jax.uninstall()
assert Array.__module__.startswith("gpuflow.")
gpuflow.as_jax.install()
import jax, jax.extend
assert jax.extend.core.Jaxpr is not None and Array.__module__ == "jax"
"""
    )
