"""The numbers of a run: what each key means, how an update's are computed, and the file they go to.

`RUN/metrics.jsonl` holds one JSON object a line, of kind `train` after each update and `eval` after each evaluation.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from ..agents.episode import Episode
from ..agents.group import Group
from .evaluate import is_solved_at_first
from .samples import Sample

METRICS: dict[str, str] = {
    "kind": "train or eval",
    "update": "number of the update, from 0; it trains slots update * B to (update + 1) * B - 1",
    "version": "number of published updates, this one included",
    "epoch": "epoch of the update's last slot, from 0",
    "rewards": "what each trained episode earned, empty where there is none (for callbacks; not in the file)",
    "reward_mean": "mean of the episodes' summed rewards",
    "reward_std": "their standard deviation (population)",
    "reward_min": "least of them",
    "reward_max": "greatest of them",
    "score_mean": "mean of the episodes' scores in [0, 1], where there are any",
    "solved": "share of the episodes that solved their task",
    "first_attempt": "share of the episodes that solved it in their first turn",
    "turns_mean": "turns per episode",
    "turns_max": "most turns of an episode",
    "length_mean": "tokens per episode, read and sampled",
    "length_max": "most tokens of an episode",
    "action_tokens": "tokens that the policy sampled",
    "observation_tokens": "all other tokens that it read",
    "episodes": "episodes to train",
    "failed_episodes": "attempts that the infrastructure failed",
    "failures/NAME": "of these, by the error's class",
    "endings/NAME": "episodes by ending, failed attempts included",
    "forked_episodes": "episodes with more than one token record",
    "groups_short": "groups that miss members although they were refilled as often as allowed",
    "groups_without_signal": "share of the groups whose advantages are all zero",
    "reward/NAME": "_mean of each part of the reward; with --log_rewards also _std, _min, _max, and the distribution",
    "reward_of/NAME": "with --log_rewards: the same for each kind of task",
    "failed_tries": "attempts at this update of which every episode failed",
    "filtered_low": "groups replaced because their mean score was too low (dynamic filtering), or none was played",
    "filtered_high": "groups replaced because their mean score was too high",
    "loop_stall_max_s": "longest time that the event loop answered nobody while episodes were played and scored",
    "loss": "of the last optimizer step",
    "grad_norm": "of the last optimizer step, before clipping",
    "lr": "learning rate of the last optimizer step",
    "optimizer_steps": "optimizer steps taken",
    "skipped_steps": "optimizer steps skipped because something wasn't finite",
    "trained_tokens": "action tokens in the loss",
    "ratio_mean": "probability now over probability when sampled, mean over tokens",
    "ratio_max": "greatest of them",
    "clip_share": "share of the tokens whose gradient was clipped away",
    "approx_kl": "estimate of KL(sampled || policy) in nats",
    "entropy": "of the distributions that were sampled from, in nats per token",
    "mismatch_mean": "mean |logprob of the trainer - of the engine| on tokens of the present version, in nats",
    "mismatch_max": "greatest of them",
    "mismatch_share": "share of the tokens where it is above the tolerance of 1e-4",
    "staleness_max": "greatest number of versions that a trained token is behind",
    "rollout_s": "seconds to play the episodes",
    "update_s": "seconds to train on them",
    "publish_s": "seconds to publish the weights",
    "eval_s": "seconds to evaluate",
    "total_s": "seconds of the run so far, all sessions together",
    "pass@K": "eval: chance that one of K episodes solves a held-out task; with _low and _high, as all below",
    "greedy_pass@1": "eval: share of the held-out tasks solved at temperature 0",
    "reward": "eval: an episode's summed reward",
    "turns": "eval: turns per episode",
    "turns_to_solve": "eval: turns of the episodes that solve their task",
    "tasks": "eval: held-out tasks",
}
"""Key -> what it means. Times are in seconds, logprobs natural."""

_OF_CALLBACKS = frozenset({"rewards"})


def rollout_metrics(groups: Sequence[Group]) -> dict[str, Any]:
    """What the groups of one update did. A number of which there is none is left out."""
    episodes = [episode for group in groups for episode in group.episodes]
    failed = [episode for group in groups for episode in group.failed]
    metrics: dict[str, Any] = {
        "episodes": len(episodes),
        "failed_episodes": len(failed),
        "groups_short": sum(group.is_short for group in groups),
        **_counts("failures", Counter(e.failure.error for e in failed if e.failure is not None)),
        **_counts("endings", Counter(e.ending.value for e in (*episodes, *failed))),
        "rewards": [episode.reward for episode in episodes],
    }
    return metrics | (_episode_metrics(episodes) if episodes else {})


def sample_metrics(groups: Sequence[Group], samples: Sequence[Sample], *, version: int) -> dict[str, float]:
    """What the samples of one update hold; `version` is the policy's before it."""
    with_signal = {sample.slot for sample in samples if sample.advantages.any()}
    oldest = min((int(s.versions[s.loss_mask].min()) for s in samples if s.num_trained_tokens), default=version)
    return {"groups_without_signal": 1 - len(with_signal) / max(len(groups), 1), "staleness_max": version - oldest}


def filter_metrics(filtered: Sequence[Group], reward_range: tuple[float, float]) -> dict[str, int]:
    """How many groups dynamic filtering replaced, and on which side of the range they lay; nothing for none."""
    if not filtered:
        return {}
    num_high = sum(bool(group.episodes) and group_score(group) >= reward_range[1] for group in filtered)
    return {"filtered_low": len(filtered) - num_high, "filtered_high": num_high}


def group_score(group: Group) -> float:
    """The mean over a group's episodes of their score, or of their summed reward where there is none."""
    return fmean(episode.reward if episode.score is None else episode.score for episode in group.episodes)


def _episode_metrics(episodes: Sequence[Episode]) -> dict[str, Any]:
    rewards = [episode.reward for episode in episodes]
    scores = [episode.score for episode in episodes if episode.score is not None]
    turns = [len(episode.turns) for episode in episodes]
    lengths = [sum(len(record) for record in episode.records) for episode in episodes]
    num_action_tokens = sum(episode.num_action_tokens for episode in episodes)
    metrics: dict[str, Any] = {
        "reward_mean": fmean(rewards),
        "reward_std": pstdev(rewards),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "turns_mean": fmean(turns),
        "turns_max": max(turns),
        "length_mean": fmean(lengths),
        "length_max": max(lengths),
        "action_tokens": num_action_tokens,
        "observation_tokens": sum(lengths) - num_action_tokens,
        "forked_episodes": sum(len(episode.records) > 1 for episode in episodes),
    }
    if scores:
        metrics["score_mean"] = fmean(scores)
        metrics["solved"] = fmean(episode.is_solved for episode in episodes)
        metrics["first_attempt"] = fmean(map(is_solved_at_first, episodes))
    return metrics


def _counts(name: str, counts: Mapping[str, int]) -> dict[str, int]:
    return {f"{name}/{key}": counts[key] for key in sorted(counts)}


class MetricsFile:
    """Appends a run's metrics, line by line.

    Args:
        path: the file; it is made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Append one line. A number that isn't finite becomes null."""
        row = {key: _finite(value) for key, value in metrics.items() if key not in _OF_CALLBACKS}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines; one that was cut off while it was written is left out."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def cut_back(self, version: int) -> None:
        """Drop everything after a version: what a resumed run does again."""
        rows = [row for row in self.read() if row["version"] <= version]
        temporary = self.path.with_suffix(".part")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
