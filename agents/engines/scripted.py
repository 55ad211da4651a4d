"""An engine that plays given actions: for tests of environments, rewards and training loops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ...envs.errors import EngineError
from ...envs.types import FinishReason
from ..engine import GenerateRequest, Generation, VersionSpan, WeightSource, refuse_media

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ScriptedAction: TypeAlias = str | Sequence[int] | Generation
Script: TypeAlias = (
    Sequence[str | Sequence[int]]
    | Mapping[str, Sequence[str | Sequence[int]]]
    | Callable[[GenerateRequest], ScriptedAction]
)


class ScriptedEngine:
    """Plays given actions, whatever the prompt is.

    A text is encoded and gets the closing token; token ids are played as they are. Both are cut at the request's
    `max_tokens`, with `finish_reason="length"`, as a real engine would.

    >>> import asyncio
    >>> from turngym.agents.engine import GenerateRequest
    >>> from turngym.envs.sampling import SamplingParams
    >>> engine = ScriptedEngine([[7, 8, 2]])
    >>> request = GenerateRequest(
    ...     prompt_token_ids=[1, 5], sampling=SamplingParams(), request_id="r", episode_id="e"
    ... )
    >>> asyncio.run(engine.generate(request)).token_ids
    (7, 8, 2)
    >>> engine.requests == [request]
    True

    Args:
        actions: actions in the order of turns, the same for every episode; or such sequences by episode id; or a
            function of the request that returns a text, token ids, or a whole `Generation`.
        tokenizer: encodes the texts; not needed where all actions are token ids.
        closing_token_id: what follows a text; the tokenizer's end of sequence by default.
        logprob: the logprob of every token.
        version: the policy version that the tokens carry until something is published.

    Attributes:
        requests: every request so far, in order of arrival.
        version: the policy version that the next tokens carry.
        published: what was published, in order.
    """

    def __init__(
        self,
        actions: Script,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        closing_token_id: int | None = None,
        logprob: float = 0.0,
        version: int = 0,
    ) -> None:
        if isinstance(actions, str):
            raise EngineError(f"actions={actions!r} is one string; give a sequence of actions, one per turn")
        self.requests: list[GenerateRequest] = []
        self.published: list[tuple[WeightSource, int]] = []
        self.version = version
        self._actions = actions
        self._tokenizer = tokenizer
        self._closing = closing_token_id if tokenizer is None or closing_token_id is not None else _eos(tokenizer)
        self._logprob = logprob
        self._num_turns: Counter[str] = Counter()
        self._is_closed = False

    async def generate(self, request: GenerateRequest) -> Generation:
        """Play the episode's next action.

        Raises:
            EngineError: the script has no further action for this episode, or the engine is closed.
        """
        if self._is_closed:
            raise EngineError(f"request {request.request_id} came after the engine was closed; make a new engine")
        refuse_media(request, "ScriptedEngine")
        prompt = request.prompt_token_ids[:]  # the caller's list grows
        self.requests.append(replace(request, prompt_token_ids=prompt))
        action = self._next_action(request)
        await asyncio.sleep(0)  # as with a real engine, others run in the meantime
        if isinstance(action, Generation):
            return action
        token_ids = self._encode(action) if isinstance(action, str) else tuple(action)
        max_tokens = request.sampling.max_tokens
        finish_reason: FinishReason = "length" if len(token_ids) > max_tokens else "stop"
        token_ids = token_ids[:max_tokens]
        return Generation(
            token_ids=token_ids,
            logprobs=(self._logprob,) * len(token_ids),
            finish_reason=finish_reason,
            versions=(VersionSpan(self.version, len(token_ids)),),
        )

    async def publish(self, weights: WeightSource, version: int) -> None:
        """Note the weights; tokens played from now on carry `version`."""
        self.published.append((weights, version))
        self.version = version

    async def close(self) -> None:
        """Refuse further requests."""
        self._is_closed = True

    def _next_action(self, request: GenerateRequest) -> ScriptedAction:
        episode_id = request.episode_id
        turn = self._num_turns[episode_id]
        self._num_turns[episode_id] += 1
        if callable(self._actions):
            return self._actions(request)
        actions = self._actions
        if isinstance(actions, Mapping):
            if episode_id not in actions:
                known = ", ".join(map(repr, list(actions)[:5]))
                raise EngineError(f"the script has no episode {episode_id!r}; it has {known}; add it")
            actions = actions[episode_id]
        if turn >= len(actions):
            raise EngineError(
                f"episode {episode_id!r} asks for turn {turn + 1} and the script has {len(actions)}; "
                "add an action, or end the episode earlier"
            )
        return actions[turn]

    def _encode(self, text: str) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise EngineError(f"the action {text!r} is text and the engine has no tokenizer; pass tokenizer=")
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        return (*token_ids, *(() if self._closing is None else (self._closing,)))


def _eos(tokenizer: PreTrainedTokenizerBase) -> int | None:
    token_id = tokenizer.eos_token_id
    return token_id if isinstance(token_id, int) else None
