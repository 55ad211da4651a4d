# ruff: noqa: E501 - messages stand whole
"""The command line: names, mistakes, and the commands themselves."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from turngym.trainer.cli import COMMANDS, main
from turngym.trainer.cli.flag_names import ALIASES, NOT_YET
from turngym.trainer.config import SECTION_OF

ENV_FILE = '''
from turngym.envs import AgentInstance, StepResult


class Odd(AgentInstance):
    """One turn, odd or even."""

    async def reset(self, *, seed=None, options=None):
        return options["prompt"], {}

    async def step(self, action):
        is_odd = float(len(action.text) % 2)
        return StepResult(observation="", reward=is_odd, terminated=True, score=is_odd)
'''


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def mistake(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a mistake gets."""
    code, out, err = call(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.strip().removeprefix(f"turngym {argv[0]}: error: ")


TRAIN = ("train", "--env", "Math-v0")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("trian",), "turngym: error: there is no command 'trian'; did you mean train?"),
        (("serve",), "turngym: error: there is no command 'serve'; there are train, eval, check, check-tokens, reward, envs"),
        ((*TRAIN, "--num_update", "3"), "there is no flag --num_update; did you mean --num_updates?"),
        ((*TRAIN, "--algo.advantage.estimater", "x"), "there is no flag --algo.advantage.estimater; did you mean --algo.advantage.estimator?"),
        ((*TRAIN, "--zzzz", "3"), "there is no flag --zzzz; --help shows all"),
        ((*TRAIN, "--credit", "each"), "--credit: choose one of episode, turn, token; got each"),
        ((*TRAIN, "--num_updates", "many"), "--num_updates: expected int; got many"),
        ((*TRAIN, "--num_updates", "-3"), "--num_updates -3 must be at least 0"),
        ((*TRAIN, "--num_updates", "3", "4"), "--num_updates takes one value, got 2: 3 4"),
        ((*TRAIN, "--seed"), "--seed needs a value"),
        ((*TRAIN, "3"), "--env takes one value, got 2: Math-v0 3"),
        ((*TRAIN, "--env_kwargs", "level"), "--env_kwargs 'level': give key=value pairs, or one JSON object"),
        ((*TRAIN, "--advantage_estimator", "gae"), "--advantage_estimator gae can't be used yet: there is no critic yet; choose an estimator that compares within the group, such as rloo"),
        ((*TRAIN, "--label_key", "answer"), "--label_key answer without --prompt_data; name the file of tasks too"),
        ((*TRAIN, "--pretrain", "nowhere"), "--pretrain nowhere: there is no such folder; give one, or a Hub name owner/model"),
        ((*TRAIN, "--config", "no.yaml"), "--config no.yaml: there is no such file"),
        ((*TRAIN, "--env_kwargs", "levl=2"), "Math-v0 takes no argument 'levl'; it takes: level, max_action_chars, max_attempts, rewards, seed, split"),
        (("train",), "--env is missing; `turngym envs` lists what there is, or give file.py:Class"),
        (("train", "--env", "Math-v1"), "no environment 'Math-v1'; did you mean Math-v0? Otherwise give module:Class or path/to/file.py:Class"),
        (("eval", "--env", "Math-v0"), "--model is missing; give a transformers folder, such as runs/NAME/policy"),
        (("eval", "--model", "nowhere", "--env", "Math-v0"), "--model nowhere: there is no such folder; give one, or a Hub name owner/model"),
        (("check-tokens",), "--model is missing; give a transformers folder or a Hub name"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: tuple[str, ...], message: str
):
    assert mistake(capsys, *argv) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", sorted(NOT_YET))
def test_a_flag_whose_part_does_not_exist_is_refused_by_name_and_its_value_never_shown(
    capsys: pytest.CaptureFixture[str], flag: str
):
    message = mistake(capsys, *TRAIN, f"--{flag}", "sk-secret")
    assert message.startswith(f"--{flag} can't be used yet: ")
    assert "secret" not in message


