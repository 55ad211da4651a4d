"""Rewards that see the whole group: a tournament, a ranking, a penalty for being like the others."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from ..errors import ConfigError, InvalidRewardError, RewardError
from ..threads import run_in_thread
from .arguments import number
from .arrays import as_floats
from .base import Clip, GroupReward
from .combined import CombinedReward, Scored, Steps, part_metadata
from .functions import as_reward
from .pairings import content_key, pairings
from .similarity import jaccard, word_ngrams
from .types import RewardOutput, Trajectory, as_finite

Compare = Callable[[Trajectory, Trajectory], float | Awaitable[float]]
"""The probability that the first trajectory is better than the second; 0.5 is a tie."""


class PairwiseReward(GroupReward):
    r"""The share of its siblings that a response beats, by comparisons in pairs.

        reward = mean over siblings j of P(this is better than j), in [0, 1]

    `compare(a, b)` gives the probability that `a` is better, in [0, 1]; 0.5 is a tie. It may be async, so that a judge
    makes a tournament:

        async def compare(a, b):
            question = f"Which answer is better, A or B? Say one letter.\n\nA:\n{a.response}\n\nB:\n{b.response}"
            asked = [{"role": "user", "content": question}]
            said = await client.chat.completions.create(model="...", messages=asked)
            return {"A": 1.0, "B": 0.0}[said.choices[0].message.content.strip()]

        reward = PairwiseReward(compare, num_rounds=3)

    A plain `def` is called on threads. With `both_orders` each pair is asked as (a, b) and (b, a), and the mean is
    taken, so that a judge's liking for the first place cancels out: n * (n - 1) calls for n different responses, and
    half of it without. `num_rounds` bounds them to n * num_rounds. Responses of the same text tie without being
    compared, and are compared with the others once. Who meets whom depends on the texts and the seed only, and not on
    their order.

    A comparison that raises is left out. A response fails where fewer than `min_comparisons` of its siblings were
    compared with it. A group of one gets 0.5.

    >>> import asyncio
    >>> reward = PairwiseReward(lambda a, b: float(len(a.response) > len(b.response)))
    >>> group = [Trajectory(response=text) for text in ("a", "bbb", "cc")]
    >>> [output.reward for output in asyncio.run(reward.compute_rewards(group))]
    [0.0, 1.0, 0.5]

    Args:
        compare: compares two trajectories.
        both_orders: whether each pair is asked in both orders.
        num_rounds: how many siblings a response meets at most; None is all of them.
        min_comparisons: fewest siblings that a response must have been compared with, or all that it was to meet.
        max_concurrency: comparisons of a group that run at a time.
        timeout_s: seconds that a call of `compare` may take, or None.
        seed: decides who meets whom, and who comes first.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: an argument can't be used.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        compare: Compare,
        both_orders: bool = True,
        num_rounds: int | None = None,
        *,
        min_comparisons: int = 1,
        max_concurrency: int = 8,
        timeout_s: float | None = None,
        seed: int = 0,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        if not callable(compare):
            raise ConfigError(f"compare={compare!r} must be a function of two trajectories")
        if num_rounds is not None:
            _at_least(num_rounds, "num_rounds", 2, "; with one round, one of an odd group would meet nobody")
        self.compare = compare
        self.both_orders = both_orders
        self.num_rounds = num_rounds
        self.min_comparisons = _at_least(min_comparisons, "min_comparisons", 1)
        self.max_concurrency = _at_least(max_concurrency, "max_concurrency", 1)
        self.timeout_s = None if timeout_s is None else number(timeout_s, "timeout_s", above=0)
        self.seed = seed

    async def compute_rewards(self, trajectories: Sequence[Trajectory]) -> Sequence[Scored]:
        """Each trajectory's share of siblings beaten, or the error of one that was compared too rarely.

        Raises:
            InvalidRewardError: `compare` gave something that is no probability.
        """
        keys = [content_key(trajectory, self.seed) for trajectory in trajectories]
        by_key = dict(zip(reversed(keys), reversed(trajectories), strict=True))
        players = sorted(by_key)
        pairs = [(players[i], players[j]) for i, j in pairings(len(players), self.num_rounds)]
        limit = asyncio.Semaphore(self.max_concurrency)
        async with asyncio.TaskGroup() as together:
            tasks = [together.create_task(self._meet(by_key[a], by_key[b], limit)) for a, b in pairs]
        met: defaultdict[str, dict[str, float | RewardError]] = defaultdict(dict)
        for (a, b), task in zip(pairs, tasks, strict=True):
            outcome = task.result()
            if isinstance(outcome, InvalidRewardError):
                raise outcome
            met[a][b] = outcome
            met[b][a] = outcome if isinstance(outcome, RewardError) else 1 - outcome
        copies = Counter(keys)
        shares = {key: self._share(met[key], key, copies) for key in players}
        return [_copy_of(shares[key]) for key in keys]

    async def _meet(self, a: Trajectory, b: Trajectory, limit: asyncio.Semaphore) -> float | RewardError:
        """The probability that `a` is better, or why it isn't known."""
        try:
            first = await self._ask(a, b, limit)
            return 0.5 + (first - await self._ask(b, a, limit)) / 2 if self.both_orders else first
        except RewardError as error:
            return error
        except TimeoutError as error:
            return RewardError(str(error) or "TimeoutError")
        except Exception as error:  # noqa: BLE001 - the user's own, of any class
            failure = RewardError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure

    async def _ask(self, a: Trajectory, b: Trajectory, limit: asyncio.Semaphore) -> float:
        async with limit:
            clock = asyncio.timeout(self.timeout_s)
            try:
                async with clock:
                    is_async = inspect.iscoroutinefunction(self.compare)
                    given: Any = self.compare(a, b) if is_async else await run_in_thread(self.compare, a, b)
                    given = await given if inspect.isawaitable(given) else given
            except TimeoutError:
                if clock.expired():
                    raise RewardError(f"compare took longer than {self.timeout_s:g} s") from None
                raise
        probability = as_finite(given, "compare's result")
        if not 0 <= probability <= 1:
            raise InvalidRewardError(
                f"compare gave {probability:g}; it must be the probability that the first is better, in [0, 1]"
            )
        return probability

    def _share(self, met: dict[str, float | RewardError], key: str, copies: Counter[str]) -> Scored:
        known = {sibling: share for sibling, share in met.items() if not isinstance(share, RewardError)}
        num_known = sum(copies[sibling] for sibling in known)
        num_due = sum(copies[sibling] for sibling in met)
        if num_known < min(self.min_comparisons, num_due):
            reason = next(error for _, error in sorted(met.items()) if isinstance(error, RewardError))
            return RewardError(
                f"it was compared with {num_known} of {num_due} siblings, and at least "
                f"{min(self.min_comparisons, num_due)} are wanted; the first failure: {reason}"
            )
        num_siblings = copies.total() - 1
        num_same = copies[key] - 1
        beaten = math.fsum(copies[sibling] * share for sibling, share in known.items()) / max(num_known, 1)
        reward = (beaten * (num_siblings - num_same) + 0.5 * num_same) / num_siblings if num_siblings else 0.5
        metadata = {"compared": num_known, "failed": num_due - num_known, "copies": num_same}
        return RewardOutput(reward=min(max(reward, 0.0), 1.0), metadata=metadata)


