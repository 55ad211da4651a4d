"""Evaluation on held-out tasks: mean reward, pass@k, turns, each with its 95 % confidence interval.

Tasks whose episodes crashed stay in the denominator of every share: what wasn't played wasn't solved. Rewards and turns
are means over what was played. A task's episodes are averaged first, so that the interval is over tasks.

Sources:
    Chen, M. et al. (2021). Evaluating large language models trained on code (pass@k). https://arxiv.org/abs/2107.03374
    Wilson, E. B. (1927). Probable inference, the law of succession, and statistical inference.
        https://doi.org/10.1080/01621459.1927.10502953
    Efron, B. (1979). Bootstrap methods: another look at the jackknife. https://doi.org/10.1214/aos/1176344552
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from ..agents.episode import Episode
from ..agents.executor import AgentExecutor
from ..agents.group import Group
from ..envs.errors import DataError
from ..envs.sampling import SamplingParams
from ..envs.tasks import Task, TaskSource
from .config import EvalConfig
from .reward_scorer import RewardScorer
from .together import run_together

NUM_RESAMPLES = 2000
"""Bootstrap resamples: the ends of a 95 % interval then move by about 0.02 of its width from seed to seed."""
Z_95 = 1.959964
"""The normal distribution's 0.975 quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """What an evaluation found. Where no episode has a score, nothing is known about solving: those fields are empty.

    Attributes:
        num_tasks: held-out tasks.
        num_episodes: episodes asked for, greedy ones not counted.
        num_failed: of these, the ones that the infrastructure failed for good.
        reward: an episode's summed reward.
        pass_at: k -> the chance that at least one of k episodes solves a task.
        first_attempt: share of the episodes that solve their task in the first turn.
        turns: turns of an episode.
        turns_to_solve: turns of the episodes that solve their task.
        greedy_pass_at_1: share of the tasks solved at temperature 0, where that was asked for.
    """

    num_tasks: int
    num_episodes: int
    num_failed: int
    reward: Estimate
    pass_at: dict[int, Estimate] = field(default_factory=dict)
    first_attempt: Estimate | None = None
    turns: Estimate
    turns_to_solve: Estimate | None = None
    greedy_pass_at_1: Estimate | None = None

    def estimates(self) -> dict[str, Estimate]:
        """What is known, by name."""
        named = {
            **{f"pass@{k}": estimate for k, estimate in self.pass_at.items()},
            "greedy_pass@1": self.greedy_pass_at_1,
            "first_attempt": self.first_attempt,
            "reward": self.reward,
            "turns": self.turns,
            "turns_to_solve": self.turns_to_solve,
        }
        return {name: estimate for name, estimate in named.items() if estimate is not None}

    def metrics(self) -> dict[str, float]:
        """Numbers to log: each mean, with the ends of its interval as `NAME_low` and `NAME_high`."""
        numbers: dict[str, float] = {}
        for name, estimate in self.estimates().items():
            numbers |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return {**numbers, "tasks": self.num_tasks, "episodes": self.num_episodes, "failed_episodes": self.num_failed}


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """The chance that at least one of k samples solves a task, without bias: 1 - C(n-c, k) / C(n, k).

    >>> pass_at_k(4, 1, 2)
    0.5

    Args:
        num_samples: n, at least k.
        num_solved: c.
        k: samples that are allowed.

    Source:
        Chen, M. et al. (2021). https://arxiv.org/abs/2107.03374
    """
    if not 1 <= k <= num_samples or not 0 <= num_solved <= num_samples:
        raise ValueError(f"pass@{k} of {num_solved} solved among {num_samples}; it needs 1 <= k <= n and 0 <= c <= n")
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)


def estimate(values: Sequence[float], *, is_share_of_single_trials: bool = False) -> Estimate:
    """The mean of one value per task, with a 95 % interval: Wilson's for single yes-or-no trials, else the bootstrap's.

    Args:
        values: one per task.
        is_share_of_single_trials: whether each value is one trial, 0 or 1.
    """
    mean = fmean(values) if values else math.nan
    if is_share_of_single_trials and values:
        low, high = wilson_interval(round(sum(values)), len(values))
    elif values:
        array = np.asarray(values, dtype=np.float64)
        chosen = np.random.default_rng(0).integers(len(array), size=(NUM_RESAMPLES, len(array)))
        low, high = np.quantile(array[chosen].mean(axis=1), [0.025, 0.975]).tolist()
    else:
        low = high = math.nan
    return Estimate(mean=mean, low=low, high=high)


def wilson_interval(num_yes: int, num_trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> low, high = wilson_interval(0, 10)
    >>> round(low, 3), round(high, 3)
    (0.0, 0.278)
    """
    share, z2 = num_yes / num_trials, Z_95**2
    centre = (share + z2 / (2 * num_trials)) / (1 + z2 / num_trials)
    spread = Z_95 / (1 + z2 / num_trials) * math.sqrt(share * (1 - share) / num_trials + z2 / (4 * num_trials**2))
    return max(0.0, min(share, centre - spread)), min(1.0, max(share, centre + spread))


