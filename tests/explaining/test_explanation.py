"""What gf.explain returns: its table, its records, what is folded, and times."""

from __future__ import annotations

import doctest
import io

import numpy as np
import pytest
import rich.console

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, profiler
from gpuflow.base.tables import Table, scaled
from gpuflow.explaining import explanation
from gpuflow.explaining.costs import Ceilings, share_text, step_costs

X = np.random.default_rng(0).normal(size=(256, 128)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(128, 128)).astype(np.float32)


def layer(x, w):
    h = jnp.tanh(x @ w)
    return h - h.mean(0), jnp.sort(h, 1)


def many(x):
    for _ in range(15):
        x = jnp.sort(x, 1) @ W
    return x


def test_it_begins_with_a_table():
    found = gf.explain(layer, X, W)
    head, table, *paragraphs = str(found).split("\n\n")
    assert head.startswith("layer: ") and found.text.startswith(head)
    title, columns, *rows = table.splitlines()
    count = len(found.steps)
    assert title == f"{count} steps, longest first; times predicted, measure=True measures"
    assert columns.split() == ["step", "predicted", "share", "bytes", "FLOP", "line"]
    assert len(rows) == len(found.steps) == len(paragraphs)
    assert "\n\n".join([head, *paragraphs]) == found.text
    assert repr(found) == str(found)
    assert any(row.endswith("(layer)") and "test_explanation.py:" in row for row in rows)


def test_more_steps_are_folded():
    found = gf.explain(many, X, top=4)
    text = str(found)
    assert len(found.steps) == 30 and "4 of 30 steps, longest first" in text
    assert text.endswith("... and 26 steps more, in .text and .to_html(path)")
    assert len(text.splitlines()) < len(found.text.splitlines()) / 3
    assert [line for line in text.splitlines() if line[:1].isdigit()]
    everything = gf.explain(many, X, top=None)
    assert str(everything).endswith(everything.text.partition("\n\n")[2])


@pytest.mark.usefixtures("loops_of_steps")
def test_long_paragraphs_are_folded():
    found = gf.explain(lambda x: lax.scan(lambda c, r: (many(c), r.sum()), x, x), X)
    assert "lines more, in .text" in str(found) and "lines more" not in found.text


def test_records_say_what_steps_cost():
    found = gf.explain(layer, X, W)
    by_kind = {step.kind: step for step in found.steps}
    product = next(step for step in found.steps if step.name == "dot_general")
    assert product.flops == 2 * 256 * 128 * 128
    assert product.bytes == X.nbytes + W.nbytes + X.nbytes
    assert product.line.function == "layer" and product.line.file == __file__
    assert sum(step.share for step in found.steps) == pytest.approx(1)
    assert [step.number for step in found.steps] == list(range(1, len(found.steps) + 1))
    assert not found.is_measured and by_kind["kernel"].bytes_per_second is None


def test_predictions_follow_from_ceilings():
    """The longer of two times: this is the reference, written once more."""
    plan = gf.jit(layer).lower(X, W).compile()._compiled.plan
    ceilings = Ceilings(1e9, 1e10)
    for cost in step_costs(plan, None, ceilings):
        assert cost.seconds == pytest.approx(max(cost.bytes / 1e9, cost.flops / 1e10))
        assert cost.copy_share is None and cost.flops_per_second is None
    measured = step_costs(plan, [2e-3] * len(plan.steps), ceilings)
    assert all(cost.share == pytest.approx(1 / len(measured)) for cost in measured)
    assert measured[0].bytes_per_second == measured[0].bytes / 2e-3
    assert measured[0].copy_share == pytest.approx(measured[0].bytes / 2e-3 / 1e9)


@pytest.mark.usefixtures("loops_of_steps")
def test_a_scan_is_predicted_to_take_its_turns():
    def seconds(length):
        f = lambda x: lax.scan(lambda c, r: (jnp.sort(c + r), None), x[0], x)[0]  # noqa: E731
        (step,) = gf.explain(f, gf.ShapeDtypeStruct((length, 64), np.float32)).steps
        return step.seconds

    assert seconds(100) == pytest.approx(10 * seconds(10))


def test_times_are_measured_where_that_is_asked():
    calls = []

    def f(x, w):
        gf.debug.callback(lambda: calls.append(1))
        return jnp.sort(x @ w, 1)

    found = gf.explain(f, gf.ShapeDtypeStruct(X.shape, X.dtype), W, measure=True)
    assert found.is_measured and len(calls) >= 2
    assert {"GB/s", "of", "copy"} <= set(str(found.table).splitlines()[1].split())
    sort = next(step for step in found.steps if step.name == "sort")
    # A sort of 32768 numbers moves them a few times: it takes microseconds and less than a second.
    assert 1e-6 < sort.seconds < 1
    assert sort.bytes_per_second == sort.bytes / sort.seconds
    calls.clear()
    gf.explain(f, X, W)
    assert not calls


