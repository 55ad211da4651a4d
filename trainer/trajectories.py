"""What a reward gets to see of an episode: `Episode` -> `Trajectory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..agents.episode import Episode, Turn
from ..envs.rewards.types import Trajectory, TrajectoryTurn
from ..envs.tasks import Task
from ..envs.types import Message


def trajectory_of(episode: Episode, task: Task, *, update: int | None = None) -> Trajectory:
    """A whole episode.

    Args:
        episode: what was played.
        task: what it started from: the label is its option `label`, the columns are all its options.
        update: the update that it is sampled for, or None outside of training.
    """
    turns = _turns(episode, task)
    return _trajectory(episode, task, turns, response="\n".join(turn.response for turn in turns), update=update)


def turn_trajectory(episode: Episode, task: Task, index: int, *, update: int | None = None) -> Trajectory:
    """One turn of an episode: its response, and as the prompt the observation that it answered.

    Its `turns` and `messages` are all up to this one; its `token_ids` are its own.

    Args:
        episode: what was played.
        task: what it started from.
        index: which turn, from 0.
        update: the update that it is sampled for, or None outside of training.
    """
    turns = _turns(episode, task)[: index + 1]
    trajectory = _trajectory(episode, task, turns, response=turns[index].response, update=update)
    trajectory.prompt = turns[index].observation
    trajectory.token_ids = turns[index].token_ids
    return trajectory


def prompt_of(episode: Episode, task: Task) -> str:
    """The first observation as text: as the policy read it, and of episodes stored without it the task's `prompt`."""
    return episode.prompt or _text(task.options.get("prompt"))


def _trajectory(
    episode: Episode, task: Task, turns: Sequence[TrajectoryTurn], *, response: str, update: int | None
) -> Trajectory:
    trajectory = Trajectory(
        prompt=prompt_of(episode, task),
        turns=turns,
        messages=_messages(task, turns),
        label=task.options.get("label"),
        columns=dict(task.options),
        id=episode.episode_id,
        update=update,
    )
    trajectory.response = response  # set here, since an empty one stays empty: the constructor would fill it in
    return trajectory


def _turns(episode: Episode, task: Task) -> list[TrajectoryTurn]:
    observed = [prompt_of(episode, task), *(turn.feedback for turn in episode.turns)]
    return [
        TrajectoryTurn(
            observation=observation,
            response=turn.action_text,
            token_ids=_token_ids(episode, turn),
            feedback=turn.feedback,
            reward=turn.earned,
            score=turn.score,
        )
        for observation, turn in zip(observed, episode.turns, strict=False)
    ]


def _token_ids(episode: Episode, turn: Turn) -> tuple[int, ...]:
    return tuple(episode.records[turn.record].token_ids[turn.action_start : turn.action_end].tolist())


def _messages(task: Task, turns: Sequence[TrajectoryTurn]) -> list[Message]:
    """User and assistant in turn; a first observation that was the task's chat keeps its roles."""
    messages: list[Message] = []
    for index, turn in enumerate(turns):
        chat = _chat(task.options.get("prompt")) if index == 0 else []
        if chat and _text(chat) == turn.observation:
            messages += chat
        elif turn.observation:
            messages.append({"role": "user", "content": turn.observation})
        messages.append({"role": "assistant", "content": turn.response})
    return messages


def _chat(prompt: Any) -> list[Message]:
    """A task's prompt that is a chat, by role and content; empty where it is none."""
    if not isinstance(prompt, list | tuple):
        return []
    if not all(isinstance(m, Mapping) and isinstance(m.get("content"), str) and "role" in m for m in prompt):
        return []
    return [{"role": message["role"], "content": message["content"]} for message in prompt]


def _text(prompt: Any) -> str:
    """A task's prompt as text: a chat's contents, a line each."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in _chat(prompt))
