import json
from pathlib import Path

import numpy as np
import pytest
from turngym.envs import (
    Action,
    ConfigError,
    EnvFactory,
    ListTaskSource,
    RowTaskSource,
    StepResult,
    Task,
    check_env,
    make,
    spec,
)
from turngym.envs.single_turn import SingleTurnEnv

COLOURS = {"grass": "green", "snow": "white", "coal": "black", "a lemon": "yellow", "the sky": "blue"}
ROWS = [
    {"prompt": f"Which colour has {thing}?", "label": colour, "demonstrations": [colour, f"The answer is {colour}."]}
    for thing, colour in COLOURS.items()
]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2 = ?"}]


@pytest.fixture
def rows(tmp_path: Path) -> RowTaskSource:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return RowTaskSource(path)


@pytest.mark.parametrize("prompt", ["2 + 2 = ?", "", CHAT, tuple(CHAT), CHAT[0]])
async def test_a_row_is_asked_and_one_answer_ends_it(prompt):
    env = make("SingleTurn-v0")
    assert await env.reset(options={"prompt": prompt, "label": "4"}) == (prompt, {})
    assert await env.step(Action(text="4")) == StepResult(observation="", terminated=True)


@pytest.mark.parametrize("options", [{"question": "2 + 2 = ?"}, {"prompt": None}, {"prompt": []}, {"prompt": [1, 2]}])
async def test_a_row_without_a_prompt_is_refused(options):
    with pytest.raises(ConfigError) as caught:
        await SingleTurnEnv().reset(options=options)
    assert str(caught.value) == (
        "SingleTurn-v0 needs the option 'prompt', as text or as a list of chat messages; the task has "
        f"{', '.join(options)}: choose the column with --input_key"
    )


async def test_without_a_task_it_asks_for_anything():
    assert await SingleTurnEnv().reset(seed=1) == ("Say something.", {})


@pytest.mark.parametrize(("column", "drawn"), [
    ("4", {"4"}),
    (["4"], {"4"}),
    (("4", "four"), {"4", "four"}),
    ([], None),
    (None, None),
])  # fmt: skip
def test_one_of_a_rows_demonstrations_is_drawn(column, drawn):
    task = Task(id="t", options={"prompt": "2 + 2 = ?", "demonstrations": column})
    rng = np.random.default_rng(0)
    found = [SingleTurnEnv.demonstrations(task, rng) for _ in range(20)]
    assert {actions[0] for actions in found if actions} == (drawn or set())
    assert all((actions is None) if drawn is None else len(actions or ()) == 1 for actions in found)


def test_demonstrations_that_are_no_answers_are_refused():
    with pytest.raises(ConfigError) as caught:
        SingleTurnEnv.demonstrations(Task(id="t", options={"demonstrations": [1]}), np.random.default_rng(0))
    assert str(caught.value) == "task 't': demonstrations=[1] must be an answer or a list of answers"


def test_rows_of_a_file_bring_their_demonstrations(rows):
    actions = make("SingleTurn-v0").demonstrations(rows.task(0), np.random.default_rng(0))
    assert actions in (["green"], ["The answer is green."])


def test_it_passes_the_checks_on_rows_with_a_reward(rows):
    factory = EnvFactory(id="SingleTurn-v0", kwargs={"reward": "check_answer"})
    report = check_env(factory, tasks=rows)
    assert report.passed, str(report)


def test_the_checks_tell_when_nothing_rewards_the_demonstrations(rows):
    report = check_env("SingleTurn-v0", tasks=rows)
    assert [result.name for result in report.results if not result.passed] == ["demonstrations"]


def test_it_passes_the_checks_without_tasks():
    assert check_env("SingleTurn-v0").passed


def test_it_passes_the_checks_on_chats():
    tasks = ListTaskSource([Task(id="t", options={"prompt": CHAT, "label": "4"})])
    assert check_env("SingleTurn-v0", tasks=tasks).passed


def test_it_has_no_tasks_of_its_own():
    assert spec("SingleTurn-v0").tasks is None
