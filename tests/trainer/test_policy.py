"""The policy's logprobs against the model's own, and what it saves and refuses."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from turngym.envs.errors import ConfigError
from turngym.envs.sampling import SamplingParams
from turngym.trainer.advantages import AdvantageConfig
from turngym.trainer.packing import collate
from turngym.trainer.policy import Policy
from turngym.trainer.samples import samples_from_groups

VOCABULARY = 48
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.5,
}


def qwen2(**options):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **options))


@pytest.fixture
def batch(play, turn):
    """Two episodes of different length, each turn with its own temperature."""
    group = [
        play(
            turn(token_ids=[5, 6, 7], sampling=SamplingParams(temperature=0.5)),
            turn(token_ids=[8, 9], sampling=SamplingParams(temperature=2.0), observation=[3]),
        ),
        play(turn(token_ids=[10]), member=1),
    ]
    samples = samples_from_groups([group], AdvantageConfig(estimator="reinforce", whiten=False))
    return collate(samples, weights={"episode-0-0": 1.0, "episode-0-1": 1.0})


def expected_scores(model, batch, kept=None):
    """The plain way: all logits of the model's own forward, row by row, without padding."""
    logprobs, entropy = [], []
    for n, (row, column) in enumerate(zip(batch.rows.tolist(), batch.columns.tolist(), strict=True)):
        logits = model(input_ids=batch.token_ids[row : row + 1, : column + 1]).logits[0, -1]
        logits = logits / batch.temperatures[n]
        if kept is not None and len(kept[n]):
            logits = torch.full_like(logits, -torch.inf).scatter(0, torch.tensor(kept[n]), logits[kept[n]])
        distribution = torch.distributions.Categorical(logits=logits)
        logprobs.append(distribution.log_prob(batch.targets[n]))
        entropy.append(-sum(p * p.log() for p in distribution.probs if p > 0))
    return torch.stack(logprobs), torch.stack(entropy)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: qwen2(), id="qwen2"),
        pytest.param(lambda: qwen2(tie_word_embeddings=True), id="qwen2-tied"),
        pytest.param(
            lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=2.0)), id="gemma2"
        ),
        pytest.param(lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=4.0)), id="granite"),
        pytest.param(
            lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25, bos_token_id=1, eos_token_id=2)),
            id="cohere",
        ),
    ],
)
def test_logprobs_and_entropy_equal_the_models_full_softmax(batch, model):
    policy = Policy(model())
    scores = policy.logprobs(batch)
    logprobs, entropy = expected_scores(policy.model, batch)
    torch.testing.assert_close(scores.logprobs, logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropy, entropy, atol=1e-5, rtol=1e-5)
    assert not scores.entropy.requires_grad


def test_logprobs_are_of_the_kept_set_that_was_sampled_from(play, turn):
    kept = [[5, 1, 2], [6, 3], [7]]
    sampling = SamplingParams(top_p=0.5, temperature=0.7)
    episode = play(
        turn(token_ids=[5, 6, 7], sampling=sampling, kept=tuple(tuple(ids) for ids in kept)), turn(token_ids=[8])
    )
    samples = samples_from_groups([[episode]], AdvantageConfig(estimator="reinforce", whiten=False))
    batch = collate(samples, weights={"episode-0-0": 1.0})
    for chunk in (1, 2, 100):
        policy = Policy(qwen2(), max_chunk_logits=VOCABULARY * chunk)
        scores = policy.logprobs(batch)
        logprobs, entropy = expected_scores(policy.model, batch, [*kept, []])
        torch.testing.assert_close(scores.logprobs, logprobs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores.entropy, entropy, atol=1e-5, rtol=1e-5)
        assert scores.logprobs[2] == 0
        scores.logprobs.sum().backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in policy.model.parameters())


@pytest.mark.parametrize("chunk", [1, 2, 4, 6])
def test_the_size_of_the_heads_chunks_changes_nothing(batch, float64_model, chunk):
    def scores_and_gradients(max_chunk_logits):
        policy = Policy(float64_model, max_chunk_logits=max_chunk_logits)
        policy.model.zero_grad()
        scores = policy.logprobs(batch)
        (scores.logprobs * torch.arange(6)).sum().backward()
        gradients = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
        return scores.logprobs.detach(), scores.entropy, *gradients

    for found, expected in zip(scores_and_gradients(16 * chunk), scores_and_gradients(10**9), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_no_more_logits_are_held_than_one_chunk(batch):
    policy = Policy(qwen2(), max_chunk_logits=2 * VOCABULARY)
    computed: list[int] = []
    kept_for_backward: list[int] = []
    policy.model.lm_head.register_forward_hook(lambda _module, _inputs, logits: computed.append(len(logits)))

    def note(tensor):
        if tensor.shape[1:] == (VOCABULARY,):
            kept_for_backward.append(len(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        scores = policy.logprobs(batch)
    scores.logprobs.sum().backward()
    assert batch.num_tokens == 6
    assert computed == [2, 2, 2] * 2  # forward, and again in the backward pass
    assert kept_for_backward == []


def test_dropout_is_off(batch):
    torch.manual_seed(0)
    policy = Policy(qwen2(attention_dropout=0.5).train())
    first, second = (policy.logprobs(batch).logprobs for _ in range(2))
    assert torch.equal(first, second)


class ScaledQwen2(Qwen2ForCausalLM):
    """Does something to its logits that no setting of its config tells."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        assert output.logits is not None
        output.logits = output.logits * 1.5
        return output


def test_a_model_that_does_more_to_its_logits_is_refused_by_name():
    with pytest.raises(ConfigError, match="ScaledQwen2 does more to its logits than the output head"):
        Policy(ScaledQwen2(Qwen2Config(**SIZES)))


def test_a_model_without_an_output_head_is_refused_by_name():
    with pytest.raises(ConfigError, match="Qwen2Model has no output head; train a causal language model"):
        Policy(qwen2().model)


def test_weights_are_the_models_own_by_name_and_without_gradient(float64_model):
    policy = Policy(float64_model)
    weights = dict(policy.weights().named_tensors())
    assert weights.keys() == float64_model.state_dict().keys()
    assert not any(tensor.requires_grad for tensor in weights.values())
    assert weights["lm_head.weight"].data_ptr() == float64_model.lm_head.weight.data_ptr()


def test_save_writes_a_plain_folder_that_transformers_reads(tmp_path, batch):
    policy = Policy(qwen2(tie_word_embeddings=True))
    policy.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"config.json", "model.safetensors"}
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_a_saved_policy_scores_and_tokenizes_as_before(tmp_path, batch, tokenizer):
    policy = Policy(qwen2(), tokenizer)
    policy.save(tmp_path)
    again = Policy.from_pretrained(tmp_path)
    assert again.tokenizer is not None
    assert again.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert again.tokenizer.encode("hello world") == tokenizer.encode("hello world") == [1, 2]
    assert torch.equal(again.logprobs(batch).logprobs, policy.logprobs(batch).logprobs)
    assert Policy.from_pretrained(tmp_path, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_pickled_weights_are_never_read(tmp_path, tokenizer):
    policy = Policy(qwen2(), tokenizer)
    policy.save(tmp_path)
    torch.save(policy.model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"can't read a policy from .*safetensors"):
        Policy.from_pretrained(tmp_path)


def test_missing_weights_are_refused_and_never_random(tmp_path, tokenizer):
    policy = Policy(qwen2(), tokenizer)
    policy.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"the weights in .* lack model.norm.weight, which would be random"):
        Policy.from_pretrained(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"can't read a policy from '.*nowhere'"):
        Policy.from_pretrained(tmp_path / "nowhere")