def held_out_tasks(tasks: TaskSource, num_tasks: int) -> list[Task]:
    """The first tasks held out, none of them twice; fewer where there are no more.

    Raises:
        DataError: none is held out.
    """
    held_out = tasks.split("held_out")
    size = held_out.num_tasks
    found: dict[str, Task] = {}
    for index in range(20 * num_tasks if size is None else size):
        task = held_out.task(index)
        found.setdefault(repr(sorted(task.options.items())), task)
        if len(found) == num_tasks:
            break
    if not found:
        raise DataError("no tasks are held out, so that nothing can be evaluated; give more rows, or --eval_steps -1")
    return list(found.values())


async def evaluate(
    executor: AgentExecutor,
    tasks: Sequence[Task],
    config: EvalConfig,
    *,
    sampling: SamplingParams,
    concurrency: int = 256,
    prefix: str = "eval-",
    scorer: RewardScorer | None = None,
    version: int = 0,
) -> tuple[EvalReport, list[Episode]]:
    """Play held-out tasks. The same weights give the same report: seeds follow from task and member alone.

    Args:
        executor: plays the episodes.
        tasks: what to play.
        config: how often, and at which temperature.
        sampling: parameters of each turn; the temperature is the config's.
        concurrency: episodes at once.
        prefix: put before the episodes' ids.
        scorer: adds a reward to what the environment gave, or None.
        version: updates that the policy has had.

    Returns:
        The report, and every episode.
    """
    size = config.eval_n_samples_per_prompt
    sampled = replace(sampling, temperature=config.eval_temperature)

    async def play(size: int, sampling: SamplingParams, prefix: str) -> list[Group]:
        async def play_group(slot: int) -> Group:
            group = await executor.run_group(tasks[slot], size, slot=slot, sampling=sampling, prefix=prefix)
            return group if scorer is None else await scorer.score(group, update=version)

        groups: list[Group] = []
        at_once = max(1, concurrency // size)
        for start in range(0, len(tasks), at_once):
            groups += await run_together(play_group(slot) for slot in range(len(tasks))[start : start + at_once])
        return groups

    await executor.start()
    groups = await play(size, sampled, prefix)
    greedy: list[Group] = []
    if config.eval_greedy:
        greedy = await play(1, replace(sampling, temperature=0.0), f"{prefix}greedy-")
    episodes = [episode for group in (*groups, *greedy) for episode in (*group.episodes, *group.failed)]
    return report(groups, greedy), episodes


def report(groups: Sequence[Group], greedy: Sequence[Group] = ()) -> EvalReport:
    """What groups of held-out tasks show."""
    size = groups[0].size
    played = [group.episodes for group in groups if group.episodes]
    is_single = size == 1
    found = EvalReport(
        num_tasks=len(groups),
        num_episodes=size * len(groups),
        num_failed=sum(group.size - len(group.episodes) for group in groups),
        reward=estimate([fmean(e.reward for e in episodes) for episodes in played]),
        turns=estimate([fmean(len(e.turns) for e in episodes) for episodes in played]),
    )
    if all(e.score is None for episodes in played for e in episodes):
        return found
    num_solved = [sum(e.is_solved for e in group.episodes) for group in groups]
    num_first = [sum(is_solved_at_first(e) for e in group.episodes) for group in groups]
    to_solve = [[len(e.turns) for e in episodes if e.is_solved] for episodes in played]
    return replace(
        found,
        pass_at={
            k: estimate([pass_at_k(size, solved, k) for solved in num_solved], is_share_of_single_trials=is_single)
            for k in _ks(size)
        },
        first_attempt=estimate([solved / size for solved in num_first], is_share_of_single_trials=is_single),
        turns_to_solve=estimate([fmean(turns) for turns in to_solve if turns]) if any(to_solve) else None,
        greedy_pass_at_1=estimate(
            [float(any(e.is_solved for e in group.episodes)) for group in greedy], is_share_of_single_trials=True
        )
        if greedy
        else None,
    )


def is_solved_at_first(episode: Episode) -> bool:
    """Whether the first turn solved the task."""
    return bool(episode.turns) and episode.turns[0].score == 1


def _ks(size: int) -> list[int]:
    """1, 2, 4, ... and the number of samples itself."""
    return sorted({*(2**i for i in range(size.bit_length()) if 2**i <= size), size})
