"""Verdicts kept on disk, in one sqlite file that several processes may share."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .reply import Verdict

logger = logging.getLogger("turngym.rewards")

BUSY_S = 30.0
"""Seconds that a call waits for another process that is writing."""


_inherited: list[sqlite3.Connection] = []
"""Connections that a fork brought along. This process must neither use nor close them."""


class VerdictCache:
    """Verdicts by what was asked. Calls block for as long as the disk does: make them on a thread.

    Once it works, trouble with the disk costs a warning and the use of the cache, never an answer.

    Args:
        path: the file; it is made where there is none.

    Raises:
        ConfigError: the file can't be opened, or is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._has_warned = False
        try:
            with self._lock:
                self._open()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"cache={str(path)!r} can't be used: {error}; give a file of its own, which is made if need be"
            ) from None

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])

    def get(self, key: str) -> Verdict | None:
        """The verdict under a key, or None."""
        try:
            with self._lock:
                row = self._open().execute("SELECT rating, reason FROM verdicts WHERE key = ?", (key,)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._warn("read", error)
            return None
        rating, reason = row or (None, None)
        return Verdict(float(rating), reason) if isinstance(rating, int | float) and isinstance(reason, str) else None

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict. One that is there already stays, so that every process goes by the same."""
        try:
            with self._lock, self._open() as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO verdicts (key, rating, reason) VALUES (?, ?, ?)",
                    (key, verdict.rating, verdict.reason),
                )
        except (sqlite3.Error, OSError) as error:
            self._warn("written", error)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        if self._connection is not None:
            _inherited.append(self._connection)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False)
        try:
            _set_up(connection)
        except sqlite3.Error:
            connection.close()
            raise
        self._connection, self._pid = connection, os.getpid()
        return connection

    def _warn(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the judge's cache %s can't be %s: %s; this is said once", self.path, what, error)


def _set_up(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS verdicts "
                "(key TEXT PRIMARY KEY, rating REAL NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.OperationalError as error:  # sqlite doesn't wait for others that set the file up, too
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def key_of(question: Any) -> str:
    """The key of whatever decides about an answer: a hash of its JSON."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
