"""Messages between the plugin in an engine and the driver or the draft hub: one msgpack object per
WebSocket message.

A change that an older side would misread raises PROTOCOL; the driver refuses any other.
"""

import msgspec

from seer_sgl.draft import messages as draft

PROTOCOL = 2
MAX_FRAME_BYTES = 1 << 20


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first message, which names the sender. `instance`: as in the server's `/server_info`."""

    protocol: int
    instance: str
    rank: int  # of `ranks` scheduler processes that each hold a part of the KV
    ranks: int


class Stored(msgspec.Struct, tag="stored", frozen=True):
    """This rank's part of the KV of a finished /generate call is in the pool; `whole` False: not
    all of it, and the rest will not come."""

    rid: str
    whole: bool


class Rates(msgspec.Struct, tag="rates", frozen=True):
    """What this rank has measured since its last report: tokens and the seconds they took."""

    prefill_tokens: int
    prefill_s: float
    fetch_tokens: int
    fetch_s: float


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """From the driver: nobody will use the KV of request `uid` beyond its first `keep` tokens."""

    uid: str
    keep: int


ToDriver = Hello | Stored | Rates | draft.ToHub
ToEngine = Forget | draft.ToReplica

encode = msgspec.msgpack.Encoder().encode
decode_to_driver = msgspec.msgpack.Decoder(ToDriver).decode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
