"""dtypes, typing, errors, stages, dlpack, ffi, guards and what a process says of itself."""

from __future__ import annotations

import typing

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import dlpack, dtypes, errors, ffi, stages

KEY_DTYPE = gpuflow.random.key(0).dtype

# --- dtypes and typing ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jit", "vmap", "grad", "checkpoint", "custom_jvp", "make_jaxpr"])
def test_functions_whose_name_is_no_string(name):
    class Named:
        __name__ = 3

        def __call__(self, x):
            return x * 2

    made = getattr(gpuflow, name)(Named())
    if name != "custom_jvp":
        made(jnp.ones(2) if name == "vmap" else 1.0)


def test_key_dtypes_have_a_kind():
    assert KEY_DTYPE.type is dtypes.prng_key and dtypes.prng_key.__name__ == "prng_key"


def test_kinds_of_dtypes():
    assert dtypes.issubdtype(KEY_DTYPE, dtypes.prng_key)
    assert jnp.issubdtype(KEY_DTYPE, dtypes.extended)
    assert dtypes.issubdtype(dtypes.prng_key, dtypes.extended)
    assert not dtypes.issubdtype(np.float32, dtypes.extended)
    assert not dtypes.issubdtype(KEY_DTYPE, np.number)
    assert dtypes.issubdtype(dtypes.bfloat16, np.floating)
    assert dtypes.finfo(dtypes.bfloat16).bits == 16
    assert dtypes.iinfo(np.int8).max == 127


def test_canonical_dtypes():
    assert dtypes.canonicalize_dtype(float) == np.float32
    assert dtypes.canonicalize_dtype(KEY_DTYPE, allow_extended_dtype=True) is KEY_DTYPE
    with pytest.raises(ValueError, match=r"\[canonicalize_dtype\].*allow_extended_dtype=True"):
        dtypes.canonicalize_dtype(KEY_DTYPE)
    with gpuflow.enable_x64():
        assert dtypes.canonicalize_dtype(float) == np.float64


def test_result_types():
    assert dtypes.result_type(1, 2.0, return_weak_type_flag=True) == (np.float32, True)
    assert dtypes.result_type(1, np.int8(1), return_weak_type_flag=True) == (np.int8, False)
    assert dtypes.result_type(True, return_weak_type_flag=True) == (np.bool_, False)
    assert dtypes.result_type(jnp.ones(2, jnp.bfloat16), 1.0) == dtypes.bfloat16


@pytest.mark.parametrize(
    ("x", "want"),
    [(1, int), (True, bool), (1j, complex), (dtypes.bfloat16, float), (np.uint8, int)],
)
def test_python_types(x, want):
    assert dtypes.scalar_type_of(x) is want


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (jnp.int4, 4),
        (jnp.int2, 2),
        (jnp.float4_e2m1fn, 4),
        (jnp.float8_e5m2, 8),
        (bool, 8),
        (np.float64, 64),
        (jnp.bfloat16, 16),
        (np.complex64, 64),
        ("int32", 32),
    ],
)
def test_bits(dtype, bits):
    assert dtypes.itemsize_bits(dtype) == bits


def test_annotations():
    def function(x: gpuflow.typing.ArrayLike, dtype: gpuflow.typing.DTypeLike | None) -> None:
        del x, dtype

    assert typing.get_type_hints(function)
    assert isinstance(jnp.ones(3), gpuflow.typing.ArrayLike)
    assert isinstance(1.0, gpuflow.typing.ArrayLike)
    assert not isinstance([1.0], gpuflow.typing.ArrayLike)


# --- errors --------------------------------------------------------------------------------

BASES = {
    "ConcretizationTypeError": "JAXTypeError",
    "TracerBoolConversionError": "ConcretizationTypeError",
    "TracerArrayConversionError": "JAXTypeError",
    "TracerIntegerConversionError": "JAXTypeError",
    "UnexpectedTracerError": "JAXTypeError",
    "NonConcreteBooleanIndexError": "JAXIndexError",
    "KeyReuseError": "JAXTypeError",
    "DeletedArrayError": "JaxRuntimeError",
}


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_the_hierarchy_is_that_of_jax(name, base):
    assert issubclass(getattr(errors, name), getattr(errors, base))


def test_bases_are_builtin_ones():
    assert issubclass(errors.JAXTypeError, TypeError)
    assert issubclass(errors.JAXIndexError, IndexError)
    assert issubclass(errors.JaxRuntimeError, RuntimeError)
    assert issubclass(errors.JaxprTypeError, TypeError)
    assert issubclass(errors.InconclusiveDimensionOperation, Exception)
    with pytest.raises(errors.JAXTypeError):
        gpuflow.jit(lambda x: 1 if x else 2)(1.0)
    with pytest.raises(errors.JaxRuntimeError):
        x = jnp.ones(3)
        x.delete()
        x + 1


# --- stages --------------------------------------------------------------------------------


def test_stages():
    function = gpuflow.jit(lambda x: x + 1)
    assert isinstance(function, stages.Wrapped)
    assert not isinstance(lambda x: x, stages.Wrapped)
    traced = function.trace(1.0)
    lowered = traced.lower()
    compiled = lowered.compile()
    kinds = (stages.Traced, stages.Lowered, stages.Compiled)
    assert [type(x) for x in (traced, lowered, compiled)] == list(kinds)
    assert float(compiled(2.0)) == 3.0
    assert isinstance(gpuflow.tree.leaves(lowered.args_info)[0], stages.ArgInfo)


