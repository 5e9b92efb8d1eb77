"""``jax._src.numpy.ufuncs``: the class of ufuncs, for annotations and checks."""

from gpuflow.numpy import ufunc as ufunc
