"""Messages between the plugin in an engine and the driver or the draft hub.

One msgpack object per WebSocket message. A change that an older version would misread increases
PROTOCOL; the driver refuses all other protocol versions.
"""

from typing import TypeVar

import msgspec

from seer_sgl.draft import messages as draft

T = TypeVar("T")
PROTOCOL = 3
MAX_FRAME_BYTES = 1 << 20


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first message, which names the sender. `instance`: as in its report (contract.py)."""

    protocol: int
    instance: str
    rank: int  # the sender's rank among the engine's scheduler processes
    ranks: int  # their number; each holds a part of the KV


class KvStored(msgspec.Struct, tag="stored", frozen=True):
    """This rank's part of the KV of a finished /generate call is in the pool.

    `complete` False: a part of it is missing and will not be stored.
    """

    rid: str
    complete: bool


class Rates(msgspec.Struct, tag="rates", frozen=True):
    """The measurements of this rank since its last report: tokens, and seconds for them."""

    prefill_tokens: int
    prefill_s: float
    fetch_tokens: int
    fetch_s: float


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """From the driver: the KV of request `uid` beyond its first `keep` tokens is not needed."""

    uid: str
    keep: int


ToDriver = Hello | KvStored | Rates | draft.ToHub
ToEngine = Forget | draft.ToReplica

encode = msgspec.msgpack.Encoder().encode
to_driver: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


def decode(frame: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Returns a frame to one of both ends. Raises msgspec.DecodeError for any other bytes."""
    try:
        return decoder.decode(frame)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error
