[as_jax] the script must exist; got 't1.py'. Fix: give the path of a file, or -m module.
