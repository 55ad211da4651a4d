"""Which credit formulas estimate the gradient of the expected return without bias, by exact enumeration in float64.

The problem: at most three turns of two tokens. The first token picks one of two moves, the second decides whether to
go on (after the third turn the episode ends anyway). What a token or a turn earns depends on all that was sampled up to
it. The policy is a table of logits. Every group of n episodes is enumerated with its probability and goes through the
shipped `group_advantages`; the expected sum of `advantage * grad log probability` is compared with the gradient of the
expected return.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from turngym.agents import Ending, Episode, EpisodeBuilder
from turngym.agents.engine import Generation, VersionSpan
from turngym.envs.sampling import SamplingParams
from turngym.trainer.advantages import group_advantages, whiten

MAX_TURNS = 3
GO_ON = 1


@dataclass(frozen=True)
class Trajectory:
    """Everything the policy sampled in an episode, and what the turns and tokens earned."""

    tokens: tuple[int, ...]
    rewards: tuple[float, ...]
    token_rewards: tuple[tuple[float, float], ...]

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        return [self.tokens[:k] for k in range(len(self.tokens))]


def eighths(value: float) -> float:
    """Rounded to a number that float32, which token rewards are stored in, holds exactly."""
    return round(value * 8) / 8


def trajectories(*, token_rewards: bool) -> list[Trajectory]:
    rng = np.random.default_rng(3)
    found = []

    def extend(before: Trajectory) -> None:
        for move in (0, 1):
            of_move = eighths(rng.normal(0.5))
            for decision in (0, 1):
                reward, of_decision = rng.normal(1.0), eighths(rng.normal(0.5))
                after = Trajectory(
                    (*before.tokens, move, decision),
                    (*before.rewards, reward),
                    (*before.token_rewards, (of_move, of_decision) if token_rewards else (0.0, 0.0)),
                )
                if decision == GO_ON and len(after.rewards) < MAX_TURNS:
                    extend(after)
                else:
                    found.append(after)

    extend(Trajectory((), (), ()))
    return found


def as_episode(trajectory: Trajectory) -> Episode:
    builder = EpisodeBuilder(episode_id=str(trajectory.tokens), task_id="task")
    for t, reward in enumerate(trajectory.rewards):
        builder.observe([9])
        tokens = trajectory.tokens[2 * t : 2 * t + 2]
        builder.act(
            Generation(token_ids=tokens, logprobs=(-1.0, -1.0), finish_reason="stop", versions=(VersionSpan(0, 2),)),
            sampling=SamplingParams(),
            text="",
        )
        builder.feed_back(reward=reward, token_rewards=trajectory.token_rewards[t])
    return builder.finish(Ending.TERMINATED)


class Problem:
    """All episodes, a policy, and the gradient of its expected return."""

    def __init__(self, *, token_rewards: bool) -> None:
        self.trajectories = trajectories(token_rewards=token_rewards)
        contexts = sorted({context for t in self.trajectories for context in t.contexts})
        self.row = {context: i for i, context in enumerate(contexts)}
        rng = np.random.default_rng(5)
        self.logits = torch.tensor(rng.normal(size=(len(contexts), 2)), requires_grad=True)
        logprobs = self.logits.log_softmax(-1)
        log_probability = [
            sum(logprobs[self.row[context], token] for context, token in zip(t.contexts, t.tokens, strict=True))
            for t in self.trajectories
        ]
        probability = torch.stack([torch.as_tensor(value).exp() for value in log_probability])
        self.probability = probability.detach().numpy()
        returns = [sum(t.rewards) + sum(map(sum, t.token_rewards)) for t in self.trajectories]
        (gradient,) = torch.autograd.grad((probability * torch.tensor(returns, dtype=torch.float64)).sum(), self.logits)
        self.true_gradient = gradient.numpy()

    def expected_gradient(self, advantages, *, group_size: int) -> np.ndarray:
        """Expectation over all groups of the mean over a group's episodes of `sum of advantage * grad log prob`.

        Args:
            advantages: from a tuple of trajectories' indices to one array [2 * turns] for each.
            group_size: n.
        """
        weight = np.zeros(self.logits.shape)
        for group in combinations_with_replacement(range(len(self.trajectories)), group_size):
            orders = math.factorial(group_size) / math.prod(math.factorial(n) for n in Counter(group).values())
            probability = orders * math.prod(self.probability[i] for i in group)
            for i, values in zip(group, advantages(group), strict=True):
                t = self.trajectories[i]
                for context, token, value in zip(t.contexts, t.tokens, values, strict=True):
                    weight[self.row[context], token] += probability * value / group_size
        surrogate = (torch.tensor(weight) * self.logits.log_softmax(-1)).sum()
        (gradient,) = torch.autograd.grad(surrogate, self.logits)
        return gradient.numpy()

    def shipped(self, *, group_size: int, whitens: bool = False, **options) -> np.ndarray:
        """The expected gradient of the shipped formulas."""
        episodes = [as_episode(t) for t in self.trajectories]

        def advantages(group):
            arrays = [a for (a,) in group_advantages([episodes[i] for i in group], **options)]
            masks = [episodes[i].records[0].action_mask for i in group]
            if whitens:
                arrays = whiten(arrays, masks)
            return [a[mask] for a, mask in zip(arrays, masks, strict=True)]

        return self.expected_gradient(advantages, group_size=group_size)


@cache
def problem(*, token_rewards: bool = False) -> Problem:
    return Problem(token_rewards=token_rewards)


def bias(found: np.ndarray, true: np.ndarray) -> float:
    """Size of what is left of the truth's direction, relative to the truth: 0 for any multiple of it."""
    scale = (found * true).sum() / (true * true).sum()
    return float(np.linalg.norm(found / scale - true) / np.linalg.norm(true))


