"""Rewards: write one, try it, combine it, and find out why it is being gamed."""

from .answers import TotalReward, check_answer, check_numbers, match_format_exactly, total_reward
from .base import GroupReward, RewardFunction
from .catalog import find_reward, register_reward, registered_rewards
from .choosing import CurriculumReward, MultiTaskReward
from .code import CodeReward
from .combinators import FlooredReward, GatedReward, NormalizedReward, ScaledReward
from .combined import CombinedReward
from .composite import CompositeReward
from .functions import FunctionReward, as_reward
from .group import DiversityPenalty, PairwiseReward, RankingReward
from .judge.llm_judge import JudgePanel, LLMJudge
from .math import MathReward
from .model.reward_model import RewardModel
from .patterns import BinaryReward, ContinuousReward, GraduatedReward, MultiAspectReward, ShapedReward
from .rewarded import RewardedInstance
from .rule_based import FormatReward, KeywordReward, LengthReward
from .scoring import score_group, score_one
from .types import RewardOutput, Trajectory, TrajectoryTurn, parts_of

__all__ = [
    "Trajectory",
    "TrajectoryTurn",
    "RewardOutput",
    "parts_of",
    "RewardFunction",
    "GroupReward",
    "score_group",
    "score_one",
    "as_reward",
    "FunctionReward",
    "register_reward",
    "find_reward",
    "registered_rewards",
    "LengthReward",
    "FormatReward",
    "KeywordReward",
    "CompositeReward",
    "CombinedReward",
    "BinaryReward",
    "GraduatedReward",
    "ContinuousReward",
    "MultiAspectReward",
    "ShapedReward",
    "FlooredReward",
    "GatedReward",
    "NormalizedReward",
    "ScaledReward",
    "MultiTaskReward",
    "CurriculumReward",
    "match_format_exactly",
    "check_answer",
    "check_numbers",
    "total_reward",
    "TotalReward",
    "MathReward",
    "CodeReward",
    "RewardModel",
    "LLMJudge",
    "JudgePanel",
    "PairwiseReward",
    "RankingReward",
    "DiversityPenalty",
    "RewardedInstance",
]
