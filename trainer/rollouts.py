"""The episodes of one update: its slots played all at once, scored, and refilled where they must be.

    round 0   every slot its task -> scored -> full? -> accepted
                                               |  a member's reward failed: the member is played again
                                               |  filtered: another task, under the slot's own number
    round 1   <--------------------------------+
    ...

A round begins when the one before is over, so that what is played together doesn't depend on the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..agents.episode import Ending, Episode
from ..agents.executor import AgentExecutor
from ..agents.group import Group
from ..agents.store import EpisodeWriter
from ..envs.errors import DataError
from ..envs.tasks import Task
from .all_failed import all_failed
from .config import AlgorithmConfig, LimitConfig, RunConfig
from .metrics import group_score
from .reward_scorer import RewardScorer
from .task_order import TaskOrder
from .together import run_together


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedUpdate:
    """What was played for an update.

    Attributes:
        groups: those to train, by slot; fewer than asked for where no more refill was allowed.
        filtered: groups that were refilled by others, because their score told nothing.
        num_failed_tries: how often every episode failed before.
        epoch: the epoch of the last task, from 0.
    """

    groups: tuple[Group, ...]
    filtered: tuple[Group, ...] = ()
    num_failed_tries: int = 0
    epoch: int = 0


@dataclass(slots=True, kw_only=True)
class _Place:
    """A slot of the update that is being filled.

    Attributes:
        slot: its number.
        epoch: the epoch of its task.
        task: what is played there.
        prefix: put before the episodes' ids.
        raw: its episodes as they were played, by id.
        group: as it was scored last.
        num_refills: how often members were played again because their reward failed.
        num_draws: how often it got another task.
    """

    slot: int
    epoch: int
    task: Task
    prefix: str
    raw: dict[str, Episode] = field(default_factory=dict)
    group: Group | None = None
    num_refills: int = 0
    num_draws: int = 0


class Rollouts:
    """Plays one update after another.

    Args:
        executor: plays the groups.
        order: the order of tasks.
        writer: gets every episode, failed attempts and filtered groups included.
        run: groups of an update, and episodes of a group.
        algorithm: whether groups are filtered, and how.
        limits: how often to refill.
        scorer: adds a reward to what the environment gave, or None.
        next_task: the place in the order of tasks where to go on.

    Attributes:
        next_task: the place of the next task that a slot gets.
    """

    def __init__(
        self,
        executor: AgentExecutor,
        order: TaskOrder,
        writer: EpisodeWriter,
        *,
        run: RunConfig,
        algorithm: AlgorithmConfig,
        limits: LimitConfig,
        scorer: RewardScorer | None = None,
        next_task: int = 0,
    ) -> None:
        self.next_task = next_task
        self._executor = executor
        self._order = order
        self._writer = writer
        self._run = run
        self._algorithm = algorithm
        self._limits = limits
        self._scorer = scorer

    async def play(self, update: int) -> PlayedUpdate:
        """Play the slots of an update, and write their episodes. Where every episode failed, play them again.

        Raises:
            DataError: a prompt doesn't fit the context, so that no other try can go better.
            InvalidRewardError: the reward broke its contract.
            EnvError: every try failed.
            EngineError: every try failed, and the engine is to blame.
            RewardError: every try failed, and the reward is to blame.
        """
        failed: list[Episode] = []
        first_task = self.next_task
        for num_failed_tries in range(self._limits.max_failed_updates):
            self.next_task = first_task
            prefix = f"again{num_failed_tries}-" if num_failed_tries else ""
            groups, filtered = await self._fill(update, prefix)
            played = [*groups, *filtered]
            episodes = [episode for group in played for episode in group.episodes]
            failed += [episode for group in played for episode in group.failed]
            self._writer.write([*episodes, *failed], split="train", update=update)
            if episodes:
                return PlayedUpdate(
                    groups=tuple(group for group in groups if group.episodes or not self._algorithm.dynamic_filtering),
                    filtered=tuple(filtered),
                    num_failed_tries=num_failed_tries,
                    epoch=self._order.task(self.next_task - 1)[0],
                )
            for episode in failed:
                if episode.failure is not None and episode.failure.error == DataError.__name__:
                    raise DataError(episode.failure.message)
        remedy = "Nothing was trained on them; mend the cause, then go on with --resume"
        raise all_failed(failed, what=f"of update {update}", remedy=remedy)

    async def _fill(self, update: int, prefix: str) -> tuple[list[Group], list[Group]]:
        """The groups by slot, and those that were filtered."""
        first = update * self._run.rollout_batch_size
        places = [self._place(first + i, prefix) for i in range(self._run.rollout_batch_size)]
        open_places, filtered, dropped = places, [], set[int]()
        while open_places:
            await self._play_round(open_places, update)
            if not filtered and not any(place.group and place.group.episodes for place in places):
                break  # other tasks would go no better
            still_open: list[_Place] = []
            for place in open_places:
                assert place.group is not None
                if self._is_refilled(place):
                    place.num_refills += 1
                elif self._tells_nothing(place.group):
                    filtered.append(place.group)
                    if place.num_draws == self._algorithm.max_filter_rounds:
                        dropped.add(place.slot)
                        continue
                    self._draw_again(place, prefix)
                else:
                    continue
                still_open.append(place)
            open_places = still_open
        return [p.group for p in places if p.group is not None and p.slot not in dropped], filtered

    def _place(self, slot: int, prefix: str) -> _Place:
        epoch, task = self._take()
        return _Place(slot=slot, epoch=epoch, task=task, prefix=prefix)

    def _take(self) -> tuple[int, Task]:
        self.next_task += 1
        return self._order.task(self.next_task - 1)

    def _draw_again(self, place: _Place, prefix: str) -> None:
        place.num_draws += 1
        place.num_refills = 0
        place.epoch, place.task = self._take()
        place.prefix = f"{prefix}draw{place.num_draws}-"
        place.raw, place.group = {}, None

    async def _play_round(self, places: Sequence[_Place], update: int) -> None:
        await self._executor.start()  # nothing then holds one group up, so that all begin before any plays
        await run_together(self._play_place(place, update) for place in places)

    async def _play_place(self, place: _Place, update: int) -> None:
        """Play the members that a slot misses, and score them; all of them where the reward compares."""
        size, before = self._run.n_samples_per_prompt, place.group
        missing = sorted(set(range(size)) - {e.member for e in before.episodes}) if before is not None else range(size)
        prefix = f"{place.prefix}scored{place.num_refills}-" if place.num_refills else place.prefix
        played = await self._executor.run_group(
            place.task, len(missing), slot=place.slot, epoch=place.epoch, prefix=prefix
        )
        played = _renumbered(played, missing)
        if self._scorer is None:
            place.group = replace(played, size=size)
            return
        place.raw |= {episode.episode_id: episode for episode in played.episodes}
        kept = () if before is None else before.episodes
        if self._scorer.sees_group:
            again = tuple(place.raw[episode.episode_id] for episode in kept)
            scored = await self._scorer.score(
                replace(played, episodes=_by_member(again, played.episodes)), update=update
            )
            episodes = scored.episodes
        else:
            scored = await self._scorer.score(played, update=update)
            episodes = _by_member(kept, scored.episodes)
        failed = scored.failed if before is None else (*before.failed, *scored.failed)
        place.group = replace(scored, size=size, episodes=episodes, failed=failed)

    def _is_refilled(self, place: _Place) -> bool:
        """Whether members are played again, because their reward failed while that of siblings didn't."""
        group = place.group
        assert group is not None
        is_by_reward = any(episode.ending is Ending.REWARD_FAILED for episode in group.failed)
        is_possible = bool(group.episodes) and place.num_refills < self._limits.max_refills
        return group.is_short and is_by_reward and is_possible

    def _tells_nothing(self, group: Group) -> bool:
        if not self._algorithm.dynamic_filtering:
            return False
        low, high = self._algorithm.dynamic_filtering_reward_range
        return not group.episodes or not low < group_score(group) < high


def _renumbered(group: Group, members: Sequence[int]) -> Group:
    """The group with its members 0, 1, ... given the numbers of those that they stand in for."""
    if list(members) == list(range(len(members))):
        return group
    return replace(
        group,
        episodes=tuple(replace(e, member=members[e.member]) for e in group.episodes),
        failed=tuple(replace(e, member=members[e.member]) for e in group.failed),
    )


def _by_member(*parts: Sequence[Episode]) -> tuple[Episode, ...]:
    return tuple(sorted((episode for part in parts for episode in part), key=lambda episode: episode.member))