def test_a_token_after_an_equals_sign_is_not_shown_either(capsys: pytest.CaptureFixture[str]):
    assert "secret" not in mistake(capsys, *TRAIN, "--logger.wandb.key=sk-secret")


def test_every_alias_stands_for_a_flag_and_is_none_itself():
    for alias, flag in ALIASES.items():
        assert flag in SECTION_OF or flag in NOT_YET, alias
        assert alias not in SECTION_OF, alias
    assert not set(NOT_YET) & set(SECTION_OF)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    """The settings that a command line means."""
    with pytest.raises(SystemExit) as ended:
        main((*argv, "--print_config"))
    assert ended.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_openrlhfs_dotted_names_are_aliases(capsys: pytest.CaptureFixture[str]):
    dotted = printed(
        capsys, *TRAIN, "--algo.advantage.estimator", "group_norm", "--rollout.n_samples_per_prompt", "4",
        "--data.prompt_dataset", "a.jsonl", "--data.input_key", "q", "--data.label_key=a", "--actor.adam.lr", "1e-4",
    )  # fmt: skip
    flat = printed(
        capsys, *TRAIN, "--advantage_estimator", "group_norm", "--n_samples_per_prompt", "4",
        "--prompt_data", "a.jsonl", "--input_key", "q", "--label_key", "a", "--learning_rate", "1e-4",
    )  # fmt: skip
    assert dotted == flat
    assert flat["learning_rate"] == 1e-4


def test_values_in_all_their_forms(capsys: pytest.CaptureFixture[str]):
    pairs = printed(capsys, *TRAIN, "--env_kwargs", "level=2", "max_attempts=3", "--resume", "--stop", "a b", "c")
    assert pairs["env_kwargs"] == {"level": 2, "max_attempts": 3}
    assert pairs["resume"] is True
    assert pairs["stop"] == ["a b", "c"]
    forms = printed(capsys, *TRAIN, "--env_kwargs", '{"level": 2}', "--resume", "false", "--adam_betas", "0.8", "0.9")
    assert forms["env_kwargs"] == {"level": 2}
    assert forms["resume"] is False
    assert forms["adam_betas"] == [0.8, 0.9]


def test_a_yaml_file_gives_values_and_the_command_line_wins(capsys: pytest.CaptureFixture[str]):
    Path("run.yaml").write_text("env: Math-v0\nnum_updates: 5\nseed: 3\nenv_kwargs:\n  level: 2\n")
    settings = printed(capsys, "train", "--config", "run.yaml", "--seed", "4")
    assert (settings["env"], settings["num_updates"], settings["seed"]) == ("Math-v0", 5, 4)
    assert settings["env_kwargs"] == {"level": 2}


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_pair_of_the_section_training_stands_for_its_flag(capsys: pytest.CaptureFixture[str], plus: str):
    pairs = printed(
        capsys, "train", f"{plus}training.reward_function=check_answer", "--stop", "a", f"{plus}training.log_rewards=true",
        f"{plus}training.save_reward_analysis=true", "--env_kwargs", "level=2",
    )  # fmt: skip
    flags = printed(
        capsys, "train", "--reward_function", "check_answer", "--log_rewards", "--save_reward_analysis",
        "--stop", "a", "--env_kwargs", "level=2",
    )  # fmt: skip
    assert pairs == flags
    assert (flags["reward_function"], flags["log_rewards"], flags["save_reward_analysis"]) == (
        "check_answer",
        True,
        True,
    )


def test_a_yaml_file_may_have_sections_and_the_names_of_others(capsys: pytest.CaptureFixture[str]):
    Path("run.yaml").write_text(
        "training:\n  reward_function: check_answer\n  log_rewards: true\n  num_updates: 7\n"
        "env_kwargs:\n  level: 2\nalgo:\n  advantage:\n    estimator: group_norm\n  dynamic_filtering_enable: true\n"
        "  dynamic_filtering_range: [0.1, 0.9]\n"
    )
    settings = printed(capsys, "train", "--config", "run.yaml")
    assert settings["reward_function"] == "check_answer"
    assert settings["log_rewards"] is True
    assert settings["num_updates"] == 7
    assert settings["env_kwargs"] == {"level": 2}
    assert settings["advantage_estimator"] == "group_norm"
    assert settings["dynamic_filtering"] is True
    assert settings["dynamic_filtering_reward_range"] == [0.1, 0.9]


