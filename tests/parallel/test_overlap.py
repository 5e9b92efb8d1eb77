"""Sums that run beside other work: how programs are taken apart, and the thread that does them."""

import threading
import time
import weakref

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base import recording
from gpuflow.base.garbage import collect_garbage
from gpuflow.compiler.passes.overlap import overlap_collectives
from gpuflow.core import communicator
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communicator import PROCESSES, Across, serving
from gpuflow.core.jaxpr import check_jaxpr
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.parallel.collectives.overlapped import OverlappedCommunicator, Worker

ACROSS = Across("i")
# More than what is joined with other sums, so that each sum is a call of its own.
X = np.random.default_rng(0).standard_normal((130, 130)).astype(np.float32) / 12


def total(x):
    return psum_p.bind(x, axes=(ACROSS,), axis_index_groups=None)


def backward(x):
    """Products, and the sum of each as soon as it is there."""
    first = x @ x
    second = first @ x
    sums = total(first.T), total(second)
    return sums[0] * 2, sums[1] + 1, total(second * 3)


def names(function):
    jaxpr, _ = trace_to_jaxpr(function, [ShapedArray((8, 8), np.dtype(np.float32))])
    overlapped = overlap_collectives(jaxpr)
    check_jaxpr(overlapped)
    return [eqn.primitive.name for eqn in overlapped.eqns], overlapped is jaxpr


def test_sums_begin_behind_their_operand_and_end_before_their_reader():
    order, _ = names(backward)
    begin, products = order.index("psum_begin"), [k for k, n in enumerate(order) if "dot" in n]
    # The transpose comes along; the other sums have no work left to run beside.
    assert products[0] < begin < products[1] and order[begin - 1] == "transpose"
    assert order.count("psum_begin") == 1 and order.count("psum") == 2
    assert order.index("psum_end") > products[1]
    assert order.index("optimization_barrier") == order.index("psum_end") + 1


def converted(x):
    """As jit over a mesh sums gradients: they are transposed and converted after their sum."""
    first, second = total(x @ x), total((x + 1) @ x)
    halved = first.T.astype(np.float16)
    return halved, (second.T / 4) * first.sum(), halved.T


def test_sums_end_before_what_computes_with_them_not_before_transposes():
    order, _ = names(converted)
    products = [k for k, name in enumerate(order) if "dot" in name]
    begin, end = order.index("psum_begin"), order.index("psum_end")
    assert products[0] < begin < products[1] < end and order.count("psum_begin") == 1
    # Its transposes wait for the end, and readers for both; the other sum's are where they were.
    assert order[end:].count("transpose") == 2 and order[:end].count("transpose") == 1
    assert order.index("convert_element_type") > end and order.index("reduce_sum") > end


def chained(x):
    """A sum of a sum, whose operand is there only when the first one has ended."""
    first = total(x @ x)
    beside = (x + 1) @ x
    second = total(first.T)
    return (beside @ x) + second, first.T


def test_a_sum_of_a_sum_begins_after_the_first_has_ended():
    """It began before, and read what was not there yet."""
    order, _ = names(chained)
    begins = [k for k, name in enumerate(order) if name == "psum_begin"]
    ends = [k for k, name in enumerate(order) if name == "psum_end"]
    assert begins[0] < ends[0] < begins[1] < ends[1]


def test_values_of_programs_whose_sums_are_converted():
    exact = X.astype(np.float64)
    first, second = 2 * exact @ exact, 2 * (exact + 1) @ exact
    expected = {
        converted: (first.T, second.T / 4 * first.sum(), first),
        chained: ((exact + 1) @ exact @ exact + 2 * first.T, first.T),
    }
    for program, values in expected.items():
        with serving(PROCESSES, OverlappedCommunicator(inner := Doubling(), True)):
            result = gf.jit(program)(jnp.asarray(X))
        assert "gpuflow-sums" in [name for _, name in inner.calls]
        for got, value in zip(result, values, strict=True):
            tolerance = 2**-10 if got.dtype == np.float16 else 1e-4  # of sums of 130 float32
            np.testing.assert_allclose(got, value, rtol=tolerance, atol=tolerance)


def test_programs_without_work_beside_are_left_alone():
    assert names(lambda x: [total(x) + 1]) == (["psum", "add"], False)
    assert names(lambda x: [x + 1])[1]


class Doubling:
    """A communicator of two ranks with equal data."""

    rank, size, name = 0, 2, "two"

    def __init__(self, error=None):
        self.calls, self.error = [], error

    def all_reduce(self, data, op, out=None):
        self.calls.append((data.shape, threading.current_thread().name))
        if self.error is not None:
            raise self.error
        out[...] = data * 2
        return out


