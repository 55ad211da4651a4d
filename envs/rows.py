"""Tasks from a JSONL or Parquet file: one task a row."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, DataError
from .tasks import SplitName, Task, TaskSource, narrowed, share_of

_FINAL_ANSWER = re.compile(r"####[ \t]*(\S[^\n]*?)\s*\Z")


class RowTaskSource(TaskSource):
    """The rows of a JSONL or Parquet file as tasks.

    A row's columns become the task's options, with the prompt under `prompt` and the label under `label`. A label that
    ends in `#### 42` is read as `42`; the whole text stays in its column where that has another name. A column `id`
    names the task; without one, its line does.

    Args:
        path: a `.jsonl` (one object a line) or `.parquet` file.
        input_key: the column that holds the prompt.
        label_key: the column that holds the label; None takes the column `label` where there is one.
        held_out_share: the share of the prompts that is held out. A hash of its prompt decides about a row, so that the
            same prompt is never in both splits; of several prompts, each split gets one at least.

    Raises:
        DataError: the file is missing, empty, not what its name says, or a row can't be used; the message names the
            file, the line (from 1) and the remedy.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        input_key: str = "prompt",
        label_key: str | None = None,
        held_out_share: float = 0.1,
    ) -> None:
        if not 0 <= held_out_share <= 1:
            raise ConfigError(f"held_out_share={held_out_share!r} must lie in [0, 1]")
        self.path = Path(path)
        self.input_key = input_key
        self.label_key = label_key
        self.held_out_share = held_out_share
        self.part: SplitName | None = None
        self._places: dict[str, str] = {}
        self._tasks = tuple(self._read())

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """The task at an index from 0, in the file's order."""
        if not 0 <= index < len(self._tasks):
            raise IndexError(f"task {index} of {len(self._tasks)}")
        return self._tasks[index]

    def place(self, task: Task) -> str:
        """Where a task stands: file and line."""
        return f"{self.path}, {self._places[task.id]}"

    def split(self, name: SplitName) -> RowTaskSource:
        """The rows for training, or those held out."""
        if self.part == narrowed(self.part, name):
            return self
        held_out, is_wanted = self._held_out_prompts(), name == "held_out"
        part = copy.copy(self)
        part.part = name
        tasks = tuple(task for task in self._tasks if (task.options["prompt"] in held_out) == is_wanted)
        part._tasks = tasks  # noqa: SLF001 - its own kind
        return part

    def _held_out_prompts(self) -> set[str]:
        prompts = sorted({task.options["prompt"] for task in self._tasks}, key=share_of)
        num_held_out = sum(share_of(prompt) < self.held_out_share for prompt in prompts)
        if len(prompts) > 1 and 0 < self.held_out_share < 1:
            num_held_out = min(max(num_held_out, 1), len(prompts) - 1)  # neither split is empty
        return set(prompts[:num_held_out])

    def _read(self) -> Iterator[Task]:
        unit = "row" if self.path.suffix == ".parquet" else "line"
        for number, row in _rows(self.path):
            place = f"{unit} {number}"
            task = self._task(row, place)
            if task.id in self._places:
                raise DataError(
                    f"{self.path}, {place}: id {task.id!r} stands in {self._places[task.id]} already; "
                    "give each row an id of its own"
                )
            self._places[task.id] = place
            yield task
        if not self._places:
            raise DataError(f"{self.path} is empty; it needs one row or more")

    def _task(self, row: Mapping[str, Any], place: str) -> Task:
        where = f"{self.path}, {place}"
        prompt = _column(row, self.input_key, "--input_key", where)
        if not isinstance(prompt, str) or not prompt.strip():
            raise DataError(
                f"{where}: column {self.input_key!r} holds {_describe(prompt)}; a prompt must be a string, not empty"
            )
        if not prompt.isprintable() and re.search("[\ud800-\udfff]", prompt):
            raise DataError(
                f"{where}: column {self.input_key!r} holds half of a surrogate pair; save the file as UTF-8"
            )
        options = {**row, "prompt": prompt}
        if self.label_key is not None:
            options["label"] = label_text(_column(row, self.label_key, "--label_key", where), self.label_key, where)
        elif "label" in row:
            options["label"] = label_text(row["label"], "label", where)
        id_ = row.get("id")
        return Task(id=f"{self.path.name}, {place}" if id_ is None else str(id_), options=options)


def _column(row: Mapping[str, Any], name: str, flag: str, where: str) -> Any:
    if name not in row:
        raise DataError(f"{where}: there is no column {name!r}; it has {', '.join(row) or 'none'}: choose with {flag}")
    return row[name]


def label_text(value: object, name: str, where: str) -> str:
    """A label as text; of a worked solution in GSM8K's form, what stands after `####`.

    Args:
        value: what the row holds.
        name: the column that holds it.
        where: file and line, for messages.

    Raises:
        DataError: it is neither text nor a number, nor a list, an object or a bool, which are given as JSON.
    """
    if isinstance(value, str):
        match = _FINAL_ANSWER.search(value)
        text = (match[1] if match else value).strip()
        if text:
            return text
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    elif isinstance(value, bool | list | dict):
        return json.dumps(value)
    raise DataError(f"{where}: column {name!r} holds {_describe(value)}; a label must be text or a number")


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row with its line number from 1."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; give the path of a .jsonl or .parquet file")
    if path.suffix in (".jsonl", ".json"):
        return jsonl_rows(path)
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    raise DataError(f"{path}: {path.suffix or 'no suffix'} isn't read; give a .jsonl or .parquet file")


def jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each object of a JSONL file with its line number from 1; empty lines are passed over.

    Raises:
        DataError: a line isn't UTF-8, or no JSON object; the message names file, line and remedy.
    """
    with path.open("rb") as file:
        for line, content in enumerate(file, start=1):
            if not content.strip():
                continue
            try:
                row = json.loads(content.decode("utf-8-sig" if line == 1 else "utf-8"), parse_constant=_refuse_constant)
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {line}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {line}: bad JSON: {error}; each line must be one JSON object") from None
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {line}: {_describe(row)}; each line must be one JSON object")
            yield line, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    if path.stat().st_size == 0:
        return
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = itertools.chain.from_iterable(batch.to_pylist() for batch in file.iter_batches())
            yield from enumerate(rows, start=1)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON value")


def _describe(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
