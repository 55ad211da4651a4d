"""Users' files: the imports they were taught, the files beside them, and nothing else that changes."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from turngym.envs import rewards
from turngym.envs.errors import ConfigError
from turngym.envs.user_files import load_user_module, run_user_script

FAKE_FLUX = "class RewardFunction:\n    is_fake = True\nclass Extra: pass\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a file under `tmp_path`, and gives its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def fake_flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typing.Iterator[Path]:
    """An installed package called flux."""
    site = tmp_path / "site"
    (site / "flux" / "rewards").mkdir(parents=True)
    (site / "flux" / "__init__.py").write_text("version = 'installed'\n")
    (site / "flux" / "rewards" / "__init__.py").write_text(FAKE_FLUX)
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "flux"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("statement", "expression"),
    [
        ("from flux.rewards import RewardFunction", "RewardFunction"),
        ("from flux.rewards.base import RewardFunction as R", "R"),
        ("from flux.rewards.rule_based import RewardFunction", "RewardFunction"),
        ("from flux.rewards.model_based import RewardFunction", "RewardFunction"),
        ("import flux.rewards", "flux.rewards.RewardFunction"),
        ("import flux.rewards as fr", "fr.RewardFunction"),
        ("import flux.rewards.base as base", "base.RewardFunction"),
        ("import flux", "flux.rewards.base.RewardFunction"),
        ("from flux import rewards", "rewards.RewardFunction"),
        ("from flux.rewards import base", "base.RewardFunction"),
        ("from flux.rewards import base, RewardFunction", "RewardFunction"),
        ("flux = __import__('flux.rewards')", "flux.rewards.RewardFunction"),
        ("if True:\n    from flux.rewards import (\n        RewardFunction,\n    )", "RewardFunction"),
        ("class Holder:\n    from flux.rewards import RewardFunction", "Holder.RewardFunction"),
        ("exec('from flux.rewards import RewardFunction')", "RewardFunction"),
    ],
)
def test_every_way_of_importing_gives_turngyms_class(write: Any, statement: str, expression: str) -> None:
    module = load_user_module(write("file.py", f"{statement}\nfound = {expression}\n"))
    assert module.found is rewards.RewardFunction


def test_imports_inside_functions_that_run_later_are_resolved_too(write: Any) -> None:
    module = load_user_module(
        write("file.py", "def later():\n    from flux.core import trajectory\n    return trajectory.Trajectory\n")
    )
    assert module.later() is rewards.Trajectory


def test_the_names_of_agent_tunix_are_resolved(write: Any) -> None:
    file = write("file.py", "import agent_tunix.rewards as r\ndef names():\n    return r.__all__\n")
    assert load_user_module(file).names() == ["check_answer", "check_numbers", "match_format_exactly"]


def test_nothing_outside_the_file_is_affected(write: Any) -> None:
    before = set(sys.modules)
    load_user_module(write("file.py", "import flux.rewards, flux.core.trajectory, agent_tunix.rewards\n"))
    assert not {name.partition(".")[0] for name in sys.modules} & {"flux", "agent_tunix", "openrlhf"}
    assert all(name.startswith(("turngym_file_", "turngym.")) for name in set(sys.modules) - before)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flux")


def test_an_installed_package_is_seen_outside_only(write: Any, fake_flux: Path) -> None:
    module = load_user_module(write("file.py", "import flux\nfrom flux.rewards import RewardFunction\n"))
    assert module.RewardFunction is rewards.RewardFunction
    assert not hasattr(module.flux, "version")
    assert importlib.import_module("flux").version == "installed"
    assert importlib.import_module("flux.rewards").RewardFunction.is_fake
    again = load_user_module(write("again.py", "import flux\nfrom flux.rewards import RewardFunction\n"))
    assert again.RewardFunction is rewards.RewardFunction


def test_real_imports_take_the_installed_package(write: Any, fake_flux: Path) -> None:
    file = write("file.py", "from flux.rewards import RewardFunction, Extra\n")
    assert load_user_module(file, real_imports=True).RewardFunction.is_fake
    with pytest.raises(ConfigError, match=r"imports 'Extra' from flux\.rewards"):
        load_user_module(file)


def test_what_a_file_sets_on_such_a_package_stays_its_own(write: Any) -> None:
    load_user_module(write("one.py", "import flux.rewards\nflux.rewards.RewardFunction = None\n"))
    other = load_user_module(write("two.py", "from flux.rewards import RewardFunction\n"))
    assert other.RewardFunction is rewards.RewardFunction


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "from agent_tunix.rewards import Nope",
            "ImportError: {file} imports 'Nope' from agent_tunix.rewards; there are check_answer, check_numbers, "
            "match_format_exactly; real_imports (--real_imports) takes an installed agent_tunix instead "
            "({file}, line 2)",
        ),
        (
            "import agent_tunix.training",
            "ModuleNotFoundError: {file} imports 'agent_tunix.training'; there are agent_tunix, agent_tunix.rewards; "
            "real_imports (--real_imports) takes an installed agent_tunix instead ({file}, line 2)",
        ),
        (
            "from openrlhf.utils.agent import AgentInstanceBase",
            "ImportError: {file} imports openrlhf.utils.agent: it is an agent file, and agent files don't run yet; "
            "reward files do ({file}, line 2)",
        ),
        (
            "from openrlhf.utils import agent",
            "ImportError: {file} imports openrlhf.utils.agent: it is an agent file, and agent files don't run yet; "
            "reward files do ({file}, line 2)",
        ),
        ("1 / 0", "ZeroDivisionError: division by zero ({file}, line 2)"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines ({file}, line 2)"),
        ("raise ValueError('x' * 5000)", "ValueError: " + "x" * 997 + "... ({file}, line 2)"),
        ("import sys; sys.exit(3)", "SystemExit: 3 ({file}, line 2)"),
        ("def broken(:", "SyntaxError: invalid syntax ({file}, line 2)"),
        ("eval('1 +')", "SyntaxError: invalid syntax ({file}, line 2)"),
        ("import json; json.loads('')", "JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({file}, line 2)"),
        (
            "import no_such_module_at_all",
            "ModuleNotFoundError: No module named 'no_such_module_at_all' ({file}, line 2)",
        ),
        (
            "class E(Exception):\n  def __str__(self): 1 / 0\nraise E",
            "E: <its str() raised ZeroDivisionError> ({file}, line 4)",
        ),
        (
            "from . import sibling",
            "ImportError: attempted relative import with no known parent package ({file}, line 2)",
        ),
    ],
)
def test_a_file_that_cant_be_loaded_is_told_in_one_line(write: Any, statement: str, message: str) -> None:
    file = write("file.py", f"# a comment\n{statement}\n")
    for _ in range(2):  # a failure leaves nothing behind
        with pytest.raises(ConfigError) as caught:
            load_user_module(file)
        assert str(caught.value) == f"{file} can't be loaded: " + message.format(file=file)


def test_a_file_must_be_there_and_be_python(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "data.txt").write_text("")
    for name, message in [
        ("none.py", "there is no file {}"),
        ("folder.py", "there is no file {}"),
        ("data.txt", "{} is no Python file; its name must end in .py"),
    ]:
        for load in (load_user_module, run_user_script):
            with pytest.raises(ConfigError) as caught:
                load(tmp_path / name)
            assert str(caught.value) == message.format(tmp_path / name)


def test_a_file_is_loaded_once_and_is_a_module_like_any_other(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
from __future__ import annotations
import dataclasses, typing
@dataclasses.dataclass
class Part:
    weight: float = 1.0
    parent: Part | None = None
hints = typing.get_type_hints(Part)
here = __file__
"""
    file = write("my file.v2.py", text)
    module = load_user_module(file)
    monkeypatch.chdir(tmp_path)
    assert load_user_module("my file.v2.py") is module
    assert module.here == str(file)
    assert module.__name__ != "__main__"
    assert sys.modules[module.__name__] is module
    assert pickle.loads(pickle.dumps(module.Part(2.0))) == module.Part(2.0)
    assert module.hints["weight"] is float
    assert not (tmp_path / "__pycache__").exists()


