"""Trying attacks on a reward: the best that each earns, next to what honest responses earn."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import RewardError
from .attacks import Attack, known_attacks, words_of
from .base import RewardFunction, label_of
from .combined import Scored, compares_episodes
from .examples import RewardCase, score_cases
from .scoring import score_group

_CALLS_AT_ONCE = 4
_FORM = "The answer is [NUM]."

BUILT_IN_CASES: tuple[RewardCase, ...] = tuple(
    RewardCase(
        line=line,
        prompt=prompt,
        response=f"{steps} The answer is {answer}.",
        label=str(answer),
        columns={"format": _FORM, "numbers": [answer]},
    )
    for line, (prompt, steps, answer) in enumerate(
        [
            ("Calculate 18 + 27.", "18 + 27 = 45.", 45),
            ("A shelf has 7 rows of 19 books. How many books are that?", "7 rows of 19 books are 133 books.", 133),
            ("Natalia sold 48 clips in April and half as many in May. How many in all?", "48 + 24 = 72.", 72),
            ("What is three quarters of 1000?", "A quarter of 1000 is 250, and 3 * 250 = 750.", 750),
        ],
        start=1,
    )
)
"""What attacks are tried on where no examples are given: labels, a format and honest responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """What an attack came to.

    Attributes:
        attack: the attack; None stands for the honest responses.
        rewards: what its responses earned, those that could be scored; see `AttackReport.by_score`.
        best: the greatest of them; None where none could be scored.
        response: the response that earned the most.
        errors: what scoring the others failed with.
    """

    attack: Attack | None
    rewards: tuple[float, ...]
    best: float | None
    response: str
    errors: tuple[RewardError, ...]

    @property
    def name(self) -> str:
        """The attack's name."""
        return "honest" if self.attack is None else self.attack.name

    @property
    def num_tried(self) -> int:
        """How many of its responses there were."""
        return len(self.rewards) + len(self.errors)

    @property
    def mean(self) -> float | None:
        """What its responses earned on average, failed ones left out; None where none could be scored."""
        return statistics.fmean(self.rewards) if self.rewards else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackReport:
    """What all attacks came to.

    Attributes:
        name: the reward's name.
        honest: what the examples' own responses earned; without any it has no rewards and no errors.
        results: the attacks, the one that earned the most first.
        by_score: whether scores stand for what was earned: of a reward that compares episodes and gives scores, whose
            rewards say only which of them is better.
    """

    name: str
    honest: AttackResult
    results: tuple[AttackResult, ...]
    by_score: bool = False

    @property
    def unknown(self) -> tuple[AttackResult, ...]:
        """The attacks none of whose responses could be scored."""
        return tuple(result for result in self.results if result.errors and not result.rewards)

    @property
    def is_known(self) -> bool:
        """Whether any attack could be scored."""
        return any(result.rewards for result in self.results)

    def winners(self, threshold: float) -> tuple[AttackResult, ...]:
        """The attacks that earned at least this much."""
        return tuple(result for result in self.results if result.best is not None and result.best >= threshold)


async def try_attacks(
    reward: RewardFunction,
    cases: Sequence[RewardCase] = BUILT_IN_CASES,
    *,
    attacks: Sequence[Attack] | None = None,
    timeout_s: float | None = None,
    seed: int = 0,
) -> AttackReport:
    """Try attacks on a reward.

    A reward that compares episodes gets each attack's response in a group with the honest one.

    Args:
        reward: what is attacked.
        cases: the prompts, with labels and maybe honest responses.
        attacks: what is tried; by default every known attack, with the words that the reward was made with.
        timeout_s: seconds that each call may take, or None.
        seed: what the attacks draw from.
    """
    attacks = known_attacks(words_of(reward)) if attacks is None else attacks
    honest_cases = [case for case in cases if case.response is not None]
    honest = await score_cases(reward, honest_cases, timeout_s=timeout_s)
    free = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def tried(attack: Attack) -> tuple[Attack, list[tuple[str, Scored]]]:
        pairs: list[tuple[str, Scored]] = []
        for case in cases:
            rng = random.Random(f"{seed} {attack.name} {case.line}")
            responses = attack.make(case.prompt, case.label, case.columns, rng)
            async with free:
                pairs += zip(responses, await _score(reward, case, responses, timeout_s), strict=True)
        return attack, pairs

    async with asyncio.TaskGroup() as together:
        tasks = [together.create_task(tried(attack)) for attack in attacks]
    found = [task.result() for task in tasks]
    honest_pairs = [(case.response or "", scored) for case, scored in zip(honest_cases, honest, strict=True)]
    every = [scored for _, pairs in (*found, (None, honest_pairs)) for _, scored in pairs]
    by_score = compares_episodes(reward) and _have_scores(every)
    results = [_result(attack, pairs, by_score=by_score) for attack, pairs in found]
    return AttackReport(
        name=label_of(reward),
        honest=_result(None, honest_pairs, by_score=by_score),
        by_score=by_score,
        results=tuple(sorted(results, key=lambda result: (result.best is None, -(result.best or 0)))),
    )


async def _score(
    reward: RewardFunction, case: RewardCase, responses: Sequence[str], timeout_s: float | None
) -> list[Scored]:
    trajectories = [case.trajectory(response) for response in responses]
    if not compares_episodes(reward):
        return await score_group(reward, trajectories, timeout_s=timeout_s)
    others = [] if case.response is None else [case.trajectory()]
    async with asyncio.TaskGroup() as together:
        scoring = [
            together.create_task(score_group(reward, [one, *others], timeout_s=timeout_s)) for one in trajectories
        ]
    return [task.result()[0] for task in scoring]


def _have_scores(every: Sequence[Scored]) -> bool:
    outputs = [scored for scored in every if not isinstance(scored, RewardError)]
    return bool(outputs) and all(output.score is not None for output in outputs)


def _result(attack: Attack | None, pairs: Sequence[tuple[str, Scored]], *, by_score: bool) -> AttackResult:
    earned = [
        (response, scored.score if by_score and scored.score is not None else scored.reward)
        for response, scored in pairs
        if not isinstance(scored, RewardError)
    ]
    response, best = max(earned, key=lambda pair: pair[1], default=("", None))
    return AttackResult(
        attack=attack,
        rewards=tuple(reward for _, reward in earned),
        best=best,
        response=response,
        errors=tuple(scored for _, scored in pairs if isinstance(scored, RewardError)),
    )
