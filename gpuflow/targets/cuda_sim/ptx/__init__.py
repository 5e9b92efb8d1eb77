"""An interpreter of PTX: runs the kernels of the cache on NumPy memory and checks every access."""