# --- dlpack --------------------------------------------------------------------------------


def test_memory_is_shared():
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = dlpack.from_dlpack(host)
    assert np.shares_memory(np.asarray(x), host)
    np.testing.assert_array_equal(np.asarray(x + 1), host + 1)
    np.testing.assert_array_equal(np.asarray(gpuflow.jit(lambda v: v * 2)(x)), host * 2)
    back = np.from_dlpack(x)
    assert np.shares_memory(back, host)
    assert jnp.from_dlpack(x) is x


def test_capsules():
    x = jnp.arange(5.0)
    y = dlpack.from_dlpack(dlpack.to_dlpack(x))
    np.testing.assert_array_equal(np.asarray(y), np.arange(5.0))
    assert np.shares_memory(np.asarray(x), np.asarray(y))


def test_donation_leaves_shared_memory_alone():
    host = np.arange(4096, dtype=np.float32)
    x = dlpack.from_dlpack(host)
    out = gpuflow.jit(lambda v: v + 1, donate_argnums=0)(x)
    np.testing.assert_array_equal(np.asarray(out), np.arange(1, 4097))
    np.testing.assert_array_equal(host, np.arange(4096))


def test_the_memory_lives_as_long_as_the_array():
    x = dlpack.from_dlpack(np.full(1 << 16, 7, np.float32))
    np.testing.assert_array_equal(np.asarray(x[:3]), [7, 7, 7])


def test_copies_where_memory_cannot_be_shared():
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert not np.shares_memory(np.asarray(dlpack.from_dlpack(host.T)), host)
    assert not np.shares_memory(np.asarray(dlpack.from_dlpack(host, copy=True)), host)
    assert dlpack.from_dlpack(np.ones(3)).dtype == np.float32
    assert np.shares_memory(np.asarray(dlpack.from_dlpack(host, copy=False)), host)
    with pytest.raises(ValueError, match=r"\[from_dlpack\] the memory cannot be shared.*row-major"):
        dlpack.from_dlpack(host.T, copy=False)
    with pytest.raises(ValueError, match=r"cannot be shared: 64-bit numbers are narrowed"):
        dlpack.from_dlpack(np.ones(3), copy=False)
    with pytest.raises(ValueError, match=r"\[from_dlpack\] device must be a Device"):
        dlpack.from_dlpack(host, device="gpu")


def test_dtypes_that_can_be_shared():
    assert dlpack.is_supported_dtype(np.float32)
    assert dlpack.is_supported_dtype(jnp.bfloat16)
    assert not dlpack.is_supported_dtype(jnp.int4)
    assert not dlpack.is_supported_dtype(KEY_DTYPE)


# --- what there is not ---------------------------------------------------------------------


@pytest.mark.parametrize("function", [ffi.ffi_call, ffi.register_ffi_target, ffi.include_dir])
def test_ffi_names_the_way_out(function):
    with pytest.raises(NotImplementedError, match=r"\[ffi\].*Fix: gpuflow.pure_callback"):
        function("target", np.float32)


# --- the process ---------------------------------------------------------------------------


def test_live_arrays():
    x = jnp.ones(3)
    assert any(y is x for y in gpuflow.live_arrays("cpu"))
    x.delete()
    assert not any(y is x for y in gpuflow.live_arrays("cpu"))


def test_processes():
    assert gpuflow.process_indices() == gpuflow.host_ids() == [0]
    assert (gpuflow.host_count(), gpuflow.host_id()) == (1, 0)
    x = {"a": jnp.ones(3), "b": 2}
    assert gpuflow.copy_to_host_async(x) is x


def test_environment_info(capsys):
    text = gpuflow.print_environment_info(return_string=True)
    assert f"gpuflow:   {gpuflow.__version__}" in text
    gpuflow.print_environment_info()
    assert capsys.readouterr().out.strip() == text


def test_guards_check_their_values():
    with gpuflow.transfer_guard("disallow"), gpuflow.checking_leaks(), gpuflow.enable_checks(True):
        assert float(jnp.sum(np.ones(2))) == 2
    with (
        pytest.raises(ValueError, match=r"\[transfer_guard\] the value must be one of 'allow'"),
        gpuflow.transfer_guard("never"),
    ):
        pass


def test_user_contexts_are_part_of_jits_key():
    context = gpuflow.make_user_context(1)
    traced = []

    @gpuflow.jit
    def function(x):
        traced.append(context.value)
        return x * context.value

    assert float(function(2.0)) == 2.0
    with context(5):
        assert float(function(2.0)) == 10.0
        with context(6):
            assert float(function(2.0)) == 12.0
        assert float(function(3.0)) == 15.0
    assert float(function(3.0)) == 3.0
    assert traced == [1, 5, 6]
    with pytest.raises(TypeError, match=r"\[user_context\] the value must be hashable"):
        context([1])


def test_older_names_of_trees():
    assert gpuflow.tree_map(lambda x: x + 1, {"a": 1}) == {"a": 2}
    leaves, structure = gpuflow.tree_flatten((1, [2]))
    assert gpuflow.tree_unflatten(structure, leaves) == (1, [2])
    assert gpuflow.tree_leaves((1, [2])) == [1, 2]