class RankingReward(CombinedReward):
    """The place within the group: 1 for the best, 0 for the worst, and equal steps between.

        reward = (worse + equal / 2) / (n - 1), over the n - 1 siblings

    Ties share the mean of their places; a group of one gets 0.5. Best where a reward's order means something and its
    size doesn't, as with a reward model's raw logits. Episodes whose scoring failed count for nothing. The score stays
    what it was, token rewards are left out, and `metadata` holds what was ranked.

    >>> reward = RankingReward(lambda response: float(len(response)))
    >>> group = [Trajectory(response=text) for text in ("a", "bbb", "cc", "cc")]
    >>> [output.reward for output in reward.compute_rewards(group)]
    [0.0, 1.0, 0.5, 0.5]

    Args:
        reward: whatever `as_reward` takes; or
        rank: a function of all trajectories that gives one number for each, the higher the better; may be async.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: not exactly one of `reward` and `rank` is given.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        reward: Any = None,
        *,
        rank: Callable[[Sequence[Trajectory]], Any] | None = None,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        if (reward is None) == (rank is None):
            raise ConfigError("give either a reward to rank by, or rank=, a function of all trajectories")
        part = as_reward(reward) if rank is None else _Standings(rank)
        super().__init__({part.name: part}, name, scale, clip)

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The place of each trajectory."""
        ((name, part),) = self.rewards.items()
        (given,) = yield [(part, trajectories)]
        values = sorted(output.reward for output in given if isinstance(output, RewardOutput))
        first = {value: place for place, value in reversed(list(enumerate(values)))}
        counts = Counter(values)
        rewards: list[Scored] = []
        for output in given:
            if isinstance(output, RewardOutput):
                place = first[output.reward] + (counts[output.reward] - 1) / 2
                score = output.reward if output.score is None and not isinstance(part, _Standings) else output.score
                reward = place / (len(values) - 1) if len(values) > 1 else 0.5
                output = RewardOutput(reward=reward, metadata=part_metadata(name, output), score=score)
            rewards.append(output)
        return rewards


