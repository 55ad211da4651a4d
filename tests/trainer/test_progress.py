"""What a person sees of a run."""

import io

from rich.console import Console
from turngym.trainer.evaluate import Estimate, EvalReport
from turngym.trainer.progress import RunProgress, eval_line, eval_table, update_line

METRICS = {
    "version": 3,
    "reward_mean": 0.25,
    "solved": 0.5,
    "turns_mean": 1.75,
    "mismatch_max": 3.2e-6,
    "failed_episodes": 2,
    "rollout_s": 1.0,
    "update_s": 0.5,
    "publish_s": 0.1,
}
REPORT = EvalReport(
    num_tasks=4,
    num_episodes=8,
    num_failed=1,
    reward=Estimate(mean=0.5, low=0.25, high=0.75),
    turns=Estimate(mean=2.0, low=1.0, high=3.0),
)


def test_a_line_shows_the_figures_that_there_are():
    assert update_line(METRICS, 9) == (
        "update 3/9  reward 0.250  solved 0.500  turns 1.75  mismatch 3e-06  failed 2  1.6 s"
    )
    assert eval_line(REPORT, 3) == (
        "held-out after 3 updates: reward 0.500 [0.250, 0.750]  turns 2.000 [1.000, 3.000]  failed 1"
    )


def test_without_a_terminal_there_are_lines_only():
    file = io.StringIO()
    progress = RunProgress(Console(file=file, width=20))
    progress.begin(version=2, num_updates=9)
    progress.updated(METRICS)
    progress.evaluated(REPORT, 3)
    progress.end()
    assert file.getvalue() == f"{update_line(METRICS, 9)}\n{eval_line(REPORT, 3)}\n"


def test_on_a_terminal_the_same_lines_stand_above_a_bar():
    file = io.StringIO()
    progress = RunProgress(Console(file=file, width=120, force_terminal=True))
    progress.begin(version=2, num_updates=9)
    progress.updated(METRICS)
    progress.end()
    assert update_line(METRICS, 9) in file.getvalue()
    assert "3/9" in file.getvalue().replace(update_line(METRICS, 9), "")


def test_a_table_tells_how_much_was_played():
    file = io.StringIO()
    Console(file=file, width=80).print(eval_table(REPORT, "held-out tasks"))
    assert "0.250 to 0.750" in file.getvalue()
    assert "4 tasks, 8 episodes, 1 failed" in file.getvalue()
