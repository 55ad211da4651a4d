"""Keys that must not appear anywhere: not in a repr, a pickle, a message or a log."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import NoReturn
from urllib.parse import quote

MIN_KEY = 6
"""Shorter keys stand for none, as local endpoints take them (`EMPTY`), and their text may occur anywhere."""

MIN_PIECE = 12
"""So many characters from the beginning of a key count as the key."""

_HTTP_LOGGERS = ("openai", "httpx", "httpx2", "httpcore", "httpcore2")


class Secret:
    """A key. Its text is reached through `reveal` only.

    >>> key = Secret("sk-1234567890")
    >>> key, key.scrub("Incorrect key: sk-1234567890")
    (<secret>, 'Incorrect key: <secret>')

    Args:
        text: the key.
    """

    __slots__ = ("__weakref__", "_text")

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not to be pickled")

    def reveal(self) -> str:
        """The key itself."""
        return self._text

    @property
    def is_header(self) -> bool:
        """Whether an HTTP header can hold it."""
        return self._text.isascii() and (self._text.isprintable() or not self._text)

    def scrub(self, text: str) -> str:
        """A text without the key, without what it is in a URL, and without longer pieces from its beginning."""
        if len(self._text) < MIN_KEY:
            return text
        for shape in dict.fromkeys((self._text, quote(self._text, safe="", errors="replace"))):
            for length in range(len(shape), min(MIN_PIECE, len(shape)) - 1, -1):
                if shape[:length] in text:
                    text = text.replace(shape[:length], "<secret>")
        return text


class _LogFilter(logging.Filter):
    """Takes keys out of what the HTTP libraries log, such as a header of the endpoint that repeats one."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: weakref.WeakSet[Secret] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, secret: Secret) -> None:
        with self._lock:
            self._secrets.add(secret)

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            secrets = list(self._secrets)
        message = scrubbed = record.getMessage()
        for secret in secrets:
            scrubbed = secret.scrub(scrubbed)
        if scrubbed != message:
            record.msg, record.args = scrubbed, ()
        return True


_log_filter = _LogFilter()


def keep_out_of_logs(secret: Secret) -> None:
    """Take a key out of what the HTTP libraries log from here on, for as long as it is in use."""
    _log_filter.add(secret)
    for name in [name for name in list(logging.root.manager.loggerDict) if name.split(".")[0] in _HTTP_LOGGERS]:
        logging.getLogger(name).addFilter(_log_filter)  # adding it twice adds it once
