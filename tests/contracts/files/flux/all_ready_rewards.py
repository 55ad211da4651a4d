"""Every ready reward of flux, in both spellings of its arguments."""

from flux.rewards import (
    CompositeReward,
    FormatReward,
    FunctionReward,
    KeywordReward,
    LengthReward,
    LLMJudge,
    RewardFunction,
    RewardModel,
    RewardOutput,
)

length = LengthReward(target_length=150, tolerance=50, reward_type="gaussian")
length_short = LengthReward(target=4, tolerance=2, reward_type="linear")
format_reward = FormatReward(required_sections=["Reasoning:", "Answer:"], forbidden_patterns=["I don't know"])
keywords = KeywordReward(
    required_keywords=["because"], bonus_keywords=["therefore", "hence"], penalty_keywords=["maybe"]
)
keywords_short = KeywordReward(required=["because"], bonus=["therefore"], penalty=["maybe"])
has_number = FunctionReward(fn=lambda trajectory: float(any(c.isdigit() for c in trajectory.response)))


class Exclamations(RewardFunction):
    def compute_reward(self, trajectory):
        return RewardOutput(reward=max(0.0, 1.0 - 0.5 * trajectory.response.count("!")))


reward = CompositeReward(
    [
        (length_short, 0.2),
        (format_reward, 0.3),
        (keywords, 0.1),
        (keywords_short, 0.1),
        (has_number, 0.2),
        (Exclamations(), 0.1),
    ]
)

# Only loaded when they are used.
judge = LLMJudge(judge_model="gpt-4o-mini", prompt_template="Rate this response...", api_key="sk-not-a-key")
reward_model = RewardModel(model_path="some/reward-model", device="cuda")
