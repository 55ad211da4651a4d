"""One update: what it may depend on, what it measures, and what it refuses to apply."""

import copy
import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM
from turngym.envs.errors import ConfigError
from turngym.envs.sampling import SamplingParams
from turngym.trainer.advantages import AdvantageConfig
from turngym.trainer.optim import OptimConfig
from turngym.trainer.packing import collate
from turngym.trainer.policy import Policy
from turngym.trainer.samples import samples_from_groups
from turngym.trainer.update import UpdateConfig, Updater

RAW = AdvantageConfig(estimator="reinforce", whiten=False)
SGD_LIKE = OptimConfig(learning_rate=0.0, max_grad_norm=math.inf)


@pytest.fixture
def group(play, turn):
    """Five episodes of 1 to 3 turns with unlike rewards, one of them forked."""
    rng = np.random.default_rng(0)

    def some_turn(**options):
        count = int(rng.integers(1, 5))
        return turn(
            reward=float(rng.normal()),
            token_ids=rng.integers(1, 16, count).tolist(),
            logprobs=rng.uniform(-4, -1, count).tolist(),
            observation=rng.integers(1, 16, int(rng.integers(1, 6))).tolist(),
            sampling=SamplingParams(temperature=float(rng.uniform(0.5, 2))),
            **options,
        )

    episodes = [play(*(some_turn() for _ in range(1 + i % 3)), member=i) for i in range(4)]
    return [*episodes, play(some_turn(), some_turn(forks=True), member=4)]


def gradient_of(model, samples, **config):
    """Loss and gradient of one optimizer step; a learning rate of 0 leaves the weights alone."""
    updater = Updater(Policy(model), UpdateConfig(optim=SGD_LIKE, **config))
    kept = {}

    def keep():
        kept.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    forget = updater.optimizer.forget_gradients
    updater.optimizer.forget_gradients = lambda: (keep(), forget())  # pyright: ignore[reportAttributeAccessIssue]
    result = updater.update(samples)
    return result.metrics, kept


def assert_equal(found, expected, tolerance=1e-9):
    (metrics, gradient), (expected_metrics, expected_gradient) = found, expected
    assert metrics["loss"] == pytest.approx(expected_metrics["loss"], abs=tolerance)
    assert gradient.keys() == expected_gradient.keys()
    for name, tensor in gradient.items():
        torch.testing.assert_close(tensor, expected_gradient[name], atol=tolerance, rtol=tolerance)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    micro_batch_tokens=st.integers(1, 100),
    order=st.permutations(range(6)),
    aggregation=st.sampled_from(["token_mean", "sequence_mean", "constant"]),
)
def test_loss_and_gradient_depend_on_neither_padding_nor_split_nor_order(
    float64_model, group, micro_batch_tokens, order, aggregation
):
    samples = samples_from_groups([group], RAW)
    options = {"aggregation": aggregation, "constant": 7}
    whole = gradient_of(float64_model, samples, micro_batch_tokens=10_000, **options)
    assert whole[0]["grad_norm"] > 0.01
    cut = gradient_of(float64_model, [samples[i] for i in order], micro_batch_tokens=micro_batch_tokens, **options)
    assert_equal(cut, whole)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_the_loss_is_the_one_worked_out_token_by_token(float64_model, group, aggregation):
    samples = samples_from_groups([group], RAW)
    total = sum(s.num_trained_tokens for s in samples)
    expected = 0.0
    for episode in group:
        own = [s for s in samples if s.episode_id == episode.episode_id]
        count = sum(s.num_trained_tokens for s in own)
        share = {"token_mean": 1 / total, "sequence_mean": 1 / (5 * count), "constant": 1 / (5 * 7)}[aggregation]
        for sample in own:
            logits = float64_model(input_ids=torch.tensor(sample.token_ids)[None]).logits[0].detach()
            for k in np.flatnonzero(sample.loss_mask):
                logprob = (logits[k - 1] / float(sample.temperatures[k])).log_softmax(-1)[sample.token_ids[k]]
                ratio = math.exp(float(logprob) - float(sample.sampled_logprobs[k]))
                advantage = float(sample.advantages[k])
                expected -= share * min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    metrics, _ = gradient_of(float64_model, samples, aggregation=aggregation, constant=7)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_forking_an_episode_changes_nothing_in_its_weight(float64_model, play, turn, aggregation):
    # The fork's context is what the policy had read anyway, so that every token has the probability it had.
    def samples(*, forks):
        observation = [1, 2, 5, 6, 3] if forks else [3]
        episodes = [
            play(turn(reward=1.0, token_ids=[5, 6]), turn(token_ids=[7, 8], observation=observation, forks=forks)),
            play(turn(reward=-1.0, token_ids=[9]), member=1),
        ]
        return samples_from_groups([episodes], AdvantageConfig(estimator="rloo"))

    assert len(samples(forks=True)) == 3
    forked = gradient_of(float64_model, samples(forks=True), aggregation=aggregation, constant=7)
    plain = gradient_of(float64_model, samples(forks=False), aggregation=aggregation, constant=7)
    assert forked[0]["episodes"] == 2
    assert_equal(forked, plain)


