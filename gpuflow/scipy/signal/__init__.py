"""jax.scipy.signal: convolution, trends and spectra."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.scipy.signal.convolving import convolve as convolve
from gpuflow.scipy.signal.convolving import convolve2d as convolve2d
from gpuflow.scipy.signal.convolving import correlate as correlate
from gpuflow.scipy.signal.convolving import correlate2d as correlate2d
from gpuflow.scipy.signal.convolving import fftconvolve as fftconvolve
from gpuflow.scipy.signal.spectra import csd as csd
from gpuflow.scipy.signal.spectra import stft as stft
from gpuflow.scipy.signal.spectra import welch as welch
from gpuflow.scipy.signal.synthesis import istft as istft
from gpuflow.scipy.signal.trends import detrend as detrend

_publish(globals(), "scipy.signal", _public_names(globals()))
