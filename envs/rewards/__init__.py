"""Rewards: write one, try it, combine it, and find out why it is being gamed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "types": ("Trajectory", "TrajectoryTurn", "RewardOutput", "parts_of"),
    "base": ("RewardFunction", "GroupReward"),
    "scoring": ("score_group", "score_one"),
    "functions": ("as_reward", "FunctionReward"),
    "catalog": ("register_reward", "find_reward", "registered_rewards"),
    "rule_based": ("LengthReward", "FormatReward", "KeywordReward"),
    "composite": ("CompositeReward",),
    "combined": ("CombinedReward",),
    "patterns": ("BinaryReward", "GraduatedReward", "ContinuousReward", "MultiAspectReward", "ShapedReward"),
    "combinators": ("FlooredReward", "GatedReward", "NormalizedReward", "ScaledReward"),
    "choosing": ("MultiTaskReward", "CurriculumReward"),
    "answers": ("match_format_exactly", "check_answer", "check_numbers", "total_reward", "TotalReward"),
    "math": ("MathReward",),
    "code": ("CodeReward",),
    "reward_model": ("RewardModel",),
    "judge": ("LLMJudge", "JudgePanel"),
    "group": ("PairwiseReward", "RankingReward", "DiversityPenalty"),
    "rewarded": ("RewardedInstance",),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PLACE_OF:
        return getattr(import_module(f".{_PLACE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