def test_tokens_off_the_mask_get_no_gradient(float64_model, play, turn):
    # Tokens 1 2 5 1 2 6 9: only 5, at position 2, has an advantage, and only positions 0 and 1 predict it.
    turns = [turn(reward=1.0, token_ids=[5]), turn(token_ids=[6]), turn(token_ids=[], observation=[9])]
    samples = samples_from_groups([[play(*turns)]], RAW)
    _, gradient = gradient_of(float64_model, samples)
    positions = gradient["transformer.wpe.weight"].abs().sum(dim=1)
    assert (positions > 0).tolist() == [True, True] + [False] * 62


def test_changing_observations_after_the_last_trained_token_changes_nothing(float64_model, play, turn):
    def samples(last):
        return samples_from_groups([[play(turn(reward=1.0), turn(token_ids=[], observation=last))]], RAW)

    assert_equal(gradient_of(float64_model, samples([3])), gradient_of(float64_model, samples([9] * 20)), tolerance=0)


def tiny_policy(**options):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        **options,
    )
    return Policy(Qwen2ForCausalLM(config))


def on_policy_groups(policy, play, turn, *, num_groups=4, version=0):
    """Groups whose logprobs are the policy's own, as an exact engine would give them."""
    rng = np.random.default_rng(1)
    groups = []
    for slot in range(num_groups):
        episodes = []
        for member in range(2):
            ids = rng.integers(3, 32, 3).tolist()
            options = {"reward": float(member), "token_ids": ids, "version": version}
            draft = play(turn(**options), slot=slot, member=member)
            batch = collate(samples_from_groups([[draft]], RAW), weights={draft.episode_id: 1.0})
            logprobs = policy.logprobs(batch).logprobs.tolist()
            episodes.append(play(turn(**options, logprobs=logprobs), slot=slot, member=member))
        groups.append(episodes)
    return groups


def test_an_update_makes_what_was_better_than_its_siblings_more_likely(play, turn):
    policy = tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn), AdvantageConfig())
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(learning_rate=1e-2)))
    result = updater.update(samples)
    assert result.metrics["optimizer_steps"] == 1
    for sample in samples:
        logprobs = policy.logprobs(collate([sample], weights={sample.episode_id: 1.0})).logprobs.detach()
        gain = float(logprobs.sum()) - float(sample.sampled_logprobs[sample.loss_mask].sum())
        assert gain * sample.advantages[sample.loss_mask][0] > 0


@pytest.mark.parametrize("num_minibatches", [1, 4])
def test_the_mismatch_is_measured_under_the_weights_that_sampled(play, turn, num_minibatches):
    policy = tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn), AdvantageConfig())
    config = UpdateConfig(optim=OptimConfig(learning_rate=1e-2), num_minibatches=num_minibatches)
    metrics = Updater(policy, config).update(samples, version=0).metrics
    assert metrics["mismatch_max"] < 1e-5
    assert metrics["mismatch_share"] == 0
    assert metrics["optimizer_steps"] == num_minibatches
    assert (metrics["ratio_max"] > 1.001) == (num_minibatches > 1)


