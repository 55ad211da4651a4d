"""What a reward sees of an episode is what was read and sampled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from turngym.agents import Ending, Episode, EpisodeBuilder
from turngym.agents.engine import Generation, VersionSpan
from turngym.envs import SamplingParams, Task
from turngym.trainer.trajectories import prompt_of, trajectory_of, turn_trajectory

TASK = Task(id="sum/1", options={"prompt": "1 + 1 = ?", "label": "2", "level": 1})


def episode(*texts: str, prompt: str = "1 + 1 = ?", forks_at: int | None = None) -> Episode:
    """One turn for each text, whose tokens are its characters; its feedback names the turn."""
    builder = EpisodeBuilder(episode_id="e", task_id=TASK.id)
    builder.observe([1, 2, 3])
    for index, text in enumerate(texts):
        if index == forks_at:
            builder.fork([7, 8])
        builder.act(_generation([ord(letter) for letter in text]), sampling=SamplingParams(), text=text)
        builder.feed_back(reward=0.25 * index, feedback=f"feedback {index}", score=0.5)
        builder.observe([9])
    return builder.finish(Ending.TERMINATED, prompt=prompt)


def _generation(token_ids: Sequence[int]) -> Generation:
    count = len(token_ids)
    versions = (VersionSpan(0, count),) if count else ()
    return Generation(token_ids=tuple(token_ids), logprobs=(-1.0,) * count, finish_reason="stop", versions=versions)


def codes(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def test_a_whole_episode_keeps_its_turns_apart_and_its_responses_together() -> None:
    trajectory = trajectory_of(episode("3", "it is 2"), TASK, update=4)
    assert trajectory.prompt == "1 + 1 = ?"
    assert trajectory.response == "3\nit is 2"
    assert tuple(trajectory.token_ids) == codes("3it is 2")
    assert [(t.observation, t.response, t.token_ids, t.feedback, t.reward, t.score) for t in trajectory.turns] == [
        ("1 + 1 = ?", "3", codes("3"), "feedback 0", 0.0, 0.5),
        ("feedback 0", "it is 2", codes("it is 2"), "feedback 1", 0.25, 0.5),
    ]
    assert trajectory.messages == [
        {"role": "user", "content": "1 + 1 = ?"},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "feedback 0"},
        {"role": "assistant", "content": "it is 2"},
    ]
    assert (trajectory.label, trajectory.columns, trajectory.id) == ("2", dict(TASK.options), "e")
    assert trajectory.update == 4


def test_a_turn_sees_the_observation_that_it_answered_and_all_up_to_it() -> None:
    trajectory = turn_trajectory(episode("3", "it is 2", "5"), TASK, 1)
    assert (trajectory.prompt, trajectory.response) == ("feedback 0", "it is 2")
    assert trajectory.token_ids == codes("it is 2")
    assert [turn.response for turn in trajectory.turns] == ["3", "it is 2"]
    assert [message["content"] for message in trajectory.messages] == ["1 + 1 = ?", "3", "feedback 0", "it is 2"]


def test_an_empty_turn_stays_empty_after_turns_that_are_not() -> None:
    trajectory = turn_trajectory(episode("3", ""), TASK, 1)
    assert trajectory.response == ""
    assert trajectory.token_ids == ()


def test_an_episode_without_turns_has_an_empty_response() -> None:
    trajectory = trajectory_of(episode(), TASK)
    assert trajectory.response == ""
    assert not trajectory.token_ids
    assert [turn.response for turn in trajectory.turns] == [""]


def test_action_tokens_stand_in_order_over_the_records_of_a_fork() -> None:
    forked = episode("ab", "cd", "e", forks_at=1)
    assert len(forked.records) == 2
    assert tuple(trajectory_of(forked, TASK).token_ids) == codes("abcde")
    assert len(trajectory_of(forked, TASK).token_ids) == forked.num_action_tokens


def test_the_prompt_is_what_was_read_and_not_what_the_row_holds() -> None:
    assert prompt_of(episode("2", prompt="Question: 1 + 1 = ?"), TASK) == "Question: 1 + 1 = ?"
    assert trajectory_of(episode("2", prompt="Question: 1 + 1 = ?"), TASK).columns["prompt"] == "1 + 1 = ?"


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1 = ?"}]


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"prompt": "1 + 1 = ?"}, "1 + 1 = ?"),
        ({"prompt": CHAT}, "Be brief.\n1 + 1 = ?"),
        ({"prompt": [1, 2]}, ""),
        ({"prompt": [{"role": "user", "content": None}]}, ""),
        ({}, ""),
    ],
)
def test_episodes_stored_without_their_prompt_get_the_tasks(options: dict[str, object], prompt: str) -> None:
    task = Task(id="t", options=options)
    assert trajectory_of(episode("2", prompt=""), task).prompt == prompt


def test_a_chat_of_the_task_keeps_its_roles() -> None:
    task = Task(id="t", options={"prompt": CHAT})
    trajectory = trajectory_of(episode("2", prompt="Be brief.\n1 + 1 = ?"), task)
    assert trajectory.messages == [*CHAT, {"role": "assistant", "content": "2"}]
    rewritten = trajectory_of(episode("2", prompt="something else"), task)
    assert rewritten.messages[0] == {"role": "user", "content": "something else"}
