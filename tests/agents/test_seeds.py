"""Seeds follow from what a thing is."""

import subprocess
import sys

from turngym.agents.seeds import BLOCK, RequestSeeds, derive_seed, env_seed, task_key


def test_a_seed_depends_on_the_run_and_on_every_part_of_its_key() -> None:
    seeds = {
        derive_seed(run, epoch, task, member, attempt, turn)
        for run in range(2)
        for epoch in range(2)
        for task in range(2)
        for member in range(2)
        for attempt in range(2)
        for turn in range(2)
    }
    assert len(seeds) == 2**6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_shorter_key_is_another_key() -> None:
    assert derive_seed(0, 1) != derive_seed(0, 1, 0)


def test_a_turns_seed_does_not_depend_on_the_order_of_asking() -> None:
    forward, backward = RequestSeeds(7, 0, 1, 2, 3), RequestSeeds(7, 0, 1, 2, 3)
    turns = range(3 * BLOCK)
    in_order = [forward[turn] for turn in turns]
    assert in_order == [backward[turn] for turn in reversed(turns)][::-1]
    assert len(set(in_order)) == len(in_order)
    assert all(0 <= seed < 2**63 for seed in in_order)


def test_members_and_attempts_have_seeds_of_their_own() -> None:
    seeds = {RequestSeeds(0, 0, 5, member, attempt)[0] for member in range(8) for attempt in range(4)}
    assert len(seeds) == 32


def test_the_env_seed_belongs_to_epoch_and_task() -> None:
    assert env_seed(0, epoch=0, task_id="a") == env_seed(0, epoch=0, task_id="a")
    seeds = {env_seed(run, epoch=epoch, task_id=task) for run in (0, 1) for epoch in (0, 1) for task in ("a", "b")}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_a_tasks_key_is_the_same_in_another_process() -> None:
    program = "from turngym.agents.seeds import task_key; print(task_key('task-ü'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}
    )
    assert int(done.stdout) == task_key("task-ü")


def test_any_string_can_be_a_task_id() -> None:
    assert task_key("\ud800") != task_key("")