def test_the_problem_has_episodes_of_every_length_that_the_policy_chooses():
    lengths = Counter(len(t.rewards) for t in problem().trajectories)
    assert lengths == {1: 2, 2: 4, 3: 16}
    assert problem().probability.sum() == pytest.approx(1, abs=1e-12)
    assert np.linalg.norm(problem().true_gradient) > 0.1


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize(("estimator", "ended"), [("reinforce", "zero"), ("rloo", "zero"), ("rloo", "reached")])
def test_the_leave_one_out_baseline_of_each_turn_is_exactly_unbiased(estimator, ended, group_size):
    found = problem().shipped(group_size=group_size, estimator=estimator, ended=ended, credit="turn")
    np.testing.assert_allclose(found, problem().true_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("credit", ["episode", "token"])
@pytest.mark.parametrize("ended", ["zero", "reached"])
def test_episode_and_token_credit_are_exactly_unbiased_with_token_rewards(credit, ended):
    with_tokens = problem(token_rewards=True)
    found = with_tokens.shipped(group_size=2, estimator="rloo", ended=ended, credit=credit)
    np.testing.assert_allclose(found, with_tokens.true_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("estimator", ["reinforce_baseline", "dr_grpo"])
def test_a_mean_with_oneself_only_scales_the_gradient_where_ended_siblings_count_as_zero(estimator):
    found = problem().shipped(group_size=3, estimator=estimator, ended="zero", credit="turn")
    np.testing.assert_allclose(found, problem().true_gradient * 2 / 3, rtol=0, atol=1e-10)


def test_a_mean_with_oneself_over_those_that_reached_the_turn_shrinks_each_turn_differently():
    found = problem().shipped(group_size=3, estimator="dr_grpo", ended="reached", credit="turn")
    assert bias(found, problem().true_gradient) > 0.05


@pytest.mark.parametrize(("credit", "ended"), [("episode", "zero"), ("turn", "zero"), ("turn", "reached")])
def test_dividing_by_the_deviation_is_biased(credit, ended):
    found = problem().shipped(group_size=3, estimator="group_norm", ended=ended, credit=credit)
    assert bias(found, problem().true_gradient) > 0.05


def test_whitening_is_biased():
    found = problem().shipped(group_size=2, estimator="reinforce", credit="turn", whitens=True)
    assert bias(found, problem().true_gradient) > 0.05


def test_centring_the_rewards_of_each_turn_and_then_summing_is_biased():
    # The tempting formula, which is not shipped: subtract from each reward the others' mean reward in that turn, then
    # sum what is to come. How many means are subtracted then depends on the policy's decision to go on.
    def advantages(group):
        rewards = np.zeros((len(group), MAX_TURNS))
        for row, i in enumerate(group):
            found = problem().trajectories[i].rewards
            rewards[row, : len(found)] = found
        centred = rewards - (rewards.sum(0) - rewards) / (len(group) - 1)
        values = []
        for row, i in enumerate(group):
            num_turns = len(problem().trajectories[i].rewards)
            to_come = centred[row, :num_turns][::-1].cumsum()[::-1]
            values.append(np.repeat(to_come, 2))
        return values

    found = problem().expected_gradient(advantages, group_size=2)
    assert bias(found, problem().true_gradient) > 0.05
