"""Tokenizers and chat templates of the kinds that are met in the wild, small and made here."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from turngym.agents.chat import Renderer

MakeTokenizer = Callable[..., PreTrainedTokenizerFast]

TEXTS = [
    "system user assistant tool\n\nBegin. Go on. One. Two.",
    "assistant user assistant system assistant user",
    "Too low, guess again. Too high! The answer is 42.\n",
    "the quick brown fox jumps over the lazy dog </s> <s> think im_end start",
] * 3

TEMPLATES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # a system prompt of its own, and today's date
    "default_system": (
        "{% if messages[0].role != 'system' %}"
        "<|im_start|>system\nBe kind. {{ strftime_now('%d %b') }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "trimming": (
        "<s>{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
    ),
    # refuses system messages and two messages of one role
    "alternating": (
        "<s>{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}"
        "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
        "{% elif m.role == 'assistant' %} {{ m.content | trim }} </s>"
        "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
    ),
    # drops the thinking of all turns before the last user message
    "thinking": (
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% set text = m.content %}"
        "{% if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}"
        "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "<|im_start|>{{ m.role + '\n' + text }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # puts <think> into the policy's mouth, and drops it from every answer
    "prefilled": (
        "{% for m in messages %}{% set text = m.content %}"
        "{% if m.role == 'assistant' %}{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "<|im_start|>{{ m.role + '\n' + text }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    ),
    # tool results in a row share one turn; tools are listed on top
    "tools": (
        "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
        "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
        "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
        "{% else %}<|im_start|>{{ m.role + '\n' + m.content }}"
        "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function | tojson }}</tool_call>{% endfor %}"
        "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # keeps only the last of several tool results
    "losing_tools": (
        "{% for m in messages %}{% if m.role != 'tool' or loop.last %}"
        "<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # tells on top how long the conversation is
    "rewriting": (
        "<|im_start|>system\n{{ messages | length }}<|im_end|>\n"
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "counting": (
        "{% for m in messages %}{% if m.role == 'user' %}[Round {{ loop.index0 // 2 }}] {% endif %}"
        "{{ m.role + ': ' + m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    ),
    # nothing closes a turn but the next speaker
    "speakers": (
        "{% for m in messages %}{{ '<|' + m.role + '|>' }}\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "plain_text": (
        "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content + '\n\n' }}{% endfor %}"
        "{% if add_generation_prompt %}### assistant:\n{% endif %}"
    ),
    # leaves out what the assistant said
    "deaf": (
        "{% for m in messages %}{% if m.role != 'assistant' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}"
        "{% endfor %}"
    ),
}

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPEAKERS = ["<|user|>", "<|assistant|>", "<|tool|>"]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _merging() -> Tokenizer:
    """Byte-level BPE whose merges cross words, lines and the borders between template and content."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator([*TEXTS, "user\nToo low", "\n\n", "user\nGo", "\nassistant\n"] * 5, trainer)
    return tokenizer


def _unigram() -> Tokenizer:
    """Metaspace, a space put before the text; control tokens stand in its vocabulary with the best score."""
    letters = sorted(set("".join(TEXTS)) - {" "})
    words = ["▁the", "▁low", "▁Too", "▁guess", "▁again", "low", "▁", "\n", "▁user", "▁Go"]
    vocab = [(piece, 0.0) for piece in SPECIAL] + [(piece, -2.0) for piece in words]
    vocab += [(letter, -6.0) for letter in letters if letter not in words]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _llama() -> Tokenizer:
    """A BPE whose normaliser puts a space before every text between control tokens; bytes for what it lacks."""
    pieces = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", *sorted(set("".join(TEXTS)) - {" ", "\n"})]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("l", "o"), ("lo", "w"), ("▁", "low"), ("▁", "t"), ("<", "/"), ("</", "s"), ("</s", ">")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _normalizing() -> Tokenizer:
    """Lower case and compatible forms, before added tokens are looked for."""
    tokenizer = _byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return tokenizer


def _swallowing() -> Tokenizer:
    """Control tokens take up the white space after them."""
    tokenizer = _byte_level()
    swallowing = [AddedToken(token, rstrip=True, special=True, normalized=False) for token in SPECIAL[3:]]
    tokenizer.add_special_tokens(swallowing)
    return tokenizer


def _words() -> Tokenizer:
    """Whole words; whatever else is unknown."""
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, "Too": 1, "low": 2, "user": 3, "assistant": 4}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\s|[^\w\s]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": _byte_level,
    "merging": _merging,
    "unigram": _unigram,
    "llama": _llama,
    "normalizing": _normalizing,
    "swallowing": _swallowing,
    "words": _words,
}


class Player:
    """Plays a conversation, and keeps the record as an executor does."""

    def __init__(self, renderer, observation):
        self.renderer = renderer
        self.conversation = renderer.begin()
        self.token_ids = self.conversation.prompt(observation)
        self.forks = 0

    def act(self, text, observation, *, closing=None):
        """Sample a text, and a closing token unless the action was cut; returns the continuation."""
        ids = self.renderer.encoder.encode_text(text, self.renderer.encoder.follows(self.token_ids))
        ids += [] if closing is None else [self.renderer.tokenizer.convert_tokens_to_ids(closing)]
        continuation = self.conversation.continuation(ids, observation)
        if continuation.is_fork:
            self.token_ids, self.forks = list(continuation.token_ids), self.forks + 1
        else:
            self.token_ids += ids + continuation.token_ids
        return continuation

    @property
    def text(self):
        return self.renderer.encoder.decode(self.token_ids)


@pytest.fixture(scope="session")
def begin() -> type[Player]:
    """begin(renderer, observation): a conversation to play."""
    return Player


@pytest.fixture(scope="session")
def make_tokenizer() -> MakeTokenizer:
    """make_tokenizer(kind, template, eos=...): a transformers tokenizer."""
    built: dict[str, str] = {}

    def make(kind: str = "byte_level", template: str | None = "chatml", *, eos: str = "<|im_end|>") -> Any:
        if kind not in built:
            built[kind] = KINDS[kind]().to_str()
        backend = Tokenizer.from_str(built[kind])
        is_normalized = kind == "normalizing"
        backend.add_tokens([AddedToken(t, special=False, normalized=is_normalized) for t in ADDED + SPEAKERS])
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token=eos,
            unk_token="<unk>",
            chat_template=None if template is None else TEMPLATES.get(template, template),
        )

    return make


@pytest.fixture(scope="session")
def make_renderer(make_tokenizer: MakeTokenizer) -> Callable[..., Renderer]:
    """make_renderer(kind, template, **options of the renderer)."""

    def make(kind: str = "byte_level", template: str | None = "chatml", *, eos: str = "<|im_end|>", **options: Any):
        return Renderer(make_tokenizer(kind, template, eos=eos), **options)

    return make
