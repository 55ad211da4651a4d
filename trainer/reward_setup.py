"""From settings to the reward of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..envs.errors import ConfigError
from ..envs.rewards.base import RewardFunction
from .config import RewardConfig
from .reward_scorer import RewardScorer


def make_scorer(config: RewardConfig, reward: Any = None) -> RewardScorer | None:
    """What adds the run's reward, or None where it has none besides the environment's.

    Args:
        config: names a reward, or none.
        reward: instead of the config's: anything that `as_reward` takes.

    Raises:
        ConfigError: there is no such reward, or more than one.
    """
    if reward is not None and config.is_given:
        raise ConfigError("the settings name a reward, and another one is given as reward=; give one of them")
    if reward is None and not config.is_given:
        return None
    found = _named(config) if reward is None else _as_reward(reward)
    return RewardScorer(found, on=config.reward_on, timeout_s=config.reward_timeout_s)


def _as_reward(reward: Any) -> RewardFunction:
    from ..envs.rewards.functions import as_reward

    return as_reward(reward)


def _named(config: RewardConfig) -> RewardFunction:
    if config.remote_rm_url:
        return _remote(config)
    if config.reward_file:
        return _from_file(config, config.reward_file, flag="--reward_file", name=config.reward_function)
    from ..envs.rewards.catalog import find_reward

    assert config.reward_function is not None
    return find_reward(config.reward_function)


def _remote(config: RewardConfig) -> RewardFunction:
    urls = [part for given in config.remote_rm_url for part in given.split(",") if part]
    are_servers = [url.startswith(("http://", "https://")) for url in urls]
    if all(are_servers):
        from ..agents.remote_reward import RemoteReward

        return RemoteReward(urls, timeout_s=config.reward_timeout_s)
    if any(are_servers) or len(urls) != 1:
        raise ConfigError(f"--remote_rm_url {' '.join(urls)}: give one file, or http:// addresses alone")
    return _from_file(config, urls[0], flag="--remote_rm_url")


def _from_file(config: RewardConfig, place: str, *, flag: str, name: str | None = None) -> RewardFunction:
    from ..agents.reward_files import load_reward_file

    path, colon, in_place = place.rpartition(":")
    if colon and path.endswith(".py"):
        if name is not None and name != in_place:
            raise ConfigError(f"{flag} {place} and --reward_function {name} name two rewards; give one")
        place, name = path, in_place
    if not Path(place).is_file():
        raise ConfigError(
            f"{flag} {place}: there is no such reward file; give FILE.py, or servers as --remote_rm_url http://..."
        )
    return load_reward_file(
        place,
        name,
        num_workers=config.reward_workers,
        timeout_s=config.reward_timeout_s,
        real_imports=config.real_imports,
    )
