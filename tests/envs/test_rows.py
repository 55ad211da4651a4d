import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turngym.envs import Action, ConfigError, DataError, RowTaskSource, make

ROWS = [{"question": f"What is {n} + {n}?", "answer": f"Twice {n}.\n#### {2 * n}", "source": n} for n in range(50)]


def write(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(params=[".jsonl", ".parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / f"rows{request.param}", ROWS)


def read(path: Path, **kwargs: Any) -> RowTaskSource:
    return RowTaskSource(path, input_key="question", label_key="answer", **kwargs)


def prompts(source: RowTaskSource) -> list[str]:
    return [source.task(index).options["prompt"] for index in range(len(source))]


def test_each_row_is_a_task_with_all_of_its_columns(path: Path):
    source = read(path)
    assert source.num_tasks == 50
    assert dict(source.task(3).options) == {**ROWS[3], "prompt": "What is 3 + 3?", "label": "6"}
    with pytest.raises(IndexError, match=r"^task 50 of 50$"):
        source.task(50)
    assert pickle.loads(pickle.dumps(source)).task(3) == source.task(3)


def test_ids_name_the_place_unless_a_column_does(tmp_path: Path):
    unnamed = read(write(tmp_path / "a.jsonl", ROWS[:2]))
    assert [unnamed.task(index).id for index in range(2)] == ["a.jsonl, line 1", "a.jsonl, line 2"]
    rows = read(write(tmp_path / "a.parquet", ROWS[:2]))
    assert [rows.task(index).id for index in range(2)] == ["a.parquet, row 1", "a.parquet, row 2"]
    named = read(write(tmp_path / "b.jsonl", [{**ROWS[0], "id": 7}]))
    assert named.task(0).id == "7"


@pytest.mark.parametrize(
    ("label", "read_as"),
    [
        ("#### 42", "42"),
        ("It is 6 * 7 = 42.\n#### 42\n", "42"),
        ("#### 1\nNo:\n#### 1,042", "1,042"),
        ("####-5", "-5"),
        (" 42 ", "42"),
        ("four # two", "four # two"),
        (42, "42"),
        (42.0, "42"),
        (0.5, "0.5"),
        (True, "true"),
        (["a", 1], '["a", 1]'),
    ],
)
def test_labels_are_read_as_text(tmp_path: Path, label: object, read_as: str):
    path = write(tmp_path / "a.jsonl", [{"prompt": "p", "label": label}])
    assert RowTaskSource(path).task(0).options["label"] == read_as


def test_a_file_may_have_no_labels(tmp_path: Path):
    task = RowTaskSource(write(tmp_path / "a.jsonl", [{"prompt": "p"}])).task(0)
    assert dict(task.options) == {"prompt": "p"}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_splits_share_the_rows_between_them(path: Path, share: float):
    source = read(path, held_out_share=share)
    train, held_out = source.split("train"), source.split("held_out")
    assert sorted(prompts(train) + prompts(held_out)) == sorted(prompts(source))
    assert not set(prompts(train)) & set(prompts(held_out))
    assert prompts(read(path, held_out_share=share).split("held_out")) == prompts(held_out)
    assert train.split("train") is train


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=2, max_size=30))
def test_the_same_prompt_is_never_in_both_splits(tmp_path: Path, texts: list[str]):
    source = RowTaskSource(write(tmp_path / "any.jsonl", [{"prompt": text} for text in texts]))
    train, held_out = source.split("train"), source.split("held_out")
    assert not set(prompts(train)) & set(prompts(held_out))
    assert len(train) + len(held_out) == len(texts)
    assert (len(held_out) > 0 and len(train) > 0) or len(set(texts)) == 1


def test_one_split_cant_be_split_into_the_other(path: Path):
    with pytest.raises(ConfigError, match=r"^these tasks are the train split already; held_out is another$"):
        read(path).split("train").split("held_out")
    with pytest.raises(ConfigError, match=r"^split 'test' is unknown; there are train, held_out$"):
        read(path).split("test")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"^held_out_share=1\.5 must lie in \[0, 1\]$"):
        read(path, held_out_share=1.5)


