import subprocess
import sys

import turngym.envs.rewards
from turngym.envs.rewards.catalog import READY

PUBLIC = """
Trajectory TrajectoryTurn RewardOutput parts_of RewardFunction GroupReward score_group score_one as_reward
FunctionReward register_reward find_reward registered_rewards LengthReward FormatReward KeywordReward CompositeReward
CombinedReward BinaryReward GraduatedReward ContinuousReward MultiAspectReward ShapedReward FlooredReward GatedReward
NormalizedReward ScaledReward MultiTaskReward CurriculumReward match_format_exactly check_answer check_numbers
total_reward TotalReward MathReward CodeReward RewardModel LLMJudge JudgePanel PairwiseReward RankingReward
DiversityPenalty RewardedInstance
""".split()  # noqa: SIM905 - short enough to read

HEAVY = {"torch", "transformers", "openai", "httpx", "httpx2", "matplotlib", "sympy", "math_verify", "pyarrow"}


def test_the_public_names_are_pinned():
    assert turngym.envs.rewards.__all__ == PUBLIC
    assert all(hasattr(turngym.envs.rewards, name) for name in PUBLIC)


def test_every_ready_reward_is_public():
    assert set(READY) <= set(PUBLIC)


def test_importing_the_rewards_loads_nothing_heavy():
    code = "import sys, turngym.envs.rewards; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "turngym" in loaded
    assert loaded.isdisjoint(HEAVY)