def test_a_mismatch_is_seen_and_stale_tokens_are_left_out_of_it(play, turn):
    policy = tiny_policy()
    (fresh,) = on_policy_groups(policy, play, turn, num_groups=1, version=3)
    stale = [play(turn(reward=1.0, version=2), slot=1), play(turn(version=2), slot=1, member=1)]
    updater = Updater(policy, UpdateConfig(optim=SGD_LIKE))
    samples = samples_from_groups([fresh, stale], AdvantageConfig())
    assert updater.update(samples, version=3).metrics["mismatch_max"] < 1e-5
    everything = updater.update(samples).metrics
    assert everything["mismatch_max"] > 0.1
    assert everything["mismatch_share"] == pytest.approx(4 / 10)
    assert "mismatch_max" not in updater.update(samples, version=9).metrics


def test_metrics_are_those_worked_out_by_hand(float64_model, play, turn):
    sampling = SamplingParams()
    draft = play(turn(reward=1.0, token_ids=[5, 6], sampling=sampling))
    batch = collate(samples_from_groups([[draft]], RAW), weights={draft.episode_id: 1.0})
    scores = Policy(float64_model).logprobs(batch)
    # Ratios of 1.5 and 0.9 at advantage 1: the first is clipped.
    logprobs = scores.logprobs.detach() - torch.tensor([1.5, 0.9]).log()
    episode = play(turn(reward=1.0, token_ids=[5, 6], logprobs=logprobs.tolist()))
    metrics, _ = gradient_of(float64_model, samples_from_groups([[episode]], RAW))
    expected = {
        "loss": -(1.2 + 0.9) / 2,
        "tokens": 2,
        "episodes": 1,
        "ratio_mean": 1.2,
        "ratio_max": 1.5,
        "clip_share": 0.5,
        "approx_kl": (0.5 - math.log(1.5) - 0.1 - math.log(0.9)) / 2,
        "entropy": float(scores.entropy.mean()),
        "mismatch_mean": (math.log(1.5) - math.log(0.9)) / 2,
        "mismatch_max": math.log(1.5),
        "mismatch_share": 1,
        "optimizer_steps": 1,
        "skipped_steps": 0,
        "lr": 0,
    }
    grad_norm = metrics.pop("grad_norm")
    assert grad_norm > 0
    assert metrics == pytest.approx(expected, abs=1e-6)


def test_an_empty_update_changes_nothing_and_says_so(play, turn):
    policy = tiny_policy()
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(learning_rate=1.0, weight_decay=0.1)))
    before = copy.deepcopy(policy.model.state_dict())
    result = updater.update([])
    assert result.metrics == {"tokens": 0, "episodes": 0, "optimizer_steps": 0, "skipped_steps": 0}
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.model.state_dict().items())
    assert updater.optimizer.num_steps == 0


def test_equal_rewards_everywhere_leave_the_weights_as_they_are(play, turn):
    policy = tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn), AdvantageConfig())
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(learning_rate=1e-2, weight_decay=0.1)))
    updater.update(samples)
    equal = [[play(turn(reward=0.1), member=i) for i in range(8)]]
    before = copy.deepcopy(policy.model.state_dict())
    metrics = updater.update(samples_from_groups(equal, AdvantageConfig(estimator="group_norm"))).metrics
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert metrics["tokens"] == 16
    assert metrics["entropy"] > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.model.state_dict().items())


def test_samples_without_advantage_change_only_the_denominator(float64_model, group, play, turn):
    # Three times the number of tokens, and so a third of each token's share.
    taught = samples_from_groups([group], AdvantageConfig())
    count = sum(s.num_trained_tokens for s in taught)
    equal = [play(turn(reward=1.0, token_ids=[5] * count), slot=1, member=i) for i in range(2)]
    metrics, gradient = gradient_of(float64_model, [*samples_from_groups([equal], AdvantageConfig()), *taught])
    expected_metrics, expected_gradient = gradient_of(float64_model, taught)
    thirds = {name: tensor / 3 for name, tensor in expected_gradient.items()}
    assert_equal((metrics, gradient), ({"loss": expected_metrics["loss"] / 3}, thirds))


def test_more_minibatches_than_episodes_make_as_many_steps_as_episodes(play, turn):
    policy = tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn, num_groups=1), AdvantageConfig())
    result = Updater(policy, UpdateConfig(num_minibatches=5, num_epochs=3)).update(samples)
    assert result.metrics["optimizer_steps"] == 2 * 3


