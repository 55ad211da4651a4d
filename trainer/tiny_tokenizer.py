"""A tiny policy's tokenizer: byte-level BPE over an environment's texts, digits one by one, with a chat template."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Roles and contents between markers, as ChatML writes them; append-only."""

ROLES = ("system", "user", "assistant", "tool")


def build_tokenizer(texts: Iterable[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer. The same texts give the same tokenizer.

    Every byte is a token, so that any text can be encoded. Words aren't kept apart, so that a phrase which an
    environment says often becomes one token; digits are, so that numbers are read and written digit by digit.

    >>> tokenizer = build_tokenizer(["Too low. Try 12."] * 9, vocab_size=300, max_length=64)
    >>> [tokenizer.decode(i) for i in tokenizer.encode("Too low. Try 345.")]
    ['Too low. Try ', '3', '4', '5', '.']

    Args:
        texts: what the policy will read and write.
        vocab_size: most tokens.
        max_length: tokens that a context holds.

    Returns:
        A transformers tokenizer with a chat template.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    texts = list(texts)
    headers = [f"{role}\n" for role in ROLES] * (len(texts) + 2)  # often enough to become tokens
    tokenizer.train_from_iterator([*headers, *texts], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