@pytest.mark.usefixtures("loops_of_steps")
def test_steps_inside_of_loops_that_python_drives_are_not_steps():
    def body(carry, row):
        carry = gf.pure_callback(lambda v: np.asarray(v) / 2, carry, carry)
        return jnp.tanh(carry + row), None

    found = gf.explain(lambda x: lax.scan(body, x[0], x)[0] * 2, X, measure=True)
    assert len(found.steps) == len([p for p in found.text.splitlines() if p[:1].isdigit()])


def test_donated_arguments_survive_a_measurement():
    x = jnp.asarray(X)
    step = gf.jit(lambda x: x * 2 + 1, donate_argnums=0)
    assert gf.explain(step, x, measure=True).is_measured
    np.testing.assert_array_equal(x, X)


def test_what_cannot_be_measured(tmp_path):
    ref = gf.new_ref(jnp.zeros(3))

    def f(x):
        ref[...] += x

    with pytest.raises(ValueError, match=r"operands of f must be arrays; got refs"):
        gf.explain(f, 1.0, measure=True)
    assert np.asarray(ref[...]).tolist() == [0, 0, 0]
    with profiler.trace(tmp_path), pytest.raises(RuntimeError, match=r"one can be taken at a time"):
        gf.explain(layer, X, W, measure=True)


def test_memory_is_what_lives_while_a_step_runs():
    found = gf.explain(lambda x: jnp.sort(jnp.sort(x, 1) @ W, 1), X)
    assert [step.name for step in found.steps] == ["sort", "dot_general", "sort"]
    # The first sort's result, then the product's beside it; then that beside the result.
    assert found.memory == (X.nbytes, 2 * X.nbytes, 2 * X.nbytes)
    donated = gf.jit(lambda x: x + 1, donate_argnums=0)
    assert gf.explain(donated, X).memory == (0,)


def test_a_stage_is_a_text():
    found = gf.explain(layer, X, W, stage="groups")
    assert str(found) == found.text == gf.jit(layer).lower(X, W).compile().explain("groups")
    assert found.steps == () and found.memory == ()
    assert str(gf.explain(lambda: None)).startswith("<lambda>: nothing to compute")


def test_rich_and_notebooks_show_the_table():
    found = gf.explain(layer, X, W)
    out = io.StringIO()
    rich.console.Console(file=out, width=160).print(found)
    assert "dot_general" in out.getvalue() and "━" in out.getvalue()
    assert found._repr_html_().count("<tr>") == len(found.steps) + 1
    assert "<details>" in found._repr_html_()
    name = "<script>alert(1)</script>"
    layer_named = lambda x: x + 1  # noqa: E731
    layer_named.__name__ = name
    assert name not in gf.explain(layer_named, X)._repr_html_()


def test_rich_wraps_lines():
    found = gf.explain(layer, X, W)
    out = io.StringIO()
    rich.console.Console(file=out, width=70).print(found)
    assert max(map(len, out.getvalue().splitlines())) <= 70
    shown = "".join(out.getvalue().split())  # long paths are broken anywhere
    for line in found.text.splitlines():
        assert "".join(line.split()) in shown


def test_steps_faster_than_memory_are_cached():
    assert [share_text(share) for share in (0.25, 1.0, 1.04, 11)] == [
        "25%",
        "100%",
        "cached",
        "cached",
    ]
    table = gf.explain(layer, X, W, measure=True).table
    shares = [row[5] for row in table.rows]
    assert all(share == "cached" or float(share.rstrip("%")) <= 100 for share in shares)


def test_tables():
    table = Table("sizes", ("name", "n"), (("a", "1"), ("[bold]", "12")))
    assert str(table) == "sizes\nname     n\na        1\n[bold]  12"
    out = io.StringIO()
    rich.console.Console(file=out, width=80).print(table)
    assert "[bold]" in out.getvalue()
    assert "<td" in Table("", ("<b>",), (("&",),)).html()
    assert "&lt;b&gt;" in Table("", ("<b>",), ()).html()
    assert [scaled(n, "B") for n in (0, 999, 1234567)] == ["0 B", "999 B", "1.23 MB"]
    assert [scaled(n, "B") for n in (999_999, 3e16, 2e20)] == ["1 MB", "30 PB", "200 EB"]


def test_examples_of_docstrings():
    names = {"gf": gf, "jnp": jnp}
    for owner in (gf.explain, explanation.Explanation.to_html):
        (test,) = doctest.DocTestFinder(recurse=False).find(owner, "example", globs=dict(names))
        assert test.examples
        assert not doctest.DocTestRunner().run(test).failed