def test_reward_servers_and_ranges_are_taken_as_openrlhf_writes_them(capsys: pytest.CaptureFixture[str]):
    settings = printed(
        capsys, *TRAIN, "--remote_rm_url", "http://127.0.0.1:5000/a", "http://127.0.0.1:5001/b",
        "--dynamic_filtering", "--dynamic_filtering_reward_range", "0", "0.9",
    )  # fmt: skip
    assert settings["remote_rm_url"] == ["http://127.0.0.1:5000/a", "http://127.0.0.1:5001/b"]
    assert settings["dynamic_filtering_reward_range"] == [0.0, 0.9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {num_update: 5}", "run.yaml: there is no setting num_update; did you mean num_updates?"),
        ("training: {log_rewards: maybe}", "run.yaml: --log_rewards: expected bool; got maybe"),
        ("num_update: 5", "run.yaml: there is no setting num_update; did you mean num_updates?"),
        ("use_wandb: sk-secret", "run.yaml: use_wandb can't be used yet: metrics don't go to Weights & Biases yet; they are in metrics.jsonl in the run's folder"),
        ("num_updates: many", "run.yaml: --num_updates: expected int; got many"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_yaml_file_is_told_too(capsys: pytest.CaptureFixture[str], text: str, message: str):
    Path("run.yaml").write_text(f"env: Math-v0\n{text}\n")
    assert mistake(capsys, "train", "--config", "run.yaml") == message


def test_a_yaml_file_that_is_none_is_told(capsys: pytest.CaptureFixture[str]):
    Path("run.yaml").write_text("env: [\n")
    assert mistake(capsys, "train", "--config", "run.yaml").startswith("run.yaml: Problems parsing config: ")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "rows.jsonl is empty; it needs one row or more"),
        ('{"question": "1 + 1"}\n', "rows.jsonl, line 1: there is no column 'prompt'; it has question: choose with --input_key"),
        ('{"prompt": "1 + 1"}\n' * 6 + '{"prompt": \n', "rows.jsonl, line 7: "),
    ],
)  # fmt: skip
def test_a_bad_file_of_tasks_is_told_with_file_line_and_remedy(
    capsys: pytest.CaptureFixture[str], lines: str, message: str
):
    Path("rows.jsonl").write_text(lines)
    assert mistake(capsys, *TRAIN, "--prompt_data", "rows.jsonl").startswith(message)
    assert not Path("runs").exists()


