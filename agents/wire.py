"""Messages between the executor and its worker processes: one pickle each, with its length in front.

Both ends are the same program under the same user; a worker process contains crashes and hangs, not attacks.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

_LENGTH = struct.Struct("!Q")

PICKLE_PROTOCOL = 5


class Call(NamedTuple):
    """A call into one of the worker's environments; `cancel` and `ping` concern a call and the loop itself."""

    call_id: int
    method: Literal["reset", "step", "close", "cancel", "ping"]
    instance_id: int = 0
    arguments: bytes = b""


class Answer(NamedTuple):
    """What a call gave: a pickled value, or a pickled `ErrorRecord`."""

    call_id: int
    is_error: bool
    value: bytes


def dumps(value: Any) -> bytes:
    """The value as bytes."""
    return pickle.dumps(value, protocol=PICKLE_PROTOCOL)


def frame(message: Any) -> bytes:
    """A message as it goes over the socket."""
    body = dumps(message)
    return _LENGTH.pack(len(body)) + body


class Unframer:
    """Puts messages together from whatever pieces arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Messages that are complete with this piece."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            body = bytes(buffer[_LENGTH.size : end])
            del buffer[:end]
            yield pickle.loads(body)


def messages(connection: socket.socket) -> Iterator[Any]:
    """Messages from a blocking socket, until the other end is gone."""
    unframer = Unframer()
    while True:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            return
        if not data:
            return
        yield from unframer.feed(data)
