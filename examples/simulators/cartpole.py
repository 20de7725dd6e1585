"""A CartPole with its own main loop, which plays in a run as a client.

    tidemill train --config configs/cartpole_simulators.yaml --fresh      # says where simulators connect
    python examples/simulators/cartpole.py 127.0.0.1:7406 --envs 8

The physics are those of Barto, Sutton and Anderson (1983), written out here: nothing of gymnasium is imported.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import threading

import tidemill

SPACES = tidemill.EnvSpec(observation_shape=(4,), observation_dtype="float32", num_actions=2)

GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N, TICK_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MOST_M, MOST_RADIANS, MOST_STEPS = 2.4, 12 * math.pi / 180, 500


class CartPole:
    """A pole on a cart."""

    def __init__(self, seed: int) -> None:
        """Draw the beginnings of episodes from a seed."""
        self._rng = random.Random(seed)
        self.state = [0.0, 0.0, 0.0, 0.0]
        self.steps = 0

    def reset(self) -> list[float]:
        """Begin an episode; return its first observation: place, speed, angle and angular speed."""
        self.state, self.steps = [self._rng.uniform(-0.05, 0.05) for _ in range(4)], 0
        return self.state

    def push(self, action: int) -> tuple[list[float], float, bool, bool]:
        """Push the cart left (0) or right (1); return observation, reward, terminated and truncated."""
        x, speed, angle, spin = self.state
        force = FORCE_N if action == 1 else -FORCE_N
        mass, lever = CART_KG + POLE_KG, POLE_KG * HALF_POLE_M
        thrust = (force + lever * spin**2 * math.sin(angle)) / mass
        turn = (GRAVITY * math.sin(angle) - math.cos(angle) * thrust) / (
            HALF_POLE_M * (4 / 3 - POLE_KG * math.cos(angle) ** 2 / mass)
        )
        push = thrust - lever * turn * math.cos(angle) / mass
        self.state = [x + TICK_S * speed, speed + TICK_S * push, angle + TICK_S * spin, spin + TICK_S * turn]
        self.steps += 1
        has_fallen = abs(self.state[0]) > MOST_M or abs(self.state[2]) > MOST_RADIANS
        return self.state, 1.0, has_fallen, self.steps >= MOST_STEPS


def play(address: str, seed: int, most_steps: int, stop: threading.Event) -> None:
    """Play episodes until the run is over, so many steps were made, or `stop` is set."""
    game, made = CartPole(seed), 0
    with tidemill.SimulatorClient(address, SPACES, name=f"cartpole-{seed}") as simulator:
        while made < most_steps and not stop.is_set():
            action = simulator.begin(game.reset())
            while action is not None and not stop.is_set():
                observation, reward, terminated, truncated = game.push(action)
                action = simulator.step(observation, reward, terminated=terminated, truncated=truncated)
                made += 1


def main() -> None:
    """Play several games, each in its own thread."""
    parser = argparse.ArgumentParser(description="Play CartPole in a run of Tidemill.")
    parser.add_argument("address", help="where simulators connect, which `tidemill train` prints")
    parser.add_argument("--envs", type=int, default=8, help="games at a time (8)")
    parser.add_argument("--seed", type=int, default=1, help="of the first game (1)")
    parser.add_argument("--steps", type=int, default=10**9, help="steps after which each game stops")
    options = parser.parse_args()
    stop = threading.Event()

    def game(seed: int) -> None:
        try:
            play(options.address, seed, options.steps, stop)
        except (tidemill.Unavailable, tidemill.ResourceExhausted) as error:  # the run is over, or its slots are taken
            sys.stderr.write(f"game {seed}: {error}\n")

    seeds = range(options.seed, options.seed + options.envs)
    threads = [threading.Thread(target=game, args=(seed,), daemon=True) for seed in seeds]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stop.set()  # the service ends their episodes as truncated
        for thread in threads:
            thread.join(1.0)  # one that waits for an answer ends with the process


if __name__ == "__main__":
    main()
