"""Episodes are stored whole, read back as they were, and never half written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turngym.agents import (
    Ending,
    Episode,
    EpisodeBuilder,
    EpisodeWriter,
    Failure,
    Generation,
    VersionSpan,
    read_episodes,
)
from turngym.agents.store import SCHEMA_VERSION
from turngym.envs import SamplingParams
from turngym.envs.errors import DataError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
TOKEN = st.integers(0, 2**40)
FINITE = st.floats(-1e6, 1e6, width=32)


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    token_ids = tuple(draw(st.lists(TOKEN, max_size=5)))
    cut = draw(st.integers(0, len(token_ids)))
    kept = draw(st.none() | st.just(tuple((i, i + 1) for i in token_ids)))
    return Generation(
        token_ids=token_ids,
        logprobs=tuple(draw(st.lists(FINITE, min_size=len(token_ids), max_size=len(token_ids)))),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        versions=tuple(VersionSpan(v, n) for v, n in ((3, cut), (4, len(token_ids) - cut)) if n),
        kept_token_ids=kept,
    )


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    builder = EpisodeBuilder(
        episode_id=draw(UNICODE), task_id=draw(UNICODE), slot=3, member=1, attempt=2, env_seed=draw(st.none() | TOKEN)
    )
    builder.observe(draw(st.lists(TOKEN, min_size=1, max_size=5)))
    for _ in range(draw(st.integers(0, 3))):
        generation = draw(generations())
        sampling = SamplingParams(
            temperature=draw(st.floats(0, 2)),
            top_p=0.9,
            top_k=4,
            stop_token_ids=(5, 6),
            stop=("a",),
            seed=draw(st.none() | st.integers(0, 2**70)),
        )
        builder.act(generation, sampling=sampling, text=draw(UNICODE), generate_s=0.25)
        count = len(generation.token_ids)
        builder.feed_back(
            reward=draw(FINITE),
            token_rewards=draw(st.none() | st.lists(FINITE, min_size=count, max_size=count)),
            score=draw(st.none() | st.floats(0, 1)),
            feedback=draw(UNICODE),
            info=draw(st.dictionaries(st.text(), JSON, max_size=3)),
        )
        (builder.fork if draw(st.booleans()) else builder.observe)(draw(st.lists(TOKEN, max_size=3)))
    failure = Failure(kind="infra", where="step", error="E", message="m", turn=1, traceback="t")
    return builder.finish(
        draw(st.sampled_from(list(Ending))),
        failure=draw(st.none() | st.just(failure)),
        reset_info=draw(st.dictionaries(st.text(), JSON, max_size=2)),
        duration_s=1.5,
        prompt=draw(UNICODE),
    )


def assert_equal(one: Episode, other: Episode) -> None:
    for field in fields(Episode):
        if field.name != "records":
            assert getattr(one, field.name) == getattr(other, field.name)
    assert len(one.records) == len(other.records)
    for a, b in zip(one.records, other.records, strict=True):
        assert a.agent == b.agent
        for name in ("token_ids", "action_mask", "sampled_logprobs", "versions", "token_rewards", "turn_index"):
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype
            assert not y.flags.writeable
            np.testing.assert_array_equal(x, y)
        assert (a.kept_token_ids is None) == (b.kept_token_ids is None)
        for x, y in zip(a.kept_token_ids or (), b.kept_token_ids or (), strict=True):
            np.testing.assert_array_equal(x, y)


@given(st.lists(episodes(), max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_read_equals_what_was_written(tmp_path: Path, written: list[Episode]) -> None:
    read = read_episodes(EpisodeWriter(tmp_path).write(written))
    assert len(read) == len(written)
    for one, other in zip(written, read, strict=True):
        assert_equal(one, other)


def episode(info: Any = None) -> Episode:
    builder = EpisodeBuilder(episode_id="e", task_id="t")
    builder.observe([1, 2])
    generation = Generation(token_ids=(3,), logprobs=(-1.0,), finish_reason="stop", versions=(VersionSpan(0, 1),))
    builder.act(generation, sampling=SamplingParams(), text="a")
    builder.feed_back(reward=0.5, info=info)
    return builder.finish(Ending.TERMINATED)


def test_the_file_is_named_for_split_and_update(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path)
    assert writer.write([episode()], update=12) == tmp_path / "episodes" / "train-000012.parquet"
    assert writer.write([episode()], split="eval", update=3) == tmp_path / "episodes" / "eval-000003.parquet"
    assert sorted(path.name for path in writer.folder.iterdir()) == ["eval-000003.parquet", "train-000012.parquet"]


def test_any_parquet_reader_can_query_it(tmp_path: Path) -> None:
    path = EpisodeWriter(tmp_path).write([episode()])
    table = pq.read_table(path)
    assert table.schema.metadata[b"turngym.schema_version"] == str(SCHEMA_VERSION).encode()
    assert table.column("reward").to_pylist() == [0.5]
    assert table.column("turns").to_pylist()[0][0]["action_text"] == "a"


def test_infos_keep_what_json_can_hold_and_the_repr_of_the_rest(tmp_path: Path) -> None:
    info = {"array": np.arange(2), "scalar": np.float32(0.5), "tuple": (1, 2), 3: "key", "type": int, "set": {1}}
    (read,) = read_episodes(EpisodeWriter(tmp_path).write([episode(info)]))
    assert read.turns[0].info == {
        "array": [0, 1],
        "scalar": 0.5,
        "tuple": [1, 2],
        "3": "key",
        "type": "<class 'int'>",
        "set": "{1}",
    }


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = EpisodeWriter(tmp_path)
    path = writer.write([episode()])
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        writer.write([episode(), episode()])
    assert path.read_bytes() == before
    assert list(writer.folder.iterdir()) == [path]


def test_files_that_hold_no_episodes_are_refused_with_a_remedy(tmp_path: Path) -> None:
    other, text, later = tmp_path / "other.parquet", tmp_path / "text.parquet", tmp_path / "later.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    text.write_text("not parquet")
    table = pq.read_table(EpisodeWriter(tmp_path).write([episode()]))
    pq.write_table(table.replace_schema_metadata({"turngym.schema_version": "99"}), later)
    with pytest.raises(DataError, match="holds no episodes; give one of RUN/episodes"):
        read_episodes(other)
    with pytest.raises(DataError, match="is no Parquet file, or was cut off"):
        read_episodes(text)
    with pytest.raises(DataError, match="has schema version 99, and this turngym reads up to 2"):
        read_episodes(later)
    with pytest.raises(DataError, match="there is no file"):
        read_episodes(tmp_path / "missing.parquet")


def test_files_of_the_version_without_prompts_are_read(tmp_path: Path) -> None:
    path, first = EpisodeWriter(tmp_path).write([episode()]), tmp_path / "first.parquet"
    table = pq.read_table(path).drop_columns(["prompt"])
    pq.write_table(table.replace_schema_metadata({"turngym.schema_version": "1"}), first)
    (read,) = read_episodes(first)
    assert_equal(read, episode())
    assert not read.prompt