def test_files_beside_it_are_found_with_the_same_imports(write: Any, tmp_path: Path) -> None:
    write(
        "helpers.py", "from flux.rewards import RewardOutput\nfrom parts import table\nfrom parts.deep.most import up\n"
    )
    write("parts/__init__.py", "from .table import rows\nfrom . import other\n__all__ = ['rows', 'lazy']\n")
    write("parts/table.py", "from flux.core.trajectory import Trajectory\nrows = 3\n")
    write("parts/other.py", "import helpers\n")
    write("parts/lazy.py", "value = 7\n")
    write("parts/deep/most.py", "from ..table import rows as up\n")  # a folder without __init__.py
    write("loose/inner.py", "from flux.rewards import RewardOutput\n")
    path = list(sys.path)
    module = load_user_module(
        write(
            "file.py",
            "import helpers, parts.table\nimport parts.table as t\nfrom parts import *\n"
            "from loose.inner import RewardOutput\nimport loose.inner\n",
        )
    )
    assert module.helpers.RewardOutput is module.RewardOutput is module.loose.inner.RewardOutput is rewards.RewardOutput
    assert module.helpers.table is module.parts.table is module.t
    assert module.t.Trajectory is rewards.Trajectory
    assert (module.rows, module.lazy.value, module.helpers.up) == (3, 7, 3)
    assert module.parts.other.helpers is module.helpers
    assert sys.path == path
    assert "helpers" not in sys.modules
    assert load_user_module(tmp_path / "helpers.py") is module.helpers


