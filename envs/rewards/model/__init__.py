"""Reward models: networks that classify a response, loaded by transformers."""

from .reward_model import RewardModel

__all__ = ["RewardModel"]
