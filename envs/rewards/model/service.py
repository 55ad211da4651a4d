"""Classifiers that the rewards of a process share: loaded once, run on a thread, freed with their last user."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import ConfigError, InvalidRewardError, RewardError
from .classifier import Classifier, ClassifierConfig
from .inputs import Exchange, Row
from .micro_batches import MicroBatcher, pack

logger = logging.getLogger("turngym.rewards")

THREAD_NAME = "turngym-reward-model"


@dataclass(slots=True)
class ClassifierStats:
    """What a classifier has done so far.

    Attributes:
        num_calls: texts that were to be scored.
        num_forwards: passes of the model over a batch.
        num_cut: texts of which something was cut; and
        num_cut_responses: those of which some of the response was.
    """

    num_calls: int = 0
    num_forwards: int = 0
    num_cut: int = 0
    num_cut_responses: int = 0


class Judged(NamedTuple):
    """What a classifier made of an exchange.

    Attributes:
        logits: one for each class.
        labels: names of the classes.
        is_cut: whether something didn't fit.
    """

    logits: list[float]
    labels: Sequence[str]
    is_cut: bool


class ClassifierService:
    """A classifier on a thread of its own, which loads it when it is first asked for something.

    Args:
        config: which model, and how it runs.

    Attributes:
        stats: what it has done.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        self.stats = ClassifierStats()
        self._config = config
        self._classifier: Classifier | None = None
        self._failure: ConfigError | None = None
        self._batcher: MicroBatcher[Exchange | None, Any] = MicroBatcher(
            self._answer, name=THREAD_NAME, on_end=self._free
        )

    async def start(self) -> Sequence[str]:
        """Load the model, unless it is. Gives the names of its classes.

        Raises:
            ConfigError: it can't be loaded.
        """
        try:
            return await self._batcher.submit(None)
        except InvalidRewardError as error:
            raise ConfigError(str(error)) from error

    async def judge(self, exchange: Exchange) -> Judged:
        """The logits of an exchange, from one batch with those of the same moment.

        Raises:
            InvalidRewardError: the model can't be loaded.
            RewardError: this exchange can't be judged.
        """
        return await self._batcher.submit(exchange)

    def close(self) -> None:
        """Fail what waits, and free the model once it has ended what it is at."""
        self._batcher.close()

    async def closed(self) -> None:
        """Wait until the model is freed, after `close`."""
        await self._batcher.closed()

    def _answer(self, exchanges: Sequence[Exchange | None]) -> Iterator[tuple[int, Judged | Sequence[str] | Exception]]:
        classifier = self._loaded()
        rows: dict[int, Row] = {}
        for place, exchange in enumerate(exchanges):
            if exchange is None:
                yield place, classifier.labels
                continue
            self.stats.num_calls += 1
            try:
                rows[place] = classifier.encode(exchange)
            except Exception as error:  # noqa: BLE001 - it is this text's, whatever the tokenizer raised
                yield place, _as_reward_error(error)
        self._count_cuts(rows.values(), classifier.max_length)
        places = list(rows)
        for batch in pack(
            [len(rows[place].token_ids) for place in places],
            max_rows=self._config.max_batch_size,
            max_tokens=self._config.max_batch_tokens,
            equal_lengths=classifier.minds_padding,
        ):
            yield from self._run(classifier, {places[index]: rows[places[index]] for index in batch})

    def _run(self, classifier: Classifier, rows: dict[int, Row]) -> Iterator[tuple[int, Judged | Exception]]:
        """Run a batch; one that fails is halved, until what is to blame is alone."""
        self.stats.num_forwards += 1
        try:
            logits = classifier.logits(list(rows.values()))
        except Exception as error:  # noqa: BLE001 - out of memory, or a row that the model can't read
            if len(rows) == 1:
                yield next(iter(rows)), _as_reward_error(error)
                return
            halves = list(rows.items())
            middle = len(halves) // 2
            yield from self._run(classifier, dict(halves[:middle]))
            yield from self._run(classifier, dict(halves[middle:]))
            return
        for (place, row), given in zip(rows.items(), logits, strict=True):
            if given and all(map(math.isfinite, given)):
                yield place, Judged(given, classifier.labels, row.is_cut)
            else:
                yield place, RewardError(f"the model gave the logits {given}; they must be finite")

    def _loaded(self) -> Classifier:
        if self._failure is not None:
            raise InvalidRewardError(str(self._failure)) from self._failure
        if self._classifier is None:
            try:
                self._classifier = Classifier(self._config)
            except Exception as error:  # a model's own code raises whatever it likes
                reason = f"model_path={self._config.path!r} can't be used: {type(error).__name__}: {error}"
                self._failure = error if isinstance(error, ConfigError) else ConfigError(reason)
                raise InvalidRewardError(str(self._failure)) from error
        return self._classifier

    def _free(self) -> None:
        self._classifier = None
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _count_cuts(self, rows: Any, max_length: int) -> None:
        before = self.stats.num_cut_responses
        self.stats.num_cut += sum(row.is_cut for row in rows)
        self.stats.num_cut_responses += sum(row.is_response_cut for row in rows)
        if len(str(self.stats.num_cut_responses)) > len(str(before)) or before == 0 < self.stats.num_cut_responses:
            logger.warning(
                "%s: %d of %d responses so far were longer than the %d tokens that the model takes, and were cut at "
                "the end; this is said again at ten times as many",
                self._config.path,
                self.stats.num_cut_responses,
                self.stats.num_calls,
                max_length,
            )


def _as_reward_error(error: Exception) -> RewardError:
    if isinstance(error, RewardError):
        return error
    wrapped = RewardError(f"the model raised {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


class _Shared(NamedTuple):
    service: ClassifierService
    users: set[int]


_lock = threading.RLock()  # a finalizer may run, and ask for it, in the thread that has it
_numbers = itertools.count()
_services: dict[tuple[int, ClassifierConfig], _Shared] = {}


class Lease:
    """A share in the service of a config. It ends with `end`, or with its owner.

    Args:
        config: of the classifier.
        owner: whom it is lent to.

    Attributes:
        service: what is lent.
        pid: the process that it is lent in.
    """

    def __init__(self, config: ClassifierConfig, owner: object) -> None:
        self.pid = os.getpid()  # a forked process has no threads
        key = (self.pid, config)
        with _lock:
            shared = _services.setdefault(key, _Shared(ClassifierService(config), set()))
            number = next(_numbers)
            shared.users.add(number)
        self.service = shared.service
        self._finalizer = weakref.finalize(owner, _release, key, number)
        self._finalizer.atexit = False

    async def end(self) -> None:
        """Give it back; the last to do so waits until the model is freed."""
        if self._finalizer() is True:
            await self.service.closed()


def _release(key: tuple[int, ClassifierConfig], user: int) -> bool:
    """Whether that was the last share."""
    with _lock:
        shared = _services.get(key)
        if shared is None or key[0] != os.getpid():
            return False
        shared.users.discard(user)
        if shared.users:
            return False
        del _services[key]
    shared.service.close()
    return True
