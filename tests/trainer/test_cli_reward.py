# ruff: noqa: E501 - messages stand whole
"""`turngym reward`: its commands, their tables, their mistakes and exit codes."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from turngym.trainer.cli import main
from turngym.trainer.cli.reward import COMMANDS
from turngym.trainer.cli.reward.shown import shown

REWARD_FILE = '''"""Rewards of a user."""
from turngym.envs.rewards import RewardOutput


def exact(response, label):
    return RewardOutput(float(response == label), metadata={"words": len(response.split())})


def says_it(response):
    return float("marzipan" in response.lower())


def breaks(response):
    raise KeyError("gone")
'''
BATCH_FILE = """
def reward_func(queries, prompts, labels):
    lengths = [len(query) - len(prompt) for query, prompt in zip(queries, prompts)]
    mean = sum(lengths) / len(lengths)
    return {"rewards": [length - mean for length in lengths], "scores": [0.5] * len(lengths), "extra_logs": {"n": len(lengths)}}
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("rewards.py").write_text(REWARD_FILE)
    Path("batch.py").write_text(BATCH_FILE)


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(("reward", *argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def mistake(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a mistake gets."""
    code, out, err = call(capsys, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err.strip().removeprefix("turngym reward: error: ")


def cases(*rows: dict[str, Any]) -> str:
    Path("cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "cases.jsonl"


def table_rows(out: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("tyr",), "there is no command `turngym reward tyr`; did you mean try?"),
        (("serve-them",), "there is no command `turngym reward serve-them`; there are run, try, rescore, attack"),
        (("run",), "the script is missing; give turngym reward run SCRIPT.py"),
        (("run", "no.py"), "there is no file no.py"),
        (("run", "cases.txt"), "cases.txt is no Python file; its name must end in .py"),
        (("run", "--verbose", "no.py"), "there is no flag --verbose; flags of the script come after its name"),
        (("try", "check_answer"), "--examples is missing; give a .jsonl file with one case a line"),
        (("try", "check_answer", "--examples", "no.jsonl"), "no.jsonl: there is no such file; give a .jsonl file with one case a line"),
        (("try", "check_answer", "--examples", "no.jsonl", "--tolerance", "-1"), "--tolerance -1 must be at least 0"),
        (("attack", "no.py"), "no.py: there is no such reward file; give a ready reward's name, FILE.py, FILE.py:NAME or module:NAME"),
        (("attack", "check_answer", "--reward_timeout_s", "0"), "--reward_timeout_s 0 must be above 0 seconds"),
        (("attack", "rewards.py:exact", "--reward_kwargs", "a=1"), "--reward_kwargs is for ready rewards, such as LengthReward; rewards.py:exact isn't one"),
        (("attack", "LengthReward", "--reward_kwargs", "size=1"), "--reward_kwargs: LengthReward takes no argument 'size'; it takes: target_length, tolerance, reward_type, target, name, scale, clip"),
        (("attack", "--threshold", "0.5"), "the reward is missing; give a ready reward's name, FILE.py, FILE.py:NAME or module:NAME"),
        (("rescore", "nowhere", "--reward", "check_answer"), "nowhere: there is no such folder; give the run's folder, such as runs/NAME"),
        (("rescore", ".", "--reward", "check_answer", "--limit", "0"), "--limit 0 must be at least 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_do(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
):
    assert mistake(capsys, *argv) == message


@pytest.mark.parametrize("argv", [(), ("help",)])
def test_it_lists_its_commands(capsys: pytest.CaptureFixture[str], argv: Sequence[str]):
    if argv:
        with pytest.raises(SystemExit):
            main(("reward", *argv))
    else:
        assert main(("reward",)) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_fits_the_terminal(capsys: pytest.CaptureFixture[str], command: str):
    with pytest.raises(SystemExit) as ended:
        main(("reward", command, "--help"))
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: turngym reward {command} ")
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('no good')", 1), ("raise SystemExit(True)", 1)],
)
def test_a_script_runs_as_main_and_its_exit_code_is_the_commands(
    capsys: pytest.CaptureFixture[str], ending: str, code: int
):
    Path("mine.py").write_text(
        "import sys\nfrom flux.rewards import LengthReward\nfrom flux.core.trajectory import Trajectory\n"
        "if __name__ == '__main__':\n"
        "    reward = LengthReward(target=2, tolerance=1)\n"
        "    print(reward.compute_reward(Trajectory(response='two words')).reward, sys.argv)\n"
        f"{ending}\n"
    )
    before = list(sys.argv)
    given_code, out, err = call(capsys, "run", "mine.py", "--flag", "value")
    assert (given_code, out) == (code, "1.0 ['mine.py', '--flag', 'value']\n")
    assert err == ("no good\n" if "no good" in ending else "")
    assert sys.argv == before


@pytest.mark.parametrize("error", ["AssertionError", "LookupError"])
def test_a_script_that_raises_ends_with_its_traceback_and_code_1(capsys: pytest.CaptureFixture[str], error: str):
    Path("mine.py").write_text(f"def check():\n    raise {error}('one is not two')\n\n\ncheck()\n")
    code, out, err = call(capsys, "run", "mine.py")
    assert (code, out) == (1, "")
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('mine.py", line 5, in <module>')
    assert lines[-1] == f"{error}: one is not two"


def test_a_script_may_ask_for_the_packages_that_it_names(capsys: pytest.CaptureFixture[str]):
    Path("mine.py").write_text("import flux.rewards\n")
    assert call(capsys, "run", "mine.py")[0] == 0
    code, _, err = call(capsys, "run", "--real_imports", "mine.py")
    assert code == 1
    assert err.endswith("ModuleNotFoundError: No module named 'flux'\n")


def test_a_mistake_with_a_reward_in_a_script_is_told_as_python_tells_it(capsys: pytest.CaptureFixture[str]):
    Path("mine.py").write_text("from turngym.envs import ConfigError\nraise ConfigError('wrong')\n")
    code, _, err = call(capsys, "run", "mine.py")
    assert code == 1
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("ConfigError: wrong\n")


def test_examples_that_are_as_expected_exit_0(capsys: pytest.CaptureFixture[str]):
    file = cases(
        {"prompt": "2 + 2?", "response": "4", "label": "4", "expected": {"reward": 1, "words": 1}},
        {"prompt": "2 + 2?", "response": "it is 5", "label": 4, "expected": 0},
        {"prompt": "2 + 2?", "response": "nothing expected", "label": 4},
    )
    code, out, err = call(capsys, "try", "rewards.py:exact", "--examples", file)
    assert (code, err) == (0, "")
    assert table_rows(out) == [
        ["line", "response", "part", "reward", "expected"],
        ["1", "4", "reward", "1", "1", "ok"],
        ["words", "1", "1", "ok"],
        ["2", "it is 5", "reward", "0", "0", "ok"],
        ["words", "3"],
        ["3", "nothing expected", "reward", "0"],
        ["words", "2"],
        ["3 cases, 0 off"],
    ]


def test_an_example_that_is_off_exits_1(capsys: pytest.CaptureFixture[str]):
    file = cases({"response": "5", "label": "4", "expected": 0.5})
    code, out, _ = call(capsys, "try", "rewards.py:exact", "--examples", file)
    assert code == 1
    assert ["1", "5", "reward", "0", "0.5", "off"] in table_rows(out)
    code, _, _ = call(capsys, "try", "rewards.py:exact", "--examples", file, "--tolerance", "0.5")
    assert code == 0


def test_an_example_whose_scoring_fails_is_failed_and_off(capsys: pytest.CaptureFixture[str]):
    code, out, _ = call(capsys, "try", "rewards.py:breaks", "--examples", cases({"response": "a"}))
    assert code == 1
    assert ["1", "a", "reward", "failed", "off"] in table_rows(out)
    assert re.search(r"^line 1 failed: .*KeyError: 'gone'", out, re.MULTILINE)
    assert out.endswith("1 case, 1 off\n")


def test_examples_of_a_group_reach_a_batch_file_together(capsys: pytest.CaptureFixture[str]):
    file = cases(
        {"prompt": "a", "response": "12", "group": "g", "expected": {"reward": -1, "score": 0.5, "n": 2}},
        {"prompt": "a", "response": "1234", "group": "g", "expected": {"reward": 1, "n": 2}},
        {"prompt": "a", "response": "1234", "expected": {"reward": 0, "n": 1}},
    )
    code, out, err = call(capsys, "try", "batch.py", "--examples", file)
    assert (code, err) == (0, ""), out


def test_a_ready_reward_takes_arguments(capsys: pytest.CaptureFixture[str]):
    file = cases({"response": "one two", "expected": 1})
    arguments = ("--examples", file, "--reward_kwargs", "target_length=2", "tolerance=1")
    assert call(capsys, "try", "LengthReward", *arguments)[0] == 0


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_hostile_text_stays_text_and_the_table_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
):
    monkeypatch.setenv("COLUMNS", str(columns))
    hostile = "[bold red]x[/] \x1b[31mred\x1b[0m\r\n\u202e\u200b " + "数" * 500
    code, out, _ = call(capsys, "try", "rewards.py:says_it", "--examples", cases({"response": hostile}))
    assert code == 0
    assert max(map(cell_len, out.splitlines())) <= columns
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[bold" in out


@given(text=st.text(max_size=600), width=st.integers(8, 100))
def test_whatever_is_shown_prints_in_one_line_of_the_width(text: str, width: int):
    head = shown(text, width).plain
    assert head.isprintable()
    assert cell_len(head) <= width


def test_an_attack_that_wins_is_named(capsys: pytest.CaptureFixture[str]):
    code, out, err = call(capsys, "attack", "rewards.py:says_it")
    assert (code, err) == (0, "")
    rows = table_rows(out)
    assert rows[0] == ["attack", "best", "mean", "response that earned the most"]
    assert rows[1][:2] == ["honest", "0"]
    assert rows[2][:2] == ["keyword stuffing", "1"]
    assert out.endswith("1 of 14 attacks earns 0.5 or more: keyword stuffing\n")
    assert max(map(len, out.splitlines()[:-1])) <= 80


def test_strict_exits_1_where_an_attack_wins(capsys: pytest.CaptureFixture[str]):
    assert call(capsys, "attack", "check_answer", "--strict", "--threshold", "0.5")[0] == 1
    code, out, _ = call(capsys, "attack", "check_answer", "--strict", "--threshold", "0.75")
    assert code == 0
    assert out.endswith("None of 14 attacks earns 0.75 or more.\n")


def test_where_nothing_can_be_scored_no_attack_is_called_harmless(capsys: pytest.CaptureFixture[str]):
    code, out, _ = call(capsys, "attack", "rewards.py:breaks")
    assert code == 1
    assert ["empty", "failed"] in table_rows(out)
    assert not re.search(r"^[a-z -]+ 0 ", out, re.MULTILINE)
    assert re.search(
        r"^honest, empty, whitespace and 12 more: (\d+) of \1 failed: .*KeyError: 'gone'", out, re.MULTILINE
    )
    assert out.endswith("\nNothing could be scored; give --examples with the columns that the reward needs.\n")


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 1)])
def test_an_attack_that_can_not_be_scored_is_not_harmless(
    capsys: pytest.CaptureFixture[str], strict: tuple[str, ...], code: int
):
    Path("half.py").write_text("def reward(response):\n    return 0 / len(response)\n")
    given_code, out, _ = call(capsys, "attack", "half.py", *strict)
    assert given_code == code
    assert ["empty", "failed"] in table_rows(out)
    assert re.search(r"^empty: 4 of 4 failed: .*ZeroDivisionError: division by zero", out, re.MULTILINE)
    assert "\nNone of 14 attacks earns 0.5 or more; 1 could not be scored; nor does an honest response" in out


def test_attacks_use_the_prompts_that_are_given(capsys: pytest.CaptureFixture[str]):
    file = cases({"prompt": "Say marzipan.", "response": "Marzipan!"}, {"prompt": "Again."})
    code, out, _ = call(capsys, "attack", "rewards.py:says_it", "--examples", file)
    assert code == 0
    assert table_rows(out)[1] == ["honest", "1", "1", "Marzipan!"]
    assert "echo" in out.splitlines()[-1]


def test_a_run_is_rescored_with_another_reward(capsys: pytest.CaptureFixture[str], policy_folder: Path):
    rows = [{"prompt": f"{n} + 1 =", "label": str(n + 1)} for n in range(40)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = (
        "train", "--prompt_data", "rows.jsonl", "--label_key", "label", "--reward_function", "check_answer",
        "--pretrain", str(policy_folder), "--device", "cpu", "--max_new_tokens", "4", "--out", "run",
        "--num_updates", "1", "--rollout_batch_size", "2", "--n_samples_per_prompt", "2", "--eval_steps", "-1",
    )  # fmt: skip
    assert main(arguments) == 0
    capsys.readouterr()
    code, out, err = call(capsys, "rescore", "run", "--reward", "rewards.py:exact")
    assert (code, err) == (0, "")
    assert "exact" in out
    assert "4 " in out
    code, limited, _ = call(capsys, "rescore", "run", "--reward", "LengthReward", "--limit", "2")
    assert code == 0
    assert limited != out


@pytest.mark.parametrize("argv", [["reward"], ["reward", "try", "--help"], ["reward", "attack", "check_answer"]])
def test_light_commands_do_not_import_torch(argv: list[str]):
    code = (
        "import sys; from turngym.trainer.cli import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'openai', 'matplotlib'} & set(sys.modules)\nsys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reward_that_compares_is_attacked_by_its_scores(capsys: pytest.CaptureFixture[str]):
    _, out, _ = call(capsys, "attack", "batch.py")
    assert "The reward compares episodes: its scores are shown, not its rewards." in out
    assert "14 of 14 attacks earn 0.5 or more" in out


def test_an_attack_that_honest_responses_do_not_beat_says_little(capsys: pytest.CaptureFixture[str]):
    _, out, _ = call(capsys, "attack", "rewards.py:exact")
    assert out.endswith(
        "None of 14 attacks earns 0.5 or more; nor does an honest response, so this says little: "
        "give --examples with better ones, or another --threshold.\n"
    )


def test_cases_that_fail_alike_share_a_line(capsys: pytest.CaptureFixture[str]):
    Path("cases.jsonl").write_text('{"response": "4"}\n' * 7)
    _, out, _ = call(capsys, "try", "rewards.py:breaks", "--examples", "cases.jsonl")
    assert out.count("KeyError") == 1
    assert "lines 1, 2, 3, 4, 5 and 2 more failed: " in out


def test_a_wrong_argument_of_a_ready_reward_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]):
    Path("cases.jsonl").write_text('{"response": "4"}\n')
    err = mistake(capsys, "try", "FormatReward", "--reward_kwargs", "sections=1", "--examples", "cases.jsonl")
    assert "FormatReward takes no argument 'sections'; it takes: required_sections, forbidden_patterns" in err
