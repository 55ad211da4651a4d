"""The tasks of a finished run, found again from its settings: a stored episode holds the id of its task only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ...agents.store import SCHEMA_VERSION
from ...envs.errors import DataError, TurngymError
from ...envs.rows import RowTaskSource
from ...envs.tasks import Task, TaskSource
from ..config import SECTION_OF, TrainConfig
from .stored_groups import Split, stored_files


def tasks_of(run: Path | str, *, split: Split = "train", tasks: TaskSource | None = None) -> dict[str, Task]:
    """The tasks that a run's stored episodes played, by id.

    The environment and its tasks are made again from `RUN/config.yaml`, in the present folder if paths in it are
    relative. A source without end is followed in the order of training as far as the run can have gone; any other is
    looked through.

    Args:
        run: its folder.
        split: `train` or `eval` episodes.
        tasks: where the tasks come from, not split; by default what the run's settings name.

    Raises:
        DataError: there are no episodes, no settings, or a task isn't found again.
        ConfigError: the environment can't be made again.
    """
    stored = _stored_ids(run, split)
    wanted = set(stored)
    config = config_of(run)
    source = _source(run, config) if tasks is None else tasks
    found: dict[str, Task] = {}
    for task in _candidates(source, config, split, max_draws=len(stored)):
        if task.id in wanted:
            found.setdefault(task.id, task)
            if len(found) == len(wanted):
                return found
    missing = sorted(wanted - found.keys())
    raise DataError(
        f"{run}: {len(missing)} of its {len(wanted)} tasks aren't found again, such as {missing[0][:200]!r}; have the "
        "environment or its file of tasks changed since?"
    )


def config_of(run: Path | str) -> TrainConfig:
    """The settings of a run. Flags that this turngym doesn't know are left out.

    Raises:
        DataError: there are none, or they can't be read.
    """
    path = Path(run) / "config.yaml"
    try:
        flags: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{run}: there is no config.yaml in it; give the folder of a run") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{path} can't be read: {error}") from None
    if not isinstance(flags, dict):
        raise DataError(f"{path} holds {type(flags).__name__}; it must hold the run's flags, one a line")
    return TrainConfig.of(**{name: value for name, value in flags.items() if name in SECTION_OF})


def _source(run: Path | str, config: TrainConfig) -> TaskSource:
    from ..parts import env_parts

    env = config.env
    try:
        if env.prompt_data is not None:  # the environment itself isn't needed
            return RowTaskSource(env.prompt_data, input_key=env.input_key, label_key=env.label_key)
        if env.env:
            return env_parts(env).tasks
    except TurngymError as error:
        raise type(error)(
            f"{run}: its tasks can't be made again: {error} (paths count from the folder that the run was started in)"
        ) from error
    raise DataError(f"{run}: its config.yaml names no environment, since it was given in Python; give its tasks, too")


def _stored_ids(run: Path | str, split: Split) -> list[str]:
    """The task's id of each episode, read without the rest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids: list[str] = []
    for path in stored_files(run, split):
        try:
            ids += pq.read_table(path, columns=["task_id"]).column("task_id").to_pylist()
        except (pa.ArrowException, KeyError) as error:
            raise DataError(f"{path} holds no episodes of a version up to {SCHEMA_VERSION}: {error}") from None
    return ids


def _candidates(source: TaskSource, config: TrainConfig, split: Split, *, max_draws: int) -> Iterator[Task]:
    """Tasks, the likeliest first. Some come more than once."""
    from ..evaluate import held_out_tasks
    from ..task_order import TaskOrder

    if split == "eval":
        yield from held_out_tasks(source, config.evaluation.eval_tasks)
    elif source.num_tasks is None:
        order = TaskOrder(source.split("train"), seed=config.run.seed)
        yield from (order.task(place)[1] for place in range(max_draws))
    yield from (source.task(index) for index in range(source.num_tasks or 0))
