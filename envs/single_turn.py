"""SingleTurn-v0: one prompt, one response. With a reward it makes an environment of any data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from .errors import ConfigError
from .instance import AgentInstance
from .types import Action, Observation, StepResult, Verbatim

if TYPE_CHECKING:
    import numpy as np

    from .tasks import Task

ANY_PROMPT = "Say something."
"""What is asked without a task."""


class SingleTurnEnv(AgentInstance):
    """Asks the task's prompt and ends with the answer to it.

    It gives no reward of its own. `make("SingleTurn-v0", reward=...)` attaches one, and so does the trainer.

    >>> import asyncio
    >>> async def play():
    ...     env = SingleTurnEnv()
    ...     prompt, _ = await env.reset(options={"prompt": "2 + 2 = ?", "label": "4"})
    ...     return prompt, (await env.step(Action(text="4"))).terminated
    >>> asyncio.run(play())
    ('2 + 2 = ?', True)

    The task's options are `prompt` (text, or a list of chat messages), and for the reward `label` and any other
    columns. The column `demonstrations`, an answer or a list of answers, is what `tiny` is warmed up on.
    """

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Ask the prompt."""
        del seed
        prompt: Any = options.get("prompt") if options else ANY_PROMPT
        if not _is_prompt(prompt):
            columns = ", ".join(options or ()) or "none"
            raise ConfigError(
                "SingleTurn-v0 needs the option 'prompt', as text or as a list of chat messages; the task has "
                f"{columns}: choose the column with --input_key"
            )
        return prompt, {}

    async def step(self, action: Action) -> StepResult:
        """End the episode."""
        del action
        return StepResult(observation="", terminated=True)

    @classmethod
    def demonstrations(cls, task: Task, rng: np.random.Generator) -> Sequence[str] | None:
        """One of the task's demonstrations, drawn at random, or None where its row has none."""
        known = task.options.get("demonstrations")
        if isinstance(known, str):
            return [known]
        if not known:
            return None
        if not _is_list(known, str):
            raise ConfigError(f"task {task.id!r}: demonstrations={known!r:.80} must be an answer or a list of answers")
        return [known[int(rng.integers(len(known)))]]


def _is_prompt(value: object) -> TypeGuard[Observation]:
    return isinstance(value, str | Verbatim | Mapping) or _is_list(value, Mapping)


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, kind) for item in value)