GOOD = json.dumps({"prompt": "p", "label": "l"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"", "{path} is empty; it needs one row or more"),
        (b"\n \n", "{path} is empty; it needs one row or more"),
        (
            b"\n".join([GOOD.encode()] * 6 + [b'{"prompt": "p",']),
            "{path}, line 7: bad JSON: Expecting property name enclosed in double quotes: line 1 column 16 (char 15); "
            "each line must be one JSON object",
        ),
        (
            b'{"prompt": NaN}',
            "{path}, line 1: bad JSON: NaN is no JSON value; each line must be one JSON object",
        ),
        (b'\n["p"]', "{path}, line 2: list ['p']; each line must be one JSON object"),
        (GOOD.encode() + b'\n{"prompt": "\xff"}', "{path}, line 2: not UTF-8 at byte 12; save it as UTF-8"),
        (
            b'{"question": "p", "label": "l"}',
            "{path}, line 1: there is no column 'prompt'; it has question, label: choose with --input_key",
        ),
        (
            b'{"prompt": "p"}',
            "{path}, line 1: there is no column 'label'; it has prompt: choose with --label_key",
        ),
        (
            b'{"prompt": 3, "label": "l"}',
            "{path}, line 1: column 'prompt' holds int 3; a prompt must be a string, not empty",
        ),
        (
            b'{"prompt": " ", "label": "l"}',
            "{path}, line 1: column 'prompt' holds str ' '; a prompt must be a string, not empty",
        ),
        (
            b'{"prompt": "\\ud800", "label": "l"}',
            "{path}, line 1: column 'prompt' holds half of a surrogate pair; save the file as UTF-8",
        ),
        (
            b'{"prompt": "p", "label": null}',
            "{path}, line 1: column 'label' holds NoneType None; a label must be text or a number",
        ),
        (
            b'{"prompt": "p", "label": "l", "id": "a"}\n\n{"prompt": "q", "label": "l", "id": "a"}',
            "{path}, line 3: id 'a' stands in line 1 already; give each row an id of its own",
        ),
    ],
)
def test_a_bad_line_is_named_with_its_remedy(tmp_path: Path, lines: bytes, message: str):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(lines)
    with pytest.raises(DataError) as caught:
        RowTaskSource(path, label_key="label")
    assert str(caught.value) == message.format(path=path)


def test_deeply_nested_json_is_bad_json(tmp_path: Path):
    path = tmp_path / "deep.jsonl"
    path.write_text('{"prompt": ' + "[" * 100_000)
    with pytest.raises(DataError, match="line 1: bad JSON: "):
        RowTaskSource(path)


def test_a_bad_parquet_file_is_named(tmp_path: Path):
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"no parquet at all")
    with pytest.raises(DataError) as caught:
        RowTaskSource(path)
    assert str(caught.value).startswith(f"{path}: not a readable Parquet file: ")
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"is empty; it needs one row or more$"):
        RowTaskSource(path)
    write(path, ROWS[:2])
    with pytest.raises(DataError) as caught:
        RowTaskSource(path)
    assert str(caught.value) == (
        f"{path}, row 1: there is no column 'prompt'; it has question, answer, source: choose with --input_key"
    )


@pytest.mark.parametrize("name", ["missing.jsonl", "folder.jsonl", "rows.csv", "rows"])
def test_a_file_that_cant_be_read_is_named(tmp_path: Path, name: str):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "rows.csv").touch()
    path = tmp_path / name
    with pytest.raises(DataError) as caught:
        RowTaskSource(path)
    if name == "rows.csv":
        assert str(caught.value) == f"{path}: .csv isn't read; give a .jsonl or .parquet file"
    else:
        assert str(caught.value) == f"{path}: there is no such file; give the path of a .jsonl or .parquet file"


async def test_math_plays_rows_of_a_file(path: Path):
    async with make("Math-v0") as env:
        task = read(path).task(4)
        assert (await env.reset(options=task.options))[0] == "What is 4 + 4?"
        assert tuple(await env.step(Action(text="It is 8.")))[1:3] == (1.0, True)
