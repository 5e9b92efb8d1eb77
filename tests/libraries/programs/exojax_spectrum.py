"""ExoJAX: cross sections of lines, an emission spectrum of an atmosphere, and its derivative."""

import jax
import jax.numpy as jnp
import numpy as np
from common import show
from exojax.atm.atmprof import atmprof_powerlow, normalized_layer_height, pressure_layer_logspace
from exojax.opacity.initspec import init_modit
from exojax.opacity.lpf.lpf import voigt, xsmatrix
from exojax.opacity.lpf.make_numatrix import make_numatrix0
from exojax.opacity.modit.modit import xsmatrix_zeroscan
from exojax.postproc.spin_rotation import convolve_rigid_rotation
from exojax.rt.layeropacity import layer_optical_depth
from exojax.rt.planck import piBarr
from exojax.rt.rtransfer import rtrun_emis_pureabs_fbased2st, rtrun_emis_pureabs_ibased

RNG = np.random.default_rng(0)
LINES = np.sort(RNG.uniform(4310.0, 4320.0, 12))
GRID = np.logspace(np.log10(4309.0), np.log10(4321.0), 200)
STRENGTHS = jnp.asarray(10 ** RNG.uniform(-22, -20, (6, 12)) * 1e20)
PRESSURES, STEPS, DECREASE = pressure_layer_logspace(log_pressure_top=-3.0, nlayer=6)
NUS = jnp.asarray(GRID)


def cross_sections():
    slope = jax.vmap(jax.grad(lambda nu, a: voigt(nu[None], 1.0, a)[0]), (0, None))
    offsets = jnp.linspace(-3.0, 3.0, 15)
    conts, index, resolution, signs = init_modit(LINES, GRID)
    widths = jnp.asarray(RNG.uniform(0.5, 2.0, (6, 12)))
    grids = jnp.stack([jnp.linspace(0.4, 2.1, 5)] * 6)
    transformed = xsmatrix_zeroscan(
        conts, index, resolution, signs, jnp.full((6, 1), 1.3), widths, STRENGTHS, GRID, grids
    )
    return voigt(offsets, 1.0, 0.3), slope(offsets, 0.3), transformed / transformed.max()


def spectrum(alpha, top_lines):
    temperatures = atmprof_powerlow(PRESSURES, 1200.0, alpha)
    doppler = 0.02 * jnp.sqrt(temperatures)[:, None] * jnp.ones(12)
    widths = 0.05 * PRESSURES[:, None] * jnp.ones(12) + 0.01
    sections = 1e-20 * xsmatrix(top_lines, doppler, widths, STRENGTHS)
    depths = layer_optical_depth(STEPS, sections, jnp.full(6, 0.01), 28.0, 2478.0)
    return depths, piBarr(temperatures, NUS)


def emission():
    lines = jnp.asarray(make_numatrix0(GRID, LINES))

    @jax.jit
    def flux(alpha):
        return rtrun_emis_pureabs_fbased2st(*spectrum(alpha, lines))

    mus, weights = jnp.array([0.2, 0.7]), jnp.array([0.4, 0.6])
    streams = rtrun_emis_pureabs_ibased(*spectrum(0.1, lines), mus, weights)
    rotated = convolve_rigid_rotation(flux(0.1), jnp.linspace(-20.0, 20.0, 21), 10.0, 0.3, 0.1)
    height = normalized_layer_height(
        atmprof_powerlow(PRESSURES, 1200.0, 0.1), DECREASE, jnp.full(6, 2.3), 7e9, 2478.0
    )
    whole = flux(0.1)
    return (whole, jax.jvp(flux, (0.1,), (1.0,))[1], streams, rotated, height)


if __name__ == "__main__":
    show({part.__name__: part() for part in (cross_sections, emission)})
