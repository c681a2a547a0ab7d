"""ViZDoom's `defend_the_center` as an environment of an image, two numbers and seven buttons."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import vizdoom
from gymnasium.spaces import Box, Dict, MultiBinary
from vizdoom import Button, GameVariable

BUTTONS = [Button.TURN_LEFT, Button.TURN_RIGHT, Button.ATTACK, Button.MOVE_LEFT, Button.MOVE_RIGHT]
BUTTONS += [Button.MOVE_FORWARD, Button.MOVE_BACKWARD]
TICS = 4  # of a step
ROWS = slice(42, 90)  # of the 160 x 120 screen, where monsters are seen; every two pixels are one
SHAPE = (1, 24, 80)  # gray, channels first
NO_MONSTERS = ("DoomPlayer", "BulletPuff", "Blood", "Dead")


class DoomEnv(gymnasium.Env[Any, Any]):
    """Pays 1 for each monster that is shot; it is over when the player dies, which costs 1."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = Dict(
            {"screen": Box(0, 255, SHAPE, np.uint8), "health and ammo": Box(0.0, np.inf, (2,))}
        )
        self.action_space = MultiBinary(len(BUTTONS))
        self.game = vizdoom.DoomGame()
        self.game.load_config(str(Path(vizdoom.scenarios_path) / "defend_the_center.cfg"))
        self.game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        self.game.set_screen_format(vizdoom.ScreenFormat.GRAY8)
        self.game.set_labels_buffer_enabled(True)  # for the scripted player alone
        self.game.set_available_buttons(BUTTONS)
        self.game.set_available_game_variables([GameVariable.HEALTH, GameVariable.AMMO2])
        self.game.set_window_visible(False)
        self.game.init()
        self.monsters: list[tuple[float, float]] = []  # center and width, in shares of the screen

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.set_seed(int(self.np_random.integers(2**31)))
        self.game.new_episode()
        self._look()
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.game.make_action([float(pressed) for pressed in action], TICS)
        is_over = self.game.is_episode_finished()
        is_late = self.game.is_episode_timeout_reached()
        if not is_over:
            self._look()  # otherwise there is nothing new to see
        return self._seen, reward, is_over and not is_late, is_over and is_late, {}

    def _look(self) -> None:
        state = self.game.get_state()
        parts = state.screen_buffer[ROWS].reshape(SHAPE[1], 2, SHAPE[2], 2)
        numbers = np.array(state.game_variables, np.float32)
        screen = parts.mean((1, 3)).astype(np.uint8)[None]
        self._seen = {"screen": screen, "health and ammo": numbers}
        labels = [x for x in state.labels or [] if not x.object_name.startswith(NO_MONSTERS)]
        self.monsters = [((x.x + x.width / 2) / 160 - 0.5, x.width / 160) for x in labels]

    def close(self) -> None:
        self.game.close()


class Script:
    """Turns to the nearest monster and shoots, but often presses other buttons.

    Args:
        env: which it looks into.
        care: of each of its episodes, the share of buttons that are not pressed at random.
        seed: of the episodes' care and of the random buttons.
    """

    def __init__(self, env: DoomEnv, care: tuple[float, ...], seed: int) -> None:
        self.env, self.care, self.rng = env, care, np.random.default_rng(seed)
        self.episodes: list[float] = []

    def __call__(self, _observation: Any) -> Any:
        if self.env.game.get_episode_time() <= 11:  # a new episode begins with tic 10
            self.episodes.append(float(self.rng.choice(self.care)))
        action = np.zeros(len(BUTTONS), np.int8)
        if self.env.monsters:
            center, width = max(self.env.monsters, key=lambda x: x[1])
            action[2 if abs(center) < width / 2 else int(center > 0)] = 1
        else:
            action[1] = 1
        is_random = self.rng.random(len(BUTTONS)) > self.episodes[-1]
        return np.where(is_random, self.rng.integers(2, size=len(BUTTONS)), action).astype(np.int8)
