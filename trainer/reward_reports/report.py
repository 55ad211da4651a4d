"""The analysis of a run's rewards as Markdown, and its episodes as a table for other programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence

from .features import FAULTS, SHAPES, EpisodeRow
from .findings import Opening, RewardAnalysis
from .shown_text import fenced, head, markdown
from .suspicion import MIN_EPISODES, MIN_INSIDE, MIN_SHARE

MAX_UPDATES_SHOWN = 30
_PROMPT_CHARS, _RESPONSE_CHARS = 160, 320
_COLUMNS = ("update", "slot", "member", "episode_id", "task_id", "reward", "value", "score", "is_right", "ending")
_COUNTS = ("num_turns", "num_tokens", "num_words", "num_chars")


def as_markdown(analysis: RewardAnalysis, *, plots: Mapping[str, str], plots_missing: str = "") -> str:
    """The report. What prompts, responses, tasks and rewards hold is shown as text, never as markup.

    Args:
        analysis: what was found.
        plots: file name of each plot -> what it shows.
        plots_missing: why there are none.
    """
    blocks = [
        f"# What earned rewards in {markdown(str(analysis.run), 200)}",
        *(f"**WARNING** {markdown(text, 2000)}." for text in analysis.warnings),
        _overview(analysis),
        *(markdown(note, 2000) for note in analysis.notes),
        "## Form and task",
        _suspicion(analysis),
        "## Kinds of response",
        _contrasts(analysis),
        _length(analysis),
        *_openings("Beginnings that earn most", analysis.best_openings),
        *_openings("Beginnings that earn least", analysis.worst_openings),
        "## Failures",
        _failures(analysis),
        "## Parts of the reward",
        _parts(analysis),
        "## Over the updates",
        _drift(analysis),
        _updates(analysis),
        "## Examples that earn most",
        _examples(analysis.best),
        "## Examples that earn least",
        _examples(analysis.worst),
        "## Plots",
        *(f"{markdown(told, 200)}\n\n![{markdown(told, 200)}]({name})" for name, told in plots.items()),
        markdown(plots_missing, 300),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def as_csv(rows: Sequence[EpisodeRow], groups: Sequence[int]) -> str:
    """One line for each episode: what it earned, its parts, and the features of its response. It holds no response."""
    parts = sorted({name for row in rows for name in row.parts})
    features = [*SHAPES, *FAULTS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, *_COUNTS, "group", *features, *(_cell(f"part {name}") for name in parts)])
    for row, group in zip(rows, groups, strict=True):
        own = [_cell(getattr(row, name)) for name in (*_COLUMNS, *_COUNTS)]
        marks = [int(row.features[name]) for name in features]
        writer.writerow([*own, group, *marks, *(_cell(row.parts.get(name)) for name in parts)])
    return text.getvalue()


def _cell(value: object) -> object:
    """A value for a table that spreadsheets open, in which text never is a formula."""
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, str):
        return "" if value is None else value
    shown = head(value, 500)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _overview(analysis: RewardAnalysis) -> str:
    p05, p25, p50, p75, p95 = (_number(value) for value in analysis.percentiles)
    spread = analysis.spread
    rows = [
        ("episodes", f"{analysis.num_episodes} in {analysis.num_groups} groups, and {analysis.num_failed} that failed"),
        ("looked at", f"{len(analysis.rows)} episodes in {len(set(analysis.groups))} groups"),
        ("mean", _number(analysis.mean)),
        ("standard deviation", _number(analysis.std)),
        ("variance", _number(analysis.variance)),
        ("skewness", _number(analysis.skewness)),
        ("least, greatest", f"{_number(analysis.least)}, {_number(analysis.greatest)}"),
        ("percentiles 5, 25, 50, 75, 95", f"{p05}, {p25}, {p50}, {p75}, {p95}"),
        ("variance within groups", _number(spread.within)),
        ("variance between groups", f"{_number(spread.between)}, intraclass correlation {_number(spread.icc)}"),
        ("groups with no signal", f"{_percent(analysis.without_signal)}: all of their episodes earned the same"),
    ]
    return _table(("what an episode earned", ""), rows)


def _suspicion(analysis: RewardAnalysis) -> str:
    found = analysis.suspicion
    which = "said something" if found.holds_cut else "said something and weren't cut at a limit of tokens"
    if found.num_episodes < MIN_EPISODES:
        return f"Not compared: {found.num_episodes} episodes {which}, and it takes {MIN_EPISODES} to compare."
    rows = [
        ("length", _percent(found.length), _percent(found.length_inside)),
        ("format", _percent(found.form), _percent(found.form_inside)),
        ("task: which one it is", _percent(found.between_tasks), ""),
        ("task: the environment's score", _percent(found.by_score), ""),
        ("task: the label is given", _percent(found.by_label), ""),
    ]
    return (
        f"What explains the variance of the rewards, over {found.num_episodes} episodes that {which}:\n\n"
        f"{_table(('', 'over all', 'within groups'), rows)}\n\n"
        f"A warning is given where length or format explains at least {MIN_SHARE:.0%} over all, {MIN_INSIDE:.0%} "
        "within groups, and more than the task. A score that is the reward over again says nothing, and shows as -."
    )


def _contrasts(analysis: RewardAnalysis) -> str:
    if not analysis.contrasts:
        return "No kind of response that is looked for occurs in some of the episodes and not in others."
    rows = [
        (
            c.feature,
            _percent(c.share),
            _number(c.mean_with),
            _number(c.mean_without),
            _signed(c.difference),
            _signed(c.effect),
            _signed(c.inside),
        )
        for c in analysis.contrasts
    ]
    names = ("responses with", "share", "earn", "others", "difference", "in deviations", "within groups")
    return _table(names, rows)


def _length(analysis: RewardAnalysis) -> str:
    length = analysis.length
    short, middle, long = map(_number, length.thirds)
    return (
        f"Reward and sampled tokens of an episode: Pearson {_signed(length.pearson)}, "
        f"Spearman {_signed(length.spearman)}, within groups {_signed(length.inside)}. "
        f"The shortest third earns {short}, the middle third {middle}, the "
        f"longest {long}. Reward and number of turns: Spearman {_signed(length.turns)}."
    )


def _openings(title: str, openings: Sequence[Opening]) -> list[str]:
    if not openings:
        return []
    rows = [(markdown(o.opening) or "(empty)", str(o.num_episodes), _number(o.mean)) for o in openings]
    return [f"### {title}", _table(("first words", "episodes", "earn"), rows)]


def _failures(analysis: RewardAnalysis) -> str:
    total = sum(analysis.endings.values())
    endings = [(markdown(e), str(n), _percent(n / total)) for e, n in analysis.endings.items()]
    blocks = [_table(("ending", "episodes", "share"), endings)]
    if analysis.failures:
        failures = [(markdown(error), str(count)) for error, count in analysis.failures.items()]
        blocks.append(_table(("failed with", "attempts"), failures))
    rare = [f"{c.feature} {_percent(c.share)}" for c in analysis.contrasts if c.feature in (*FAULTS, "repetitions")]
    if rare:
        blocks.append(f"Of the responses: {', '.join(rare)}.")
    return "\n\n".join(blocks)


def _parts(analysis: RewardAnalysis) -> str:
    if not analysis.parts:
        return "The rewards have no parts: no numbers stand in their metadata."
    rows = [
        (markdown(p.name), str(p.num_episodes), *map(_number, (p.mean, p.std)), *map(_signed, (p.pearson, p.inside)))
        for p in analysis.parts
    ]
    return _table(("part", "episodes", "mean", "deviation", "correlation with the total", "within groups"), rows)


def _drift(analysis: RewardAnalysis) -> str:
    drift = analysis.drift
    if drift is None:
        return "Fewer than three updates: nothing is said about drift."
    change = drift.last_mean - drift.first_mean
    return (
        f"From the first third of the updates to the last, the mean went from {_number(drift.first_mean)} to "
        f"{_number(drift.last_mean)} (by {_signed(change)}, standard error {_number(drift.change_error)}), the "
        f"standard deviation from {_number(drift.first_std)} to {_number(drift.last_std)}, and the sampled tokens of "
        f"an episode from {_number(drift.first_tokens)} to {_number(drift.last_tokens)}."
    )


def _updates(analysis: RewardAnalysis) -> str:
    updates = analysis.updates
    if len(updates) > MAX_UPDATES_SHOWN:  # evenly, the first and the last included
        last = len(updates) - 1
        updates = [updates[round(i * last / (MAX_UPDATES_SHOWN - 1))] for i in range(MAX_UPDATES_SHOWN)]
    rows = [
        (
            str(u.update),
            str(u.num_episodes),
            str(u.num_failed),
            *map(_number, (u.mean, u.std, u.low, u.median, u.high)),
            _percent(u.without_signal),
            f"{u.num_tokens:.0f}",
            _percent(u.cut),
        )
        for u in updates
    ]
    names = ("update", "episodes", "failed", "mean", "deviation", "p05", "p50", "p95", "no signal", "tokens", "cut")
    return _table(names, rows)


def _examples(rows: Sequence[EpisodeRow]) -> str:
    return "\n\n".join(
        f"Reward {_number(row.reward)}{_parts_of(row)}, update {row.update}, {row.num_tokens} tokens:\n\n"
        + fenced([f"prompt    {head(row.prompt, _PROMPT_CHARS)}", f"response  {head(row.response, _RESPONSE_CHARS)}"])
        for row in rows
    )


def _parts_of(row: EpisodeRow) -> str:
    told = ", ".join(f"{markdown(name)} {_number(value)}" for name, value in list(row.parts.items())[:8])
    return f" ({told})" if told else ""


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already. All columns but the first are for numbers."""
    lines = [names, ["---", *["---:" if len(names) > 2 else "---"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.4g}" if abs(value) >= 1000 or 0 < abs(value) < 0.001 else f"{value:.3f}"


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.3f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0%}"