def test_a_file_beside_it_wins_over_an_installed_package_and_loses_to_the_standard_library(write: Any) -> None:
    write("yaml.py", "mine = True\n")
    write("json.py", "mine = True\n")
    module = load_user_module(write("file.py", "import json, yaml\n"))
    assert module.yaml.mine
    assert not hasattr(module.json, "mine")
    assert not hasattr(importlib.import_module("yaml"), "mine")


def test_what_a_file_beside_it_lacks_is_named(write: Any) -> None:
    helpers = write("helpers.py", "import json\n\nraise KeyError('lost')\n")
    write("pack/__init__.py", "")
    file = write("file.py", "import helpers\n")
    with pytest.raises(ConfigError) as caught:
        load_user_module(file)
    assert str(caught.value) == f"{file} can't be loaded: KeyError: 'lost' ({helpers}, line 3)"
    with pytest.raises(ConfigError, match=r"ImportError: cannot import name 'nope' from 'turngym_file_pack_"):
        load_user_module(write("two.py", "from pack import nope\n"))
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError: No module named 'pack.nope' beside the file, in "):
        load_user_module(write("three.py", "import pack.nope\n"))


def test_two_folders_may_have_helpers_of_one_name(write: Any) -> None:
    found = []
    for folder in ("a", "b"):
        write(f"{folder}/helpers.py", f"where = {folder!r}\n")
        found.append(load_user_module(write(f"{folder}/file.py", "import helpers\n")).helpers.where)
    assert found == ["a", "b"]


def test_sampling_params_come_from_turngym_where_vllm_is_absent(write: Any, fake_flux: Path) -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    file = write("file.py", "from vllm import SamplingParams\nparams = SamplingParams(temperature=0.5)\n")
    assert load_user_module(file).params.temperature == 0.5
    write("site/vllm.py", "class SamplingParams:\n    is_real = True\n")
    try:
        assert load_user_module(write("two.py", "from vllm import SamplingParams\n")).SamplingParams.is_real
    finally:
        sys.modules.pop("vllm", None)


def test_a_script_runs_as_python_runs_it(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
import pickle, sys
from pathlib import Path
import helpers
from flux.rewards import LengthReward, RewardOutput
class Mine: pass
if __name__ == "__main__":
    assert sys.modules["__main__"].Mine is Mine
    pickle.dumps(Mine())
    seen = (sys.argv, sys.path[0], __file__, helpers.value)
    sys.path.append("/nowhere")
"""
    write("scripts/helpers.py", "from flux.rewards import RewardOutput\nvalue = 5\n")
    write("scripts/try it.py", text)
    monkeypatch.chdir(tmp_path)
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    module = run_user_script("scripts/try it.py", ["--n", "3"])
    folder = tmp_path / "scripts"
    assert module.seen == (["scripts/try it.py", "--n", "3"], str(folder), str(folder / "try it.py"), 5)
    assert module.RewardOutput is module.helpers.RewardOutput is rewards.RewardOutput
    assert (sys.modules["__main__"], sys.argv, sys.path) == (main, argv, path)


@pytest.mark.parametrize(("line", "error"), [("1 / 0", ZeroDivisionError), ("raise SystemExit(4)", SystemExit)])
def test_what_a_script_raises_comes_as_it_is(write: Any, line: str, error: type[BaseException]) -> None:
    main = sys.modules["__main__"]
    with pytest.raises(error):
        run_user_script(write("script.py", line))
    assert sys.modules["__main__"] is main


def test_threads_that_load_a_file_at_once_share_it(write: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    write("helpers.py", "import time\ntime.sleep(0.05)\nvalue = []\n")
    file = write("file.py", "import helpers\nvalue = helpers.value\n")
    with ThreadPoolExecutor(4) as pool:
        modules = list(pool.map(load_user_module, [file] * 4))
    assert len({id(module.value) for module in modules}) == 1


def test_loading_a_file_imports_no_backend(write: Any) -> None:
    file = write("file.py", "import flux.rewards\nfrom flux.rewards import RewardFunction, LengthReward\n")
    program = (
        f"import sys; from turngym.envs.user_files import load_user_module; load_user_module({str(file)!r})\n"
        "print(sorted({'torch', 'transformers', 'openai', 'matplotlib', 'math_verify'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
