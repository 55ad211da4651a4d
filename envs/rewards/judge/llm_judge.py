"""A language model as judge: `LLMJudge`. Several of them: `JudgePanel`."""

from __future__ import annotations

import asyncio
import os
import statistics
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ...errors import ConfigError, RewardError
from ...threads import run_in_thread
from ..arguments import interval, number
from ..base import Clip, RewardFunction, plain_outside_loop
from ..types import RewardOutput, Trajectory
from .cache import VerdictCache, key_of
from .client import JudgeClient
from .config import JudgeConfig, JudgeUsage
from .panel import JudgePanel
from .prompt import DEFAULT_TEMPLATE, JudgePrompt, Messages
from .reply import Verdict, verdict_of
from .secrets import Secret

__all__ = ["JudgePanel", "JudgeUsage", "LLMJudge"]

OPENAI_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"


class LLMJudge(RewardFunction):
    """A language model rates the response; its rating, mapped linearly from the scale to [0, 1], is the reward.

    The model is asked through any endpoint that speaks OpenAI's chat completions. What the policy wrote is fenced, and
    the rating is read from the judge's reply alone, which must be one JSON object. What gets no rating is a
    `RewardError`, never a zero. The metadata holds the `rating`, the judge's `reason`, and what it took; `usage` holds
    what all calls took.

    Args:
        judge_model: the endpoint's name of the model.
        prompt_template: what to rate; see `JudgePrompt` for its placeholders. Prompt and response are appended to one
            without placeholders.
        api_key: the key; by default, that of the environment variable. A judge with a key given here can't be pickled,
            unless the variable holds the same.
        base_url: the endpoint, up to before `/chat/completions`; by default `OPENAI_BASE_URL`, else OpenAI's. One that
            is given needs no key.
        api_key_env: the environment variable with the key.
        rating_scale: least and greatest rating.
        num_samples: answers whose mean rating counts.
        temperature: of sampling; several samples need one over 0.
        columns: columns of the task's row that the template may name, such as a rubric.
        max_text_chars: longer texts are shown to the judge without their middle.
        cache: a file for verdicts, by what was asked; several processes may share it.
        name: as for every reward.
        scale: as for every reward: a factor. The scale of ratings is `rating_scale`.
        clip: as for every reward.
        request: the other fields of `JudgeConfig`: `max_tokens`, `timeout_s`, `max_retries`, `backoff_s`,
            `max_concurrency`, `requests_per_minute`, `price_per_million`, `extra_body`.

    Raises:
        ConfigError: an argument can't be used, there is no key, or `openai` isn't installed.
    """

    reward_range = (0.0, 1.0)
    limits_itself = True

    def __init__(
        self,
        judge_model: str,
        prompt_template: str = DEFAULT_TEMPLATE,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        api_key_env: str = KEY_VARIABLE,
        rating_scale: tuple[float, float] = (1, 10),
        num_samples: int = 1,
        temperature: float = 0.0,
        columns: Sequence[str] = (),
        max_text_chars: int = 100_000,
        cache: str | os.PathLike[str] | None = None,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
        **request: Any,
    ) -> None:
        if isinstance(scale, tuple | list):
            raise ConfigError(f"scale={scale!r} is a factor, one number; the scale of ratings is rating_scale")
        super().__init__(name, scale, clip)
        base_url = base_url or os.environ.get("OPENAI_BASE_URL")
        self.config = _config(judge_model, base_url or OPENAI_URL, temperature, request)
        self.rating_scale = interval(rating_scale, "rating_scale")
        number(self.rating_scale[1] - self.rating_scale[0], "the width of rating_scale")
        if not isinstance(num_samples, int) or num_samples < 1:
            raise ConfigError(f"num_samples={num_samples!r} must be an integer of at least 1")
        if num_samples > 1 and not temperature:
            raise ConfigError(f"num_samples={num_samples} needs a temperature over 0; at 0 they are all the same")
        self.num_samples = num_samples
        self.prompt = JudgePrompt(prompt_template, self.rating_scale, columns, max_text_chars)
        if api_key is not None and not isinstance(api_key, str):
            raise ConfigError(f"api_key is of type {type(api_key).__name__}; it must be text")
        self.api_key_env = api_key_env
        self._needs_key = not base_url
        self._secret, self._is_key_given = Secret((api_key or "").strip()), bool(api_key and api_key.strip())
        self.cache = None if cache is None else VerdictCache(cache)
        self._begin()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.place})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the key, which is read from the environment again.

        Raises:
            ConfigError: the key was given as an argument, and isn't in the environment.
        """
        if self._is_key_given and os.environ.get(self.api_key_env, "").strip() != self._secret.reveal():
            raise ConfigError(
                "this judge got its key as an argument, and keys are never pickled: "
                f"put it into the environment variable {self.api_key_env}, and leave api_key out"
            )
        return {k: v for k, v in vars(self).items() if k not in ("_secret", "_client", "_locks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._secret, self._is_key_given = Secret(""), False
        self._begin()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # its limits, counts and key are shared, as they should be

    def _begin(self) -> None:
        """Make what can't be pickled."""
        if not self._is_key_given:
            self._secret = Secret(os.environ.get(self.api_key_env, "").strip())
            if self._needs_key and not self._secret.reveal():
                raise ConfigError(
                    f"there is no key for {self.config.place}: set {self.api_key_env}, give api_key, "
                    "or give the base_url of an endpoint that needs none"
                )
        hint = "given as api_key" if self._is_key_given else f"from {self.api_key_env}"
        self._client = JudgeClient(self.config, self._secret, hint)
        self._locks: weakref.WeakValueDictionary[tuple[int, str], asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def usage(self) -> JudgeUsage:
        """What all calls took so far, those that failed included."""
        return self._client.usage

    async def start(self) -> None:
        """Load the library that asks, on a thread, so that the first question needn't wait for it."""
        await self._client.start()

    @plain_outside_loop
    async def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """The judge's rating, on [0, 1].

        Raises:
            RewardError: the judge couldn't be asked, or gave no rating.
        """
        messages = self.prompt.messages(trajectory)
        async with asyncio.TaskGroup() as together:
            asked = [together.create_task(self._sample(messages, index)) for index in range(self.num_samples)]
        answers = [task.result() for task in asked]
        verdicts: list[Verdict] = []
        usage = JudgeUsage()
        for answer in answers:
            if isinstance(answer, RewardError):
                raise answer
            verdicts.append(answer[0])
            usage += answer[1]
        return self._output([verdict.rating for verdict in verdicts], [verdict.reason for verdict in verdicts], usage)

    async def aclose(self) -> None:
        """Close connections and the cache. The judge can be used again, and opens them then."""
        await self._client.aclose()
        if self.cache is not None:
            await run_in_thread(self.cache.close)

    def _output(self, ratings: list[float], reasons: list[str], usage: JudgeUsage) -> RewardOutput:
        rating, (low, high) = statistics.fmean(ratings), self.rating_scale
        metadata: dict[str, Any] = {"rating": rating, "reason": reasons[0]}
        if len(ratings) > 1:
            metadata |= {"rating_std": statistics.pstdev(ratings), "ratings": ratings, "reasons": reasons}
        reward = min(max((rating - low) / (high - low), 0.0), 1.0)
        return RewardOutput(reward=reward, metadata=metadata | usage.as_dict())

    async def _sample(self, messages: Messages, index: int) -> tuple[Verdict, JudgeUsage] | RewardError:
        """One verdict and what it took. An error is returned, so that the other samples' answers aren't lost."""
        try:
            if self.cache is None:
                return await self._client.ask(messages, self._read)
            key = self._key(messages, index)
            async with self._lock(key):  # whoever asks the same meanwhile finds it in the cache
                if (verdict := await self._cached(self.cache, key)) is not None:
                    usage = JudgeUsage(cached=1)
                    self._client.add_usage(usage)
                    return verdict, usage
                verdict, usage = await self._client.ask(messages, self._read)
                async with self._lock("disk"):
                    await run_in_thread(self.cache.put, key, verdict)
                return verdict, usage
        except RewardError as error:
            return error

    def _read(self, content: str) -> Verdict:
        return verdict_of(content, self.rating_scale)

    async def _cached(self, cache: VerdictCache, key: str) -> Verdict | None:
        async with self._lock("disk"):  # one thread at a time is enough for it
            verdict = await run_in_thread(cache.get, key)
        low, high = self.rating_scale
        return verdict if verdict is not None and low <= verdict.rating <= high else None

    def _key(self, messages: Messages, index: int) -> str:
        config = self.config
        sampling = [config.temperature, config.max_tokens, dict(config.extra_body)]
        return key_of([config.base_url.rstrip("/"), config.model, sampling, messages, self.rating_scale, index])

    def _lock(self, what: str) -> asyncio.Lock:
        """A lock of this loop that goes when nobody holds it or waits for it."""
        return self._locks.setdefault((id(asyncio.get_running_loop()), what), asyncio.Lock())


def _config(model: str, base_url: str, temperature: float, request: Mapping[str, Any]) -> JudgeConfig:
    known = [name for name in JudgeConfig.__dataclass_fields__ if name not in ("model", "base_url", "temperature")]
    for name in request:
        if name not in known:
            raise ConfigError(f"LLMJudge has no argument {name!r}; of a request there are {', '.join(known)}")
    return JudgeConfig(model=model, base_url=base_url, temperature=temperature, **request)
