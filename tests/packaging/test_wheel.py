"""What is installed is what is in the tree."""

import configparser
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("envs", "agents", "trainer")


def listed_packages() -> list[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config["options"]["packages"].split()


def packages_in_the_tree() -> list[str]:
    folders = {file.parent.relative_to(ROOT) for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    return ["turngym." + ".".join(folder.parts) for folder in folders]


def test_every_package_of_the_tree_is_listed_in_setup_cfg():
    assert sorted(listed_packages()) == sorted(packages_in_the_tree())


def test_every_package_has_an_init_and_turngym_itself_has_none():
    for package in listed_packages():
        assert (ROOT.joinpath(*package.split(".")[1:]) / "__init__.py").is_file(), package
    assert not (ROOT / "__init__.py").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy of the tree so that no earlier build leaks into it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=source, check=True, capture_output=True, timeout=240)
    return next(out.glob("turngym-*.whl"))


@pytest.fixture(scope="module")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it; its dependencies are read from where the tests' own lie."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, str(site_packages), str(wheel)], check=True, capture_output=True, timeout=240)
    return folder


def run(environment: Path, *arguments: str, cwd: Path) -> str:
    command = [str(environment / "bin" / "python"), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_every_module_of_the_tree(empty_environment: Path):
    site_packages = next(empty_environment.glob("lib/python*/site-packages"))
    installed = {str(f.relative_to(site_packages / "turngym")) for f in (site_packages / "turngym").rglob("*.py")}
    in_the_tree = {str(f.relative_to(ROOT)) for room in ROOMS for f in (ROOT / room).rglob("*.py")}
    assert installed == in_the_tree
    assert all((site_packages / "turngym" / room / "py.typed").is_file() for room in ROOMS)


@pytest.mark.slow
def test_turngym_envs_runs_from_the_wheel(empty_environment: Path, tmp_path: Path):
    main = "import sys; from turngym.trainer.cli import main; sys.exit(main(['envs']))"
    output = run(empty_environment, "-c", main, cwd=tmp_path)
    assert "Math-v0" in output
    assert "GuessNumber-v0" in output


@pytest.mark.slow
def test_the_environment_of_the_readme_runs_from_the_wheel(empty_environment: Path, tmp_path: Path):
    (tmp_path / "count_on.py").write_text(readme_environment())
    play = """
import asyncio, json, sys
from turngym.envs import Action, make
async def play():
    env = make("count_on.py:CountOn")
    observation, _ = await env.reset(options={"start": 41})
    results = [await env.step(Action(text=text)) for text in ("42", "43", "no")]
    await env.close()
    return [sys.modules["turngym.envs"].__file__, observation, [r.reward for r in results], results[-1].terminated]
print(json.dumps(asyncio.run(play())))
"""
    file, observation, rewards, is_over = json.loads(run(empty_environment, "-c", play, cwd=tmp_path))
    assert Path(file).is_relative_to(empty_environment)
    assert observation == "Count on from 41."
    assert rewards == [0.2, 0.2, 0.0]
    assert is_over


def readme_environment() -> str:
    """The first Python block of the README: a file of one's own."""
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    return block[1]