def test_a_step_that_is_not_finite_is_skipped_counted_and_named(play, turn, caplog):
    policy = tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn), AdvantageConfig())
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(learning_rate=1e-2)))
    with torch.no_grad():
        policy.model.model.layers[1].mlp.up_proj.weight[0, 0] = math.nan
    before = copy.deepcopy(policy.model.state_dict())
    with caplog.at_level(logging.WARNING):
        result = updater.update(samples)
    assert result.bad_tensors == ("model.layers.1.mlp.up_proj.weight",)
    assert result.metrics["skipped_steps"] == updater.num_skipped == 1
    assert result.metrics["optimizer_steps"] == updater.optimizer.num_steps == 0
    assert "loss" not in result.metrics
    assert "skipped (1 so far): model.layers.1.mlp.up_proj.weight is not finite" in caplog.text
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor.nan_to_num(9.0), before[name].nan_to_num(9.0))


def test_a_gradient_that_is_not_finite_is_skipped_and_leaves_no_trace(play, turn):
    policy, untouched = tiny_policy(), tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn), AdvantageConfig())
    config = UpdateConfig(optim=OptimConfig(learning_rate=1e-2))
    updater = Updater(policy, config)
    hook = policy.model.model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    assert updater.update(samples).bad_tensors == ("gradient of model.norm.weight",)
    hook.remove()
    assert updater.update(samples).metrics == Updater(untouched, config).update(samples).metrics
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, untouched.model.state_dict()[name])


def test_a_run_goes_on_from_its_state_bit_for_bit(play, turn):
    config = UpdateConfig(optim=OptimConfig(learning_rate=1e-2, warmup_steps=5, weight_decay=0.1), num_minibatches=2)
    policy = tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn), AdvantageConfig())
    updater = Updater(policy, config)
    updater.update(samples)
    weights, state = copy.deepcopy(policy.model.state_dict()), copy.deepcopy(updater.state_dict())
    unbroken = updater.update(samples).metrics

    resumed_policy = tiny_policy()
    resumed_policy.model.load_state_dict(weights)
    resumed = Updater(resumed_policy, config)
    resumed.load_state_dict(state)
    assert resumed.update(samples).metrics == unbroken
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(resumed_policy.model.state_dict()[name], tensor)


def test_the_learning_rate_warms_up_linearly(play, turn):
    policy = tiny_policy()
    samples = samples_from_groups(on_policy_groups(policy, play, turn, num_groups=1), AdvantageConfig())
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(learning_rate=0.4, warmup_steps=4)))
    rates = [updater.update(samples).metrics["lr"] for _ in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_matrices_decay_and_vectors_do_not():
    policy = tiny_policy()
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(learning_rate=0.5, weight_decay=0.1)))
    before = copy.deepcopy(policy.model.state_dict())
    for parameter in policy.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    updater.optimizer.step()
    for name, tensor in policy.model.state_dict().items():
        torch.testing.assert_close(tensor, before[name] * (0.95 if tensor.ndim == 2 else 1))


def test_gradients_are_scaled_to_the_largest_norm_allowed():
    policy = tiny_policy()
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(max_grad_norm=0.5)))
    parameters = list(policy.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    parameters[0].grad[0, :2] = torch.tensor([3.0, 4.0])  # pyright: ignore[reportOptionalSubscript]
    assert updater.optimizer.clip_gradients() == pytest.approx(5)
    torch.testing.assert_close(parameters[0].grad[0, :2], torch.tensor([0.3, 0.4]))  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UpdateConfig(num_epochs=0), "num_epochs=0 must be at least 1"),
        (lambda: UpdateConfig(micro_batch_tokens=0), "micro_batch_tokens=0 must be at least 1"),
        (lambda: UpdateConfig(clip_low=1.5), r"clip_low=1.5 must lie in \[0, 1\]"),
        (lambda: UpdateConfig(clip_high=-1.0), "clip_high=-1.0 must be at least 0"),
        (lambda: UpdateConfig(aggregation="constant"), "aggregation='constant' needs its constant"),
        (lambda: OptimConfig(learning_rate=-1.0), "learning_rate=-1.0 must be at least 0"),
        (lambda: OptimConfig(warmup_steps=-1), "warmup_steps=-1 must be at least 0"),
        (lambda: OptimConfig(max_grad_norm=0.0), "max_grad_norm=0.0 must be above 0; inf doesn't clip"),
    ],
)
def test_a_wrong_setting_is_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
