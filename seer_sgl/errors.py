"""Every error seer-sgl raises for its user; each message is one clear line.

SeerError
├── InputError              the user's mistake: exit status 2
│   ├── ConfigError         a config file, a --set, an impossible combination
│   └── PromptError         a prompt: names file and line
├── PoolError               the KV pool did not come up: exit status 1
├── HubError                the draft hub did not come up: exit status 1
├── EngineStartError        an engine did not come up: exit status 1
├── EngineError             one chunk did not come back
│   ├── EngineUnavailable   connection, HTTP status: another engine can take the chunk
│   │   ├── BadReply        a reply that cannot be read, or cannot be true
│   │   └── ChunkAborted    aborted by others, and it cannot be continued
│   ├── ChunkInterrupted    we took it back (stuck engine, lost reply, group given up)
│   ├── ChunkRecalled       we took it back, and nobody is to blame (pause, drain, abort)
│   └── RequestRejected     SGLang's own 400: a second engine decides
├── RolloutError            the rollout cannot go on; finished samples are kept
└── SimulationError         a simulated rollout stands still: a defect of ours
"""


class SeerError(Exception):
    """Root of the tree."""

    exit_status = 1


class InputError(SeerError):
    """The user gave something that cannot work.

    One printable line, whatever it repeats of the input: other characters are escaped.
    """

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


class ConfigError(InputError):
    """A key, a type or a value of the config; the message names the key and where it was set."""


class PromptError(InputError):
    """A prompt that cannot be used; the message names the file and the line."""


class PoolError(SeerError):
    """The KV pool did not start; the message carries the end of a log."""


class HubError(SeerError):
    """The draft hub did not start; the message carries the end of its log."""


class EngineStartError(SeerError):
    """An engine did not become ready; the message carries the end of its log."""


class EngineError(SeerError):
    """One chunk did not come back from its engine.

    `engine_id`: whose fault it is, or whose chunk it was; `status`: of an HTTP reply, if there was
    one; `kind`: one word for logs and counters.
    """

    kind = "engine"

    def __init__(
        self, message: str, *, engine_id: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.engine_id = engine_id
        self.status = status


class EngineUnavailable(EngineError):
    """The engine is unreachable or failing. The chunk can run elsewhere."""

    kind = "unavailable"


class BadReply(EngineUnavailable):
    """The engine replied what cannot be read or cannot be true; nothing of it is kept."""

    kind = "bad_reply"


class ChunkAborted(EngineUnavailable):
    """Something other than the driver aborted a chunk that cannot be continued."""

    kind = "aborted"


class ChunkInterrupted(EngineError):
    """The driver took the chunk back: its engine is stuck, its reply was lost, or its group was
    given up."""

    kind = "interrupted"


class ChunkRecalled(EngineError):
    """The driver took the chunk back before its first token, for a reason of its own: a pause, an
    engine that leaves, an abort. It is held against nobody."""

    kind = "recalled"


class RequestRejected(EngineError):
    """SGLang refused the request itself. Another engine may take it (scheduling/setbacks.py)."""

    kind = "rejected"


class RolloutError(SeerError):
    """The rollout ended without every sample; what had finished is kept."""


class SimulationError(SeerError):
    """A simulated rollout stands still: nothing is due and requests are left."""
