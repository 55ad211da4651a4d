"""Custom rewards for flux: one class with super().__init__(), one without."""

from flux.core.trajectory import Trajectory
from flux.rewards import RewardFunction, RewardOutput


class PolitenessReward(RewardFunction):
    """Rewards polite answers."""

    def __init__(self, words=("please", "thank")):
        super().__init__()
        self.words = words

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        text = trajectory.response.lower()
        hits = [word for word in self.words if word in text]
        score = min(1.0, len(hits) / len(self.words))
        return RewardOutput(reward=score, metadata={"hits": len(hits), "words": hits})


class ConcisenessReward(RewardFunction):
    def __init__(self, max_words=20):  # no super().__init__()
        self.max_words = max_words

    def compute_reward(self, trajectory):
        n = len(trajectory.response.split())
        reward = max(0.0, min(1.0, 1.0 - max(0, n - self.max_words) / self.max_words))
        return RewardOutput(reward=reward, token_rewards=[], metadata={"num_words": n})


class ScaledReward(RewardFunction):
    """The base class takes name, scale and clip."""

    def __init__(self):
        super().__init__(name="scaled", scale=2.0, clip=(0.0, 1.0))

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        return RewardOutput(reward=0.75 if trajectory.response else 0.25)


if __name__ == "__main__":
    reward_fn = PolitenessReward()
    for response in ["Give me that.", "Could you please give me that? Thank you."]:
        output = reward_fn.compute_reward(Trajectory(response=response))
        print(f"{response!r}: {output.reward:.2f} {output.metadata}")
