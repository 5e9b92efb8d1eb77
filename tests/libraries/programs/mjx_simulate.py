"""mujoco mjx: models put on the device, stepped under jit, vmap and scan."""

import jax
import jax.numpy as jnp
import mujoco
from common import show
from mujoco import mjx

PENDULUM = """
<mujoco>
  <option timestep="0.01" integrator="RK4"/>
  <worldbody>
    <body>
      <joint name="one" type="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.5" mass="1"/>
      <body pos="0 0 -0.5">
        <joint name="two" type="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.5" mass="1" contype="0"
              conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="one" gear="2"/></actuator>
</mujoco>
"""
BALL = """
<mujoco>
  <option timestep="0.005" iterations="4" ls_iterations="8"/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body pos="0 0 0.3"><freejoint/><geom type="sphere" size="0.2" mass="0.5"/></body>
  </worldbody>
</mujoco>
"""


def rolled(text, count, velocity):
    model = mujoco.MjModel.from_xml_string(text)
    on_device = mjx.put_model(model)
    start = mjx.make_data(model)

    @jax.jit
    def roll(scale):
        data = start.replace(qvel=start.qvel + scale * jnp.asarray(velocity))
        control = scale * jnp.ones(model.nu)

        def step(data, _):
            data = mjx.step(on_device, data.replace(ctrl=control))
            return data, (data.qpos, data.qvel)

        return jax.lax.scan(step, data, None, count)[1]

    return roll


def pendulum():
    roll = rolled(PENDULUM, 20, [0.5, -0.3])
    return jax.vmap(roll)(jnp.array([0.5, 1.0]))


def contact():
    return rolled(BALL, 40, [0.4, 0.0, -2.0, 0.0, 0.0, 0.0])(jnp.array(1.0))


def gradient():
    roll = rolled(PENDULUM, 5, [0.5, -0.3])
    return jax.jacfwd(lambda scale: roll(scale)[0][-1])(jnp.array(1.0))


if __name__ == "__main__":
    show({"pendulum": pendulum(), "contact": contact(), "gradient": gradient()})
