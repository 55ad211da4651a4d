import flux.rewards as fr
from flux.rewards.base import RewardFunction, RewardOutput
from flux.rewards.model_based import LLMJudge, RewardModel
from flux.rewards.rule_based import FormatReward, KeywordReward, LengthReward
from flux.core import trajectory as flux_trajectory


class AnswerReward(RewardFunction):
    """Wraps ready rewards, and asks them itself."""

    def __init__(self):
        self.format = FormatReward(required_sections=["Answer:"])
        self.composite = fr.CompositeReward([(self.format, 0.5), (fr.FunctionReward(fn=self.digits), 0.5)])

    @staticmethod
    def digits(trajectory: flux_trajectory.Trajectory) -> float:
        return 1.0 if any(c.isdigit() for c in trajectory.response) else 0.0

    def compute_reward(self, trajectory):
        output = self.composite.compute_reward(trajectory)
        return RewardOutput(reward=output.reward, metadata={**output.metadata, "turns": len(trajectory.turns)})
