"""Names and keywords of NumPy, PyTorch and JAX: what is said where they are something else here."""

import importlib
import importlib.util
import re
import tomllib
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn, random
from gpuflow.base import other_names, tracebacks

MODULES = {"gpuflow": gf, "numpy": jnp, "nn": nn, "lax": lax, "random": random}


CLASSES = {"array": jnp.ones(2), "Device": gf.devices()[0]}


@pytest.mark.parametrize("where", [*MODULES, *CLASSES, "="])
def test_the_table_holds_names_that_do_not_exist_and_says_what_does(where):
    rows = {name: text for (place, name), text in other_names._table().items() if place == where}
    assert rows
    for name, text in rows.items():
        if where in MODULES:
            assert not hasattr(MODULES[where], name), name
        elif where in CLASSES:
            assert not hasattr(CLASSES[where], name), name
        for module, attribute in re.findall(r"\b(jnp|lax|gpuflow\.[a-z]+)\.(\w+)", text):
            owner = {"jnp": jnp, "lax": lax}.get(module) or importlib.import_module(module)
            assert hasattr(owner, attribute), (name, text)


@pytest.mark.parametrize(
    ("module", "name", "part"),
    [
        (jnp, "cat", "jnp.concatenate"),
        (jnp, "random", "gpuflow.random"),
        (gf, "tensor", "asarray"),
        (nn, "Linear", "flax"),
        (jnp, "softmax", "gpuflow.nn"),
        (jnp, "zzzz", r"dir\(jnp\) lists"),
        (jnp, "expp", "use jnp.exp"),
        (lax, "softplus", r"use nn\.softplus"),
        (gf, "vmapp", "use gpuflow.vmap"),
        (jnp, "arcsinn", r"use jnp\.arcsin"),
    ],
)
def test_unknown_names(module, name, part):
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    text = str(caught.value)
    assert re.search(rf"got '{name}'\. Fix: .*{part}", text)
    assert len(text) < 300 and text.count(" or ") <= 4
    shown_text = "".join(traceback.format_exception_only(caught.value))
    assert "Did you mean" not in shown_text  # Python's guess ended the line of "asarray" too


def shown(call):
    """What is printed of the error of a call."""
    with pytest.raises((TypeError, AttributeError)) as caught:
        call()
    error = caught.value
    with tracebacks.without_own_frames(error):
        text = "".join(traceback.format_exception(error))
    assert not hasattr(error, "__notes__")
    return text


X = jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: jnp.sum(X, dim=0), "Fix: in gpuflow, use axis instead of dim=."),
        (lambda: X.sum(dim=0), "Fix: in gpuflow, use axis instead of dim=."),
        (lambda: nn.softmax(X, dim=-1), "Fix: in gpuflow, use axis instead of dim=."),
        (lambda: jnp.mean(X, axis=0, keepdim=True), "use keepdims instead of keepdim=."),
        (lambda: X.unsqueeze(0), "Fix: in gpuflow, use x[:, None], or"),
        (lambda: gf.jit(lambda x: x.permute(1, 0))(X), "Fix: in gpuflow, use x.transpose(1, 0)."),
        (lambda: X.add_(1), "arrays are immutable"),
        (
            lambda: jnp.sum(X, requires_grad=True),
            "Fix: in gpuflow, leave it out: gpuflow.grad takes",
        ),
        (lambda: jnp.split(X), "Fix: jnp.split(ary, indices_or_sections, axis=0)."),
        (lambda: jnp.zeros(2, 3, 4), "Fix: jnp.zeros(shape, dtype=None, *, device=None, "),
        (
            lambda: jnp.concatenate(X, X, axis=0),
            "Fix: jnp.concatenate(arrays, axis=0, dtype=None).",
        ),
        (lambda: random.randint(0, 1, (3,)), "Fix: random.randint(key, shape, minval, maxval, "),
        (lambda: X.device_buffer, "Fix: in gpuflow, use x.addressable_data(0)."),
        (lambda: gf.devices()[0].live_buffers(), "in gpuflow, use gpuflow.live_arrays()."),
        (lambda: X.aval.weak_typ, "Fix: .weak_type."),
        (lambda: gf.jit(lambda x: x.revel())(X), "Fix: .ravel"),
        (lambda: gf.make_jaxpr(jnp.sin)(X).jaxpr.eqs, "Fix: .eqns."),
        (lambda: gf.jit(jnp.sin).lower(X).compil(), "Fix: .compile."),
    ],
)
def test_keywords_and_methods(call, part):
    assert part in shown(call).splitlines()[-1]


def test_pytest_shows_them_too():
    """By a plugin that an installation brings: what is shown of a failed test ends with it."""
    path = Path(__file__).resolve().parents[2] / "gpuflow_pytest.py"
    spec = importlib.util.spec_from_file_location("gpuflow_pytest", path)
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    for call, part in ((lambda: X.sum(dim=0), "Fix: in gpuflow, use"), (lambda: X.nothing, "")):
        with pytest.raises((TypeError, AttributeError)) as caught:
            call()
        for _ in range(2):  # a report may be made again
            plugin.pytest_runtest_makereport(SimpleNamespace(excinfo=caught))
        text = str(caught.getrepr(style="short"))
        assert part in text and text.count("\nE   Fix: ") == (part != "")
    plugin.pytest_runtest_makereport(SimpleNamespace(excinfo=None))
    settings = tomllib.loads((path.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["entry-points"]["pytest11"] == {"gpuflow": "gpuflow_pytest"}
    assert 'py_modules=["gpuflow_pytest"]' in (path.parent / "setup.py").read_text(encoding="utf-8")


def test_others_are_not_told():
    def summed(x):
        return x

    def split(x):  # has the name of one of ours
        return x

    no_arguments = []
    calls = (lambda: summed(X, dim=0), lambda: X.nothing, lambda: jnp.sum(X, foo=1))
    for call in (*calls, lambda: split(*no_arguments)):
        assert "Fix" not in shown(call)
    assert other_names.note(ValueError("sum() got an unexpected keyword argument 'dim'")) is None
    error = TypeError("wrong")
    error.add_note("mine")
    with tracebacks.without_own_frames(error):
        assert error.__notes__ == ["mine"]
