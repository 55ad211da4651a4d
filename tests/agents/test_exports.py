"""What `turngym.agents` offers, and what importing it costs."""

import subprocess
import sys

import turngym.agents


def test_the_public_names() -> None:
    assert sorted(turngym.agents.__all__) == [
        "AgentExecutor",
        "Continuation",
        "Conversation",
        "Ending",
        "Engine",
        "Episode",
        "EpisodeBuilder",
        "EpisodeWriter",
        "ExecutorConfig",
        "ExecutorStats",
        "Failure",
        "GenerateRequest",
        "Generation",
        "Group",
        "RemoteReward",
        "Renderer",
        "ScriptedEngine",
        "TokenRecord",
        "TracksEpisodes",
        "TransformersEngine",
        "Turn",
        "VersionSpan",
        "WeightSource",
        "derive_seed",
        "load_reward_file",
        "load_tokenizer",
        "load_user_module",
        "read_episodes",
    ]
    assert all(hasattr(turngym.agents, name) for name in turngym.agents.__all__)


def test_importing_it_loads_no_backend() -> None:
    program = (
        "import sys, turngym.agents\n"
        "print(sorted({'torch', 'transformers', 'pyarrow', 'vllm', 'math_verify', 'httpx2'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
