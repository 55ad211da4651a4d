"""docs/rewards.md: every block runs, from first to last, as a reader would run them."""

import contextlib
import io
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from turngym.envs.rewards import catalog
from turngym.trainer.cli import main
from turngym.trainer.cli.flags import FlagParser, add_section, parse
from turngym.trainer.config import SECTIONS

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n+(?P<skip><!-- not run[^\n]*\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SAVED = re.compile(r"this as `(?P<name>[\w.]+)`")


class Block(NamedTuple):
    """A block of code: its language, its text, the file it is to be saved as, whether it is run."""

    kind: str
    text: str
    file: str | None
    is_run: bool


def blocks() -> list[Block]:
    found = []
    for match in BLOCK.finditer(PAGE.read_text()):
        saved = SAVED.search(match["before"])
        found.append(Block(match["kind"], match["text"], saved["name"] if saved else None, match["skip"] is None))
    return found


@pytest.fixture
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(catalog, "_registered", dict(catalog._registered))
    rows = [{"response": "five words are right here", "expected": 1}, {"response": "none", "expected": 0.6}]
    Path("other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_commands(text: str) -> None:
    """Run `turngym reward` commands; of others, see that the flags are right."""
    for line in text.splitlines():
        _, command, *arguments = shlex.split(line)
        if command == "reward":
            assert main((command, *arguments)) == 0, line
        else:
            parser = FlagParser(f"turngym {command}", "")
            for section in SECTIONS.values():
                add_section(parser, section)
            parse(parser, arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_folder_of_its_own")
def test_every_block_runs():
    names: dict[str, Any] = {"__name__": "page"}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for block in blocks():
            if block.file is not None:
                Path(block.file).write_text(block.text)
            elif not block.is_run:
                continue
            elif block.kind == "sh":
                run_commands(block.text)
            elif block.kind == "python":
                exec(compile(block.text, str(PAGE), "exec"), names)
    assert "3 cases, 0 off" in said.getvalue()
    assert "2 cases, 0 off" in said.getvalue()


def test_the_page_has_its_blocks():
    kinds = [block.kind for block in blocks()]
    assert len(kinds) == len(re.findall(r"^```\w+$", PAGE.read_text(), re.MULTILINE))
    assert (kinds.count("python"), kinds.count("sh")) > (12, 3)
    assert [block.file for block in blocks() if block.file] == ["reward_func.py", "polite.py", "cases.jsonl"]
    assert sum(not block.is_run for block in blocks()) == 4


def test_the_page_names_every_ready_reward():
    page = PAGE.read_text()
    assert [reward for reward in catalog.READY if f"`{reward}" not in page and reward != "total_reward"] == []


@pytest.mark.parametrize("block", [block for block in blocks() if block.kind == "python"], ids=lambda b: b.text[:20])
def test_blocks_that_are_not_run_are_python_all_the_same(block: Block):
    compile(block.text, str(PAGE), "exec")
