"""jax._src.compiler, which libraries patch to forbid compiling. Nothing here calls it."""
