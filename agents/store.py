"""Episodes on disk: one Parquet file per update, with a schema version, read back exactly as they were.

    RUN/episodes/train-000012.parquet      every episode played for update 12, failed attempts included
    RUN/episodes/eval-000012.parquet       the evaluation after it

One row is one episode; turns and token records are nested lists, which any Parquet reader can query. Infos are JSON:
what JSON can't hold is kept as its `repr`, tuples come back as lists, and keys as strings. Text that is no Unicode
(lone surrogates) is kept with escapes.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..envs.errors import DataError
from ..envs.sampling import SamplingParams
from .episode import Ending, Episode, Failure, TokenRecord, Turn

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
"""Version 1 has no prompts; its files are read, and their prompts are empty."""
_READABLE = (1, SCHEMA_VERSION)
_VERSION_KEY = b"turngym.schema_version"


class EpisodeWriter:
    """Writes a run's episodes.

    Args:
        run_dir: the run's folder; the files go to its subfolder `episodes`.
    """

    def __init__(self, run_dir: str | Path) -> None:
        import pyarrow.parquet  # noqa: F401 - here, as it takes half a second, which a running event loop doesn't have

        self.folder = Path(run_dir) / "episodes"

    def write(self, episodes: Sequence[Episode], *, split: Literal["train", "eval"] = "train", update: int = 0) -> Path:
        """Write the episodes of one update. The file appears whole or not at all, and replaces one of that name."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [_row(episode) for episode in episodes]
        table = pa.Table.from_pylist(rows, schema=_schema())
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{split}-{update:06d}.parquet"
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                pq.write_table(table, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_folder(self.folder)
        return path


def read_episodes(path: str | Path) -> list[Episode]:
    """The episodes of a file, equal to those that were written.

    Raises:
        DataError: the file is missing, holds no episodes, or has the schema of a later version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            if _VERSION_KEY not in metadata:
                raise DataError(f"{path} holds no episodes; give one of RUN/episodes/*.parquet")
            version = int(metadata[_VERSION_KEY])
            if version not in _READABLE:
                raise DataError(
                    f"{path} has schema version {version}, and this turngym reads up to {SCHEMA_VERSION}; "
                    "read it with the turngym that wrote it"
                )
            table = file.read()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is no Parquet file, or was cut off: {error}") from None
    columns = {name: table.column(name).to_pylist() for name in table.column_names if name != "records"}
    records = table.column("records").combine_chunks()
    return [
        _episode({name: column[row] for name, column in columns.items()}, records[row]) for row in range(len(table))
    ]


@functools.cache
def _schema() -> pa.Schema:
    import pyarrow as pa

    def struct(**fields: Any) -> pa.DataType:
        return pa.struct([pa.field(name, kind) for name, kind in fields.items()])

    text, count, seconds = pa.string(), pa.int32(), pa.float64()
    sampling = struct(
        temperature=pa.float64(),
        top_p=pa.float64(),
        top_k=pa.int64(),
        max_tokens=pa.int64(),
        stop_token_ids=pa.list_(pa.int64()),
        stop=pa.list_(text),
        seed=text,
    )
    turn = struct(
        record=count,
        observation_start=count,
        action_start=count,
        action_end=count,
        sampling=sampling,
        reward=pa.float64(),
        token_reward=pa.float64(),
        score=pa.float64(),
        finish_reason=text,
        action_text=text,
        feedback=text,
        info=text,
        generate_s=seconds,
        step_s=seconds,
    )
    record = struct(
        token_ids=pa.list_(pa.int64()),
        action_mask=pa.list_(pa.bool_()),
        sampled_logprobs=pa.list_(pa.float32()),
        versions=pa.list_(pa.int32()),
        token_rewards=pa.list_(pa.float32()),
        turn_index=pa.list_(pa.int32()),
        kept_token_ids=pa.list_(pa.list_(pa.int64())),
        agent=text,
    )
    failure = struct(kind=text, where=text, error=text, message=text, turn=count, traceback=text)
    fields = {
        "episode_id": text,
        "task_id": text,
        "slot": pa.int64(),
        "member": count,
        "attempt": count,
        "ending": text,
        "failure": failure,
        "env_seed": text,
        "reward": pa.float64(),
        "score": pa.float64(),
        "duration_s": seconds,
        "reset_info": text,
        "prompt": text,
        "turns": pa.list_(turn),
        "records": pa.list_(record),
    }
    return pa.schema(list(fields.items()), metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()})


_TURN_TEXTS = ("action_text", "feedback")
_TURN_FIELDS = (
    "record",
    "observation_start",
    "action_start",
    "action_end",
    "reward",
    "token_reward",
    "score",
    "finish_reason",
    "generate_s",
    "step_s",
)
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "max_tokens", "stop_token_ids", "stop")
_ARRAYS = ("token_ids", "action_mask", "sampled_logprobs", "versions", "token_rewards", "turn_index")
_FAILURE_FIELDS = ("kind", "where", "error", "message", "turn", "traceback")


def _row(episode: Episode) -> dict[str, Any]:
    failure = episode.failure
    return {
        "episode_id": _text(episode.episode_id),
        "task_id": _text(episode.task_id),
        "slot": episode.slot,
        "member": episode.member,
        "attempt": episode.attempt,
        "ending": episode.ending.value,
        "failure": None if failure is None else {name: _text(getattr(failure, name)) for name in _FAILURE_FIELDS},
        "env_seed": _digits(episode.env_seed),
        "reward": episode.reward,
        "score": episode.score,
        "duration_s": episode.duration_s,
        "reset_info": _to_json(episode.reset_info),
        "prompt": _text(episode.prompt),
        "turns": [_turn_row(turn) for turn in episode.turns],
        "records": [_record_row(record) for record in episode.records],
    }


def _turn_row(turn: Turn) -> dict[str, Any]:
    sampling = {name: getattr(turn.sampling, name) for name in _SAMPLING_FIELDS}
    return {
        **{name: getattr(turn, name) for name in _TURN_FIELDS},
        **{name: _text(getattr(turn, name)) for name in _TURN_TEXTS},
        "info": _to_json(turn.info),
        "sampling": {**sampling, "seed": _digits(turn.sampling.seed)},
    }


def _record_row(record: TokenRecord) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(record, name) for name in _ARRAYS}
    return {**row, "kept_token_ids": record.kept_token_ids, "agent": record.agent}


def _episode(row: Mapping[str, Any], records: pa.ListScalar) -> Episode:
    fields = {name: row[name] for name in ("episode_id", "task_id", "slot", "member", "attempt", "duration_s")}
    return Episode(
        **fields,
        ending=Ending(row["ending"]),
        failure=None if row["failure"] is None else Failure(**row["failure"]),
        turns=tuple(_turn(turn) for turn in row["turns"]),
        records=_records(records),
        env_seed=_number(row["env_seed"]),
        reset_info=json.loads(row["reset_info"]),
        prompt=row.get("prompt", ""),
    )


def _turn(row: dict[str, Any]) -> Turn:
    sampling = row.pop("sampling")
    for name in ("stop_token_ids", "stop"):
        sampling[name] = tuple(sampling[name])
    sampling["seed"] = _number(sampling["seed"])
    info = json.loads(row.pop("info"))
    return Turn(**row, sampling=SamplingParams(**sampling), info=info)


def _records(scalar: pa.ListScalar) -> tuple[TokenRecord, ...]:
    structs: Any = scalar.values
    columns = dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))
    records = []
    for index in range(len(structs)):
        arrays = {name: columns[name][index].values.to_numpy(zero_copy_only=False) for name in _ARRAYS}
        for array in arrays.values():
            array.setflags(write=False)
        kept: Any = columns["kept_token_ids"][index].values
        sets = None if kept is None else tuple(_array(item.values) for item in kept)
        records.append(TokenRecord(**arrays, kept_token_ids=sets, agent=columns["agent"][index].as_py()))
    return tuple(records)


def _array(values: Any) -> Any:
    return values.to_numpy(zero_copy_only=False).astype(np.int64)


def _to_json(info: Mapping[str, Any]) -> str:
    return json.dumps(_plain(info)) if info else "{}"


def _plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return repr(value)


def _text(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _digits(number: int | None) -> str | None:
    """Seeds may be larger than any of Parquet's integers."""
    return None if number is None else str(number)


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