def test_a_prompt_longer_than_the_context_is_told_with_its_line(
    capsys: pytest.CaptureFixture[str], policy_folder: Path
):
    Path("odd.py").write_text(ENV_FILE)
    rows = [{"prompt": f"{n}" * (200 if n == 3 else 1), "id": f"question {n}"} for n in range(1, 9)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    message = mistake(
        capsys, "train", "--env", "odd.py:Odd", "--prompt_data", "rows.jsonl", "--pretrain", str(policy_folder),
        "--device", "cpu",
    )  # fmt: skip
    assert re.fullmatch(
        r"rows\.jsonl, line 3: the prompt has 2\d\d tokens and the context holds 128, the answer included; "
        r"shorten it, drop it, or raise --max_len",
        message,
    )


def test_train_then_eval(capsys: pytest.CaptureFixture[str], policy_folder: Path):
    Path("odd.py").write_text(ENV_FILE)
    Path("rows.jsonl").write_text("".join(json.dumps({"prompt": f"Say yes. {n}"}) + "\n" for n in range(40)))
    common = ("--env", "odd.py:Odd", "--prompt_data", "rows.jsonl", "--device", "cpu", "--max_new_tokens", "5")
    code, out, err = call(
        capsys, "train", *common, "--pretrain", str(policy_folder), "--out", "run", "--num_updates", "2",
        "--rollout_batch_size", "2", "--n_samples_per_prompt", "2", "--eval_tasks", "3",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert re.search(r"^update 1/2  reward \d\.\d+  solved ", out, re.MULTILINE)
    assert "held-out tasks, after" in out
    assert Path("run/policy/model.safetensors").exists()
    code, out, err = call(capsys, "eval", *common, "--model", "run/policy", "--eval_tasks", "3", "--json", "-")
    assert (code, err) == (0, "")
    report = json.loads(out)
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert report["num_tasks"] == 3
    assert report["pass_at"]["1"]["mean"] == last["pass@1"]
    code, out, _ = call(capsys, "eval", *common, "--model", "run/policy", "--eval_tasks", "3", "--json", "r.json")
    assert code == 0
    assert "pass@1" in out
    assert json.loads(Path("r.json").read_text()) == report


def test_a_run_that_can_not_go_on_is_exit_code_1(capsys: pytest.CaptureFixture[str], policy_folder: Path):
    Path("odd.py").write_text(ENV_FILE.replace("is_odd =", "raise OSError('gone')\n        is_odd ="))
    Path("rows.jsonl").write_text("".join(json.dumps({"prompt": f"Say yes. {n}"}) + "\n" for n in range(40)))
    code, _, err = call(
        capsys, "train", "--env", "odd.py:Odd", "--prompt_data", "rows.jsonl", "--pretrain", str(policy_folder),
        "--device", "cpu", "--max_refills", "0", "--eval_steps", "-1", "--rollout_batch_size", "2",
    )  # fmt: skip
    assert code == 1
    assert re.search(
        "turngym train: error: every episode of update 0 failed, 48 attempts in all: 48 times OSError", err
    )


def test_check_says_which_checks_failed_and_exits_1(capsys: pytest.CaptureFixture[str]):
    Path("odd.py").write_text(ENV_FILE.replace('return options["prompt"], {}', "return 3, {}"))
    code, out, _ = call(capsys, "check", "odd.py:Odd", "--only", "reset")
    assert code == 1
    assert re.search(r"reset\s+FAILED", out)


def test_check_of_a_good_environment_exits_0(capsys: pytest.CaptureFixture[str]):
    code, out, _ = call(capsys, "check", "GuessNumber-v0", "--only", "reset", "step")
    assert code == 0
    assert "0 failed" in out


def test_check_tokens_prints_its_table(capsys: pytest.CaptureFixture[str], policy_folder: Path):
    code, out, _ = call(capsys, "check-tokens", "--model", str(policy_folder))
    assert code == 0
    assert "append-only over turns" in out


def test_envs_are_a_line_each(capsys: pytest.CaptureFixture[str]):
    code, out, _ = call(capsys, "envs")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()][:2] == ["GuessNumber-v0", "Math-v0"]


@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",)])
def test_without_a_command_it_shows_them_all(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]):
    code, out, err = call(capsys, *argv)
    assert (code, err) == (0, "")
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_the_terminal_and_names_every_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, columns: int
):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        main((command, "--help"))
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    if command == "train":
        assert set(SECTION_OF) <= set(re.findall(r"^  --(\w+)", out, re.MULTILINE))
        assert len(out.splitlines()) <= 2.25 * len(SECTION_OF)


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["envs"], ["train", "--help"], ["check", "GuessNumber-v0", "--only", "reset"]]
)
def test_light_commands_do_not_import_torch(argv: list[str]):
    code = (
        "import sys; from turngym.trainer.cli import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'vllm'} & set(sys.modules)\nsys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_is_imported_without_torch_and_lists_what_it_gives():
    code = (
        "import sys, turngym.trainer as t\nassert 'torch' not in sys.modules\n"
        "assert sorted(t._HOMES) == sorted(t.__all__)\nfor name in t.__all__: getattr(t, name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_error():
    program = "import sys; from turngym.trainer.cli import main; sys.exit(main(['envs']))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.wait(60) == 141
        assert child.stderr.read() == b""
