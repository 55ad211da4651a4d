"""The loss against numbers worked out by hand."""

import math

import pytest
import torch
from turngym.envs.errors import ConfigError
from turngym.trainer.losses import LossInputs, policy_loss, token_weights


def inputs(ratios, advantages, weights=None):
    logprobs = torch.tensor([math.log(r) for r in ratios], dtype=torch.float64, requires_grad=True)
    return LossInputs(
        logprobs=logprobs,
        sampled_logprobs=torch.zeros(len(ratios), dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.tensor(weights or [1.0] * len(ratios), dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # clip_low 0.2, clip_high 0.3; the slope is d loss / d logprob: -ratio * advantage, or 0 where clipped.
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.6, 0.0),
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.6, 0.0),
        (3.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_ratio_is_clipped_where_that_would_be_rewarded_and_only_there(ratio, advantage, loss, slope):
    given = inputs([ratio], [advantage])
    outputs = policy_loss(given, clip_low=0.2, clip_high=0.3)
    outputs.loss.backward()
    assert outputs.loss.item() == pytest.approx(loss, abs=1e-12)
    assert given.logprobs.grad is not None
    assert given.logprobs.grad.item() == pytest.approx(slope, abs=1e-12)
    assert outputs.is_clipped.tolist() == [advantage != 0 and slope == 0]
    assert outputs.ratio.tolist() == pytest.approx([ratio])
    assert outputs.kl.tolist() == pytest.approx([ratio - 1 - math.log(ratio)])


def test_the_loss_is_the_weighted_sum_of_its_tokens():
    outputs = policy_loss(inputs([1.0, 1.0, 1.0], [1.0, 2.0, -4.0], weights=[0.5, 0.25, 0.125]))
    assert outputs.loss.item() == -(0.5 + 0.5 - 0.5)


def test_what_is_only_looked_at_carries_no_gradient():
    outputs = policy_loss(inputs([1.0], [1.0]))
    assert outputs.loss.requires_grad
    assert not any(t.requires_grad for t in (outputs.ratio, outputs.is_clipped, outputs.kl))


def test_a_huge_log_ratio_stays_finite():
    given = LossInputs(
        logprobs=torch.tensor([0.0, 0.0], requires_grad=True),
        sampled_logprobs=torch.tensor([-200.0, -200.0]),
        advantages=torch.tensor([-1.0, 0.0]),
        weights=torch.tensor([1.0, 1.0]),
    )
    outputs = policy_loss(given)
    assert outputs.loss.item() == pytest.approx(math.exp(20), rel=1e-5)
    assert torch.isfinite(outputs.ratio).all()


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", {"a": 1 / 4, "b": 1 / 4}),
        ("sequence_mean", {"a": 1 / 2, "b": 1 / 6}),
        ("constant", {"a": 1 / 20, "b": 1 / 20}),
    ],
)
def test_each_aggregation_gives_the_weights_worked_out_by_hand(aggregation, expected):
    assert token_weights({"a": 1, "b": 3, "empty": 0}, aggregation, constant=10) == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_nothing_to_train_has_no_weights(aggregation):
    assert token_weights({}, aggregation, constant=10) == {}


def test_a_wrong_aggregation_is_named():
    with pytest.raises(ConfigError, match="aggregation='mean'; choose one of token_mean, sequence_mean, constant"):
        token_weights({"a": 1}, "mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="aggregation='constant' needs its constant, at least 1; got None"):
        token_weights({"a": 1}, "constant")
