import os

from flux.rewards import CompositeReward, LengthReward, LLMJudge, RewardModel

judge = LLMJudge(
    judge_model="gpt-4o-mini",
    prompt_template="Rate this response...",
    api_key=os.environ["JUDGE_KEY"],
)
quality = RewardModel(model_path=os.environ["SENTIMENT_MODEL"], device="cpu")

reward = CompositeReward([(judge, 0.5), (quality, 0.25), (LengthReward(target=3), 0.25)])
