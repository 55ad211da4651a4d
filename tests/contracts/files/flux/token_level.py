from flux.rewards import RewardFunction, RewardOutput
import numpy as np


class TokenReward(RewardFunction):
    """A reward for every token: the last ones count more."""

    def compute_reward(self, trajectory):
        values = np.linspace(0.0, 1.0, len(trajectory.token_ids))
        return RewardOutput(reward=values.mean(), token_rewards=values, metadata={"mean": values.mean()})
