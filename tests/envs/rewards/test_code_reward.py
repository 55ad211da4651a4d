import pytest
from turngym.envs.errors import ConfigError
from turngym.envs.rewards import CodeReward


@pytest.mark.parametrize("arguments", [{}, {"timeout_s": 5, "language": "python"}])
def test_code_is_refused_without_a_sandbox(arguments: dict[str, object]):
    with pytest.raises(ConfigError) as caught:
        CodeReward(**arguments)
    assert str(caught.value) == (
        "CodeReward can't run code: turngym has no sandbox, and what a policy writes must not run beside the training. "
        "Write a reward file that runs the code in an isolation of your own, a container for example, and give it with "
        "--remote_rm_url FILE"
    )