@pytest.mark.parametrize("beside", [True, False])
def test_results_are_those_of_a_sum_at_once(beside):
    inner = Doubling()
    overlapped = OverlappedCommunicator(inner, beside)
    with serving(PROCESSES, overlapped):
        result = gf.jit(backward)(jnp.asarray(X))
    first = X @ X
    np.testing.assert_allclose(result[0], 4 * first.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result[1], 2 * (first @ X) + 1, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(result[2], 6 * (first @ X), rtol=1e-5, atol=1e-4)
    threads = [name for _, name in inner.calls]
    assert (threads[0] == "gpuflow-sums") == beside and "gpuflow-sums" not in threads[1:]
    overlapped.worker.stop()


def test_sums_show_in_the_profile(tmp_path):
    with serving(PROCESSES, OverlappedCommunicator(Doubling())):
        step = gf.jit(backward)
        step(jnp.asarray(X))
        gf.profiler.start_trace(str(tmp_path))
        try:
            step(jnp.asarray(X))
            events = list(recording.state.recording.events)
        finally:
            gf.profiler.stop_trace()
    (shown,) = [event for event in events if event.name == "all_reduce"]
    assert shown.row == "collectives" and shown.details["bytes"] == X.nbytes
    assert shown.thread != threading.get_ident()


def test_a_begun_sum_overlaps_the_steps_beside_it_in_the_profile(tmp_path):
    """The sum ends only when a product behind its beginning has run."""
    started, went_on = threading.Event(), threading.Event()

    class Patient(Doubling):
        def all_reduce(self, data, op, out=None):
            if threading.current_thread().name == "gpuflow-sums":
                started.set()
                assert went_on.wait(10)
            return super().all_reduce(data, op, out)

    def beside(x):
        assert started.wait(10)
        went_on.set()
        return np.asarray(x)

    def step(x):
        begun = total(x @ x)
        between = gf.pure_callback(beside, gf.ShapeDtypeStruct(x.shape, x.dtype), x @ (x + 1))
        return begun * 2, jnp.sin(between @ x)

    with serving(PROCESSES, OverlappedCommunicator(Patient())):
        jitted = gf.jit(step)
        jitted(jnp.asarray(X))
        started.clear()
        went_on.clear()
        with gf.profiler.trace(tmp_path):
            jitted(jnp.asarray(X))
    (path,) = tmp_path.glob("plugins/profile/*/*.trace.json.gz")
    (plane,) = gf.profiler.ProfileData.from_file(path).planes
    rows = {line.name.partition(" (")[0]: line.events for line in plane.lines}
    (shown,) = [event for event in rows["collectives"] if event.name == "all_reduce"]
    step, products = rows["host functions"][0], rows["libraries"]
    assert step.start_ns < shown.end_ns and shown.start_ns < step.end_ns
    assert [event.name for event in products][:3] == ["dot_general", "psum_begin", "dot_general"]
    assert products[2].end_ns < shown.end_ns


def test_an_error_in_the_thread_is_raised_where_the_program_waits():
    with (
        serving(PROCESSES, OverlappedCommunicator(Doubling(ValueError("of the thread")))),
        pytest.raises(ValueError, match="of the thread"),
    ):
        gf.jit(backward)(jnp.asarray(X))


def test_a_program_that_fails_waits_for_what_it_began():
    """Its memory goes to the next program; a sum would write into that."""

    class Slow(Doubling):
        def all_reduce(self, data, op, out=None):
            time.sleep(0.2)
            return super().all_reduce(data, op, out)

    def fails(x):
        raise ValueError("of the host")

    def step(x):
        first = x @ x
        begun = total(first)
        between = gf.pure_callback(fails, x, first @ x)
        return begun, between @ x

    inner = Slow()
    with (
        serving(PROCESSES, OverlappedCommunicator(inner)),
        pytest.raises(Exception, match="of the host"),
    ):
        gf.jit(step)(jnp.asarray(X))
    assert [thread for _, thread in inner.calls] == ["gpuflow-sums"]


def test_nothing_is_kept_of_programs_that_failed_nor_of_communicators():
    """Sums that a failed program began have operands and results of their own."""
    count, worker = len(communicator._settling), Worker()
    for _ in range(3):
        inner = Doubling(ValueError("of the thread"))
        with (
            serving(PROCESSES, OverlappedCommunicator(inner, worker=worker)),
            pytest.raises(ValueError, match="of the thread"),
        ):
            gf.jit(lambda x: backward(x))(jnp.asarray(X))
    assert not worker._begun
    worker.stop()
    reference = weakref.ref(worker)
    del worker, inner
    for _ in range(100):  # its thread ends
        collect_garbage()
        if reference() is None:
            break
        time.sleep(0.05)
    assert reference() is None and len(communicator._settling) <= count
