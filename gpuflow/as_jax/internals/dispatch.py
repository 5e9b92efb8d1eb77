"""``jax._src.dispatch``: effects of programs that were called have happened already."""


def wait_for_tokens() -> None:
    """There is nothing to wait for."""
