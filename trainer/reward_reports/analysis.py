"""`--save_reward_analysis`: what earned rewards in a run, as a report, a table and plots in the run's folder.

RUN/reward_analysis/report.md    what was found, with warnings first
RUN/reward_analysis/table.csv    one line for each episode that was looked at
RUN/reward_analysis/*.png        plots, where matplotlib is there
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...envs.errors import TurngymError
from ...envs.tasks import Task
from .collect import collect
from .findings import RewardAnalysis
from .measures import findings
from .report import as_csv, as_markdown
from .run_tasks import tasks_of
from .stored_groups import Split

MAX_EPISODES = 20_000


def analyse(
    run: Path | str,
    *,
    split: Split = "train",
    tasks: Mapping[str, Task] | None = None,
    max_episodes: int = MAX_EPISODES,
) -> RewardAnalysis:
    """What a finished run's stored episodes show about its reward.

    Files are read one at a time. Of larger runs a sample of whole groups is looked at; counts and the figures of each
    update are always those of all episodes.

    Args:
        run: its folder.
        split: `train` or `eval` episodes.
        tasks: its tasks by id; by default they are found again from the run's settings. Without them, labels aren't
            known.
        max_episodes: most episodes in the sample.

    Raises:
        DataError: the folder has no such episodes, or a file can't be read.
    """
    notes: list[str] = []
    if tasks is None:
        try:
            tasks = tasks_of(run, split=split)
        except TurngymError as error:
            notes.append(f"Labels aren't known: {error}.")
    found = collect(run, split=split, tasks=tasks, max_episodes=max_episodes)
    return findings(found, run=Path(run), split=split, notes=notes)


def save_reward_analysis(analysis: RewardAnalysis) -> Path:
    """Write an analysis into its run's folder: the report, the table and the plots.

    Returns:
        The report's path.
    """
    folder = Path(analysis.run) / "reward_analysis"
    folder.mkdir(parents=True, exist_ok=True)
    plots, missing = _plots(analysis, folder)
    (folder / "table.csv").write_text(as_csv(analysis.rows, analysis.groups), encoding="utf-8")
    report = folder / "report.md"
    report.write_text(as_markdown(analysis, plots=plots, plots_missing=missing), encoding="utf-8")
    return report


def _plots(analysis: RewardAnalysis, folder: Path) -> tuple[dict[str, str], str]:
    """The plots that were drawn, or why there are none."""
    from .plots import save_plots

    try:
        return save_plots(analysis, folder), ""
    except ImportError:
        return {}, "There are no plots: they need matplotlib; pip install 'turngym[plots]'."
