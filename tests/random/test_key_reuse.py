"""``debug_key_reuse``: programs that use a key twice are refused, as JAX 0.10 refuses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from key_reuse_cases import programs, raises
from together import together

import gpuflow

STORED = json.loads((Path(__file__).parents[1] / "data" / "key_reuse.json").read_text())
# JAX refuses these although no key is used twice: it does not look at what ``stack`` and ``where``
# return, nor at the values of indices while tracing, as nobody can.
HARMLESS = {
    "a, b = random.split(key)\nkeys = jnp.stack([a, b])\nreturn jax.vmap(random.normal)(keys)",
    "return random.normal(jnp.where(True, key, random.fold_in(key, 1)))",
    "random.normal(key)\njax.block_until_ready(key)\nreturn random.key_impl(key)",
    "i = jnp.array(1)\nkeys = random.split(key, 3)\n"
    "return random.normal(keys[i]) + random.normal(keys[i + 1])",
    "return jax.vmap(lambda k: lax.cond(random.uniform(random.clone(k)) > 0.5, random.normal, "
    "random.uniform, k))(random.split(key, 3))",
}
# Eagerly JAX refuses the first although a checkpoint uses its key once. It misses what comes of one
# key by copies and reshapes; and of those programs the stored answer is that of the jitted form.
OF_JITTED = [text for text, (eager, jitted) in STORED.items() if eager != jitted]


@together(size=15)
@pytest.mark.parametrize("text", programs())
def test_reuse_is_refused_where_jax_refuses_it(text):
    eager, jitted = STORED[text]
    if text in HARMLESS:
        assert raises(gpuflow, text, False) == ""
        return
    assert raises(gpuflow, text, True) == jitted
    assert raises(gpuflow, text, False) == (jitted if text in OF_JITTED else eager)


def test_the_setting_by_name_and_the_error():
    key = gpuflow.random.key(3)
    gpuflow.config.update("jax_debug_key_reuse", True)
    try:
        gpuflow.random.normal(key)
        with pytest.raises(gpuflow.errors.KeyReuseError, match=r"bits\] .*used before, at"):
            gpuflow.random.uniform(key)
    finally:
        gpuflow.config.update("jax_debug_key_reuse", False)
    gpuflow.random.normal(key)


def test_what_a_block_notes_holds_for_later_blocks_only_where_it_is_on():
    key = gpuflow.random.key(4)
    gpuflow.random.normal(key)
    with gpuflow.debug_key_reuse():
        gpuflow.random.normal(key)
    with gpuflow.debug_key_reuse(), pytest.raises(gpuflow.errors.KeyReuseError):
        gpuflow.random.normal(key)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators(impl):
    random = gpuflow.random
    with gpuflow.debug_key_reuse():
        key = random.key(0, impl=impl)
        first, second = random.split(random.clone(key))
        random.normal(first)
        random.normal(second)
        random.uniform(random.fold_in(key, 1))
        random.normal(key)
        with pytest.raises(gpuflow.errors.KeyReuseError):
            random.split(key)


@pytest.mark.parametrize("first", ["the check", "the trace"])
def test_a_trace_of_the_profiler_leaves_the_check_on(first, tmp_path):
    """The end of a trace put back the evaluator without the check, for the rest of the process."""
    random = gpuflow.random
    key = random.key(0, impl="rbg")
    if first == "the check":
        with gpuflow.debug_key_reuse():
            random.split(random.clone(key))
    gpuflow.profiler.start_trace(tmp_path)
    with gpuflow.debug_key_reuse():
        random.split(random.clone(key))
    gpuflow.profiler.stop_trace()
    with gpuflow.debug_key_reuse():
        random.split(key)
        with pytest.raises(gpuflow.errors.KeyReuseError):
            random.split(key)
