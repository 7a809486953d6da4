"""Training in JAX: a jitted step of a small network."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# The quickest of several algorithms is not always the same one.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import jax
import jax.numpy as jnp

from result import Digest, finish


def forward(parameters, x):
    for weights, bias in parameters[:-1]:
        x = jax.nn.gelu(x @ weights + bias)
    weights, bias = parameters[-1]
    return x @ weights + bias


def loss_of(parameters, x, y):
    return jnp.mean((forward(parameters, x) - y) ** 2)


@jax.jit
def step(parameters, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    return loss, jax.tree_util.tree_map(lambda p, g: p - 1e-2 * g, parameters, gradients)


@jax.jit
def many(parameters, key):
    """Twenty steps in one program, as lax.scan makes them."""

    def body(state, key):
        x = jax.random.normal(key, (512, 1024))
        loss, state = step(state, x, jnp.sin(x[:, :256]))
        return state, loss

    return jax.lax.scan(body, parameters, jax.random.split(key, 20))


def main():
    if jax.devices()[0].platform not in ("gpu", "cuda"):
        raise SystemExit("JAX found no GPU")
    key = jax.random.PRNGKey(7)
    sizes = [1024, 2048, 2048, 256]
    parameters = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        key, own = jax.random.split(key)
        parameters.append((jax.random.normal(own, (inputs, outputs)) / inputs**0.5,
                           jnp.zeros(outputs)))
    digest = Digest()
    for _ in range(100):
        key, own = jax.random.split(key)
        x = jax.random.normal(own, (512, 1024))
        loss, parameters = step(parameters, x, jnp.sin(x[:, :256]))
        digest.add(loss)
    parameters, losses = many(parameters, key)
    digest.add(losses)
    for leaf in jax.tree_util.tree_leaves(parameters):
        digest.add(leaf)
    finish(digest, {"jax": jax.__version__, "device": jax.devices()[0].device_kind})


main()
