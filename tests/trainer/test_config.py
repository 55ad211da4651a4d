"""The settings of a run."""

from dataclasses import fields
from typing import Any, get_args

import pytest
from turngym.envs.errors import ConfigError
from turngym.trainer import config, losses
from turngym.trainer.config import FREE_ON_RESUME, SECTION_OF, SECTIONS, TrainConfig


def test_each_flag_stands_in_exactly_one_section():
    names = [f.name for section in SECTIONS.values() for f in fields(section)]
    assert len(names) == len(set(names))
    assert list(SECTIONS) == [f.name for f in fields(TrainConfig)]


def test_flags_are_put_into_their_sections_and_come_back():
    made = TrainConfig.of(env="Math-v0", num_updates=7, credit="episode")
    assert (made.env.env, made.run.num_updates, made.algorithm.credit) == ("Math-v0", 7, "episode")
    assert TrainConfig.of(**made.flags()) == made


def test_an_unknown_flag_is_refused_by_name():
    with pytest.raises(ConfigError, match="there is no flag 'num_update'"):
        TrainConfig.of(num_update=7)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_updates": -1}, "--num_updates -1 must be at least 0"),
        ({"n_samples_per_prompt": 0}, "--n_samples_per_prompt 0 must be at least 1"),
        ({"temperature": float("nan")}, "--temperature nan must be at least 0"),
        ({"top_p": 0.0}, "--top_p 0.0 must lie in (0, 1]; 1 keeps the whole distribution"),
        ({"top_p": 1.5}, "--top_p 1.5 must lie in (0, 1]; 1 keeps the whole distribution"),
        ({"gamma": 1.1}, "--gamma 1.1 must lie in [0, 1]; 1 doesn't discount"),
        ({"clip_low": 2.0}, "--clip_low 2.0 must lie in [0, 1]"),
        ({"max_norm": 0.0}, "--max_norm 0.0 must be above 0; inf doesn't clip"),
        ({"step_timeout_s": 0.0}, "--step_timeout_s 0.0 must be above 0 seconds; inf sets no limit"),
        ({"out": ""}, "--out is empty; name the run's folder"),
        (
            {"aggregation": "constant"},
            "--aggregation constant needs a denominator; add --constant N, a long answer's tokens",
        ),
    ],
)
def test_a_value_out_of_range_is_refused_with_flag_value_and_rule(flags: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.of(**flags)
    assert str(caught.value) == message


def test_the_aggregations_are_those_of_the_losses():
    assert get_args(config.Aggregation) == get_args(losses.Aggregation)


def test_flags_that_change_what_is_learned_may_not_differ_on_resume():
    learned = {"env", "env_kwargs", "pretrain", "seed", "rollout_batch_size", "n_samples_per_prompt", "learning_rate"}
    assert set(SECTION_OF) >= FREE_ON_RESUME
    assert not FREE_ON_RESUME & learned