class _Standings(GroupReward):
    """A function of all trajectories that says how they stand."""

    def __init__(self, rank: Callable[[Sequence[Trajectory]], Any]) -> None:
        super().__init__("rank")
        if not callable(rank):
            raise ConfigError(f"rank={rank!r} must be a function of a list of trajectories")
        self.rank = rank

    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> Any:
        given = self.rank(trajectories)
        if inspect.isawaitable(given):
            return self._later(given, len(trajectories))
        return as_floats(given, len(trajectories), "rank's result")

    async def _later(self, given: Awaitable[Any], count: int) -> list[float]:
        return as_floats(await given, count, "rank's result")


class DiversityPenalty(GroupReward):
    """A penalty for being like one's siblings, to be added to other rewards.

        reward = -weight * similarity to the sibling that is most alike (or the mean over siblings), in [-weight, 0]

    By default two responses are as similar as the share of word trigrams that they have in common (Jaccard), which
    takes time linear in their lengths. Responses of the same text are wholly similar, whatever the measure; a response
    that is alone gets 0. `metadata` holds the similarity.

    >>> group = [Trajectory(response=text) for text in ("It is 4.", "It is 4.", "Two and two make four.")]
    >>> [output.reward for output in DiversityPenalty(weight=0.5).compute_rewards(group)]
    [-0.5, -0.5, 0.0]

    Args:
        similarity: of two responses, given as texts, in [0, 1]; taken to be the same in both orders, and asked once.
        weight: the greatest penalty.
        over: whether the sibling that is most alike counts (`max`), or the mean over all of them (`mean`).
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: an argument can't be used.
    """

    def __init__(
        self,
        similarity: Callable[[str, str], float] | None = None,
        weight: float = 1.0,
        over: Literal["max", "mean"] = "max",
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        if over not in ("max", "mean"):
            raise ConfigError(f"over={over!r} must be 'max' or 'mean'")
        if similarity is not None and not callable(similarity):
            raise ConfigError(f"similarity={similarity!r} must be a function of two texts")
        self.similarity = similarity
        self.weight = number(weight, "weight", least=0)
        self.over = over
        self.reward_range = (-self.weight, 0.0)

    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> list[RewardOutput]:
        """Each trajectory's penalty.

        Raises:
            InvalidRewardError: `similarity` gave something else than a number in [0, 1].
        """
        copies = Counter(trajectory.response for trajectory in trajectories)
        alike = self._similarities(sorted(copies))
        penalties: dict[str, RewardOutput] = {}
        for text, count in copies.items():
            if self.over == "max":
                similarity = 1.0 if count > 1 else max(alike[text].values(), default=0.0)
            else:
                total = math.fsum(copies[other] * share for other, share in alike[text].items()) + count - 1
                similarity = min(total / max(copies.total() - 1, 1), 1.0)
            penalties[text] = RewardOutput(reward=0.0 - self.weight * similarity, metadata={"similarity": similarity})
        return [_copy_of(penalties[trajectory.response]) for trajectory in trajectories]

    def _similarities(self, texts: Sequence[str]) -> dict[str, dict[str, float]]:
        """For each text its similarity to every other."""
        grams = {text: word_ngrams(text) for text in texts} if self.similarity is None else {}
        alike: dict[str, dict[str, float]] = {text: {} for text in texts}
        for i, j in pairings(len(texts)):
            a, b = texts[i], texts[j]
            given = jaccard(grams[a], grams[b]) if self.similarity is None else self.similarity(a, b)
            share = as_finite(given, "similarity's result")
            if not 0 <= share <= 1:
                raise InvalidRewardError(f"similarity gave {share:g}; it must be in [0, 1]")
            alike[a][b] = alike[b][a] = share
        return alike


def _copy_of(scored: Any) -> Any:
    """An output of its own for each of several that share one."""
    if isinstance(scored, RewardOutput):
        return RewardOutput(reward=scored.reward, metadata=scored.metadata)
    return scored


def _at_least(value: Any, name: str, least: int, why: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be an integer of at least {least}{why}")
    return value
