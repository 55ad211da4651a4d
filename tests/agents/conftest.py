"""Fixtures for the agents' tests: a real tokenizer with a chat template, and ways to see what is left behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from turngym.agents import Renderer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, `<|im_start|>` and `<|im_end|>`, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML)


@pytest.fixture
def byte_renderer(byte_tokenizer: PreTrainedTokenizerFast) -> Renderer:
    """A renderer for `byte_tokenizer`."""
    return Renderer(byte_tokenizer)


@pytest.fixture
def nothing_left() -> Iterator[Callable[[], dict[str, Any]]]:
    """Gives what is open now; at the end of the test no more of our threads, processes and files may be open."""
    before = _open()
    yield _open
    after = _open()
    assert after["children"] == before["children"], "processes are left"
    assert after["threads"] <= before["threads"], "threads are left"
    assert after["files"] <= before["files"], "files or sockets are left"


@pytest.fixture
async def no_tasks_left() -> Any:
    """At the end of the test no asyncio task may be left"""
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left"


def _open() -> dict[str, Any]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    busy = {thread.name for thread in threading.enumerate() if thread.name.startswith("turngym-loop")}
    return {
        "children": set(children.read_text().split()) if children.exists() else set(),
        "threads": len(busy),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }
