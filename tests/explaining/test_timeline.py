"""Timelines of small plans, compared with times added up by hand."""

import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.explaining.costs import TopologyRates
from gpuflow.explaining.timeline import timeline_picture
from gpuflow.sharding import AbstractMesh

MESH = AbstractMesh((8,), ("x",))
SLOW_LINKS = gf.Topology(nvlink=1e9, latency=0.0)


def explained(function, *args, **options):
    structs = [gf.ShapeDtypeStruct(shape, jnp.float32, sharding=spec) for shape, spec in args]
    return gf.explain(function, *structs, mesh=MESH, **options)


def test_collectives_make_computation_wait():
    found = explained(lambda x: jnp.sin(lax.sort(jnp.cos(x), dimension=0)), ((64, 8), P("x")))
    timeline, rates = found.timeline, TopologyRates(found.topology)
    plan = found._subject.plan
    each = [rates.step_seconds(plan, step) for step in plan.steps]
    assert timeline.seconds == pytest.approx(sum(each))
    assert timeline.exposed_seconds == pytest.approx(timeline.communication)
    assert timeline.communication == pytest.approx(sum(c.seconds for c in found.collectives))
    starts = [event.start for event in timeline.events]
    assert starts == sorted(starts) and len(starts) == timeline.launches == len(plan.steps)


def layers(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def test_sums_overlap_with_the_backward_pass():
    n = 512
    ws = [gf.ShapeDtypeStruct((n, n), jnp.float32, sharding=P())] * 4
    x = gf.ShapeDtypeStruct((8 * n, n), jnp.float32, sharding=P("x"))
    slow = gf.Topology(float32_flops=1e12, memory_bandwidth=1e12, nvlink=1e10, latency=0.0)
    found = gf.explain(gf.grad(layers), ws, x, mesh=MESH, topology=slow)
    assert any(c.is_async for c in found.collectives)
    timeline = found.timeline
    assert timeline.exposed_seconds < 0.9 * timeline.communication
    assert timeline.bound <= timeline.seconds <= timeline.computation + timeline.communication
    assert found.seconds == timeline.seconds


@pytest.mark.parametrize("trips", [2, 3, 4, 50])
def test_loops_take_as_long_as_their_iterations(trips):
    def f(w, x):
        return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=trips)[0]

    found = explained(f, ((64, 64), P("x")), ((64, 64), P(None, "x")), topology=SLOW_LINKS)
    inside = [c for c in found.collectives if c.times == trips]
    assert inside
    sent = sum(c.seconds * c.times for c in found.collectives)
    assert found.timeline.communication == pytest.approx(sent)
    assert found.timeline.seconds == pytest.approx(sent + found.timeline.computation)
    assert found.timeline.seconds == pytest.approx(sum(step.seconds for step in found.steps))


def test_one_branch_runs():
    def f(x):
        return lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: lax.sort(x, dimension=0), x)

    found = explained(f, ((64, 8), P("x")))
    assert found.timeline.seconds == pytest.approx(sum(step.seconds for step in found.steps))


def test_the_picture_has_a_bar_for_each_event():
    timeline = explained(lambda x: lax.sort(x, dimension=0), ((64, 8), P("x"))).timeline
    picture = timeline_picture(timeline)
    assert picture.count("<rect") == len(timeline.events)
    assert picture.count('class="communication"') == sum(
        event.is_communication for event in timeline.events
    )
    assert "exposed" in str(timeline)


def test_a_program_without_steps():
    timeline = explained(lambda x: x, ((64, 8), P("x"))).timeline
    assert (timeline.seconds, timeline.exposed_seconds, timeline.launches) == (0.0, 0.0, 0)
    assert "<svg" in timeline_picture(timeline)
