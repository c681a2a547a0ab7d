"""ViZDoom's `defend_the_center` with three buttons and a stick, as Gymnasium's registry has it."""

from typing import Any

import gymnasium
import numpy as np
import vizdoom.gymnasium_wrapper  # noqa: F401  registers the environments
from d3rlpy.dataset import MDPDataset
from doom import NO_MONSTERS
from gymnasium.spaces import Box, MultiDiscrete
from vizdoom import Button, GameVariable, ScreenResolution

BUTTONS = [Button.ATTACK, Button.MOVE_LEFT, Button.MOVE_RIGHT, Button.TURN_LEFT_RIGHT_DELTA]
NUMBERS = [GameVariable.HEALTH, GameVariable.AMMO2]
TICS = 4  # of a step; in each the stick turns by its value, in degrees
TURNS = (-15.0, -5.0, -1.5, 0.0, 1.5, 5.0, 15.0)  # a choice by hand
WIDTH = 160  # of the screen in pixels, which shows 90 degrees
SEEN = 3  # monsters


class StickEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows angles and widths of the nearest monsters in view, health and ammunition.

    Actions are the registered environment's: a dict of binary buttons and a stick without bounds.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        game: dict[str, Any] = {"available_buttons": BUTTONS, "available_game_variables": NUMBERS}
        game |= {"screen_resolution": ScreenResolution.RES_160X120, "labels_buffer_enabled": True}
        name = "VizdoomDefendCenter-MultiBinary-v1"
        super().__init__(gymnasium.make(name, render_mode=render_mode, frame_skip=TICS, **game))
        self.observation_space = Box(-np.inf, np.inf, (2 * SEEN + 2,), np.float32)

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return self._see(observation), info

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return self._see(observation), *others

    def _see(self, observation: Any) -> Any:
        state: Any = self.get_wrapper_attr("state")  # None when the player is dead
        labels = state.labels if state else []
        labels = [x for x in labels if not x.object_name.startswith(NO_MONSTERS)]
        monsters = np.zeros((SEEN, 2), np.float32)
        for i, x in enumerate(sorted(labels, key=lambda x: -x.width)[:SEEN]):
            sides = np.array([x.x, x.x + x.width]) / WIDTH - 0.5
            left, right = np.degrees(np.arctan(2.0 * sides))
            monsters[i] = (left + right) / 2.0, right - left
        return np.concatenate([monsters.ravel(), observation["gamevariables"]]).astype(np.float32)


class ByHand(gymnasium.ActionWrapper[Any, Any, Any]):
    """What one writes without `FlattenAction`: buttons, and turns that one chooses."""

    turns = np.array(TURNS, np.float32)

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = MultiDiscrete([2, 2, 2, len(TURNS)])

    def action(self, action: Any) -> Any:
        return {"binary": action[:3].astype(np.int8), "continuous": self.turns[action[3:]]}

    def choices(self, action: Any) -> Any:
        """Returns what an action of the game is called here."""
        nearest = np.abs(self.turns - action["continuous"]).argmin()
        return np.append(action["binary"], nearest)


def play_script(env: StickEnv, episodes: int) -> tuple[list[Any], dict[str, Any]]:
    """Turns to the nearest monster and shoots, in each episode with other care.

    Returns:
        The actions (T), and the other arrays of an `MDPDataset` of them, `(T, ...)`.
    """
    rng, actions = np.random.default_rng(0), []
    log: dict[str, Any] = {"observations": [], "rewards": [], "terminals": [], "timeouts": []}
    for episode in range(episodes):
        care, is_over = rng.choice([0.8, 0.6, 0.4, 0.2]), False
        seen, _ = env.reset(seed=episode)
        while not is_over:
            angle, width = seen[:2]
            turn = angle if width else 60.0  # where nobody is seen it looks around
            turn += rng.normal(0.0, 60.0 * (1.0 - care)) * (rng.random() > care)
            buttons = np.array([width > 0.0 and abs(angle) < width, 0, 0], np.int8)
            is_random = rng.random(3) > care
            buttons = np.where(is_random, rng.integers(2, size=3), buttons).astype(np.int8)
            action = {"binary": buttons, "continuous": np.array([turn / TICS], np.float32)}
            log["observations"].append(seen)
            seen, reward, dead, late, _ = env.step(action)
            actions.append(action)
            is_over = dead or late
            for name, value in (("rewards", reward), ("terminals", dead), ("timeouts", late)):
                log[name].append(float(value))
    return actions, {name: np.array(values) for name, values in log.items()}


def dataset_of(choices: Any, log: dict[str, Any]) -> MDPDataset:
    """Returns the log with choices `(T, 4)` as actions."""
    return MDPDataset(actions=np.asarray(choices), **log)
