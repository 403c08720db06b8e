"""The errors that seer-sgl raises for its user; each message is one clear line.

SeerError
├── InputError              the user's mistake: exit status 2
│   ├── ConfigError         a config file, a --set, an impossible combination
│   ├── PromptError         a prompt: names file and line
│   ├── StateError          the fleet cannot do this now
│   └── JournalError        a journal that cannot be begun or resumed: names its folder
├── PoolError               the KV pool did not become ready: exit status 1
├── HubError                the draft hub did not become ready: exit status 1
├── EngineStartError        an engine did not become ready: exit status 1
│   └── EngineDelayed       it has no place yet, or lost it: it may become ready later
├── EngineError             one chunk did not come back
│   ├── EngineUnavailable   connection, HTTP status: another engine can run the chunk
│   │   ├── EngineDied      its server has died: each of its chunks may be the cause
│   │   ├── EngineRestarted another server answers at its address
│   │   ├── EngineBroken    a part of it has failed for good: it needs a restart
│   │   ├── BadReply        an unreadable or impossible reply
│   │   └── ChunkAborted    aborted by another client, and it cannot be continued
│   ├── ChunkInterrupted    the driver took it back (lost reply, group given up)
│   │   └── EngineStalled   its engine made no progress: each of its chunks may be the cause
│   ├── ChunkRecalled       the driver took it back without any fault (pause, drain, abort)
│   └── RequestRejected     SGLang's own 400: a second engine decides
├── RolloutError            the rollout cannot continue; finished samples are kept
├── AuditFailed             an audit exceeds a limit of its user: exit status 1
└── SimulationError         a simulated rollout is stuck: a defect of seer-sgl
"""


class SeerError(Exception):
    """The root of the tree."""

    exit_status = 1


class InputError(SeerError):
    """The user's input cannot work.

    The message is one printable line: other characters from the input are escaped.
    """

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


class ConfigError(InputError):
    """A key, type or value of the config is wrong; the message names the key and its source."""


class StateError(InputError):
    """The fleet cannot do this now; the message says why."""


class PromptError(InputError):
    """A prompt is invalid; the message names the file and the line."""


class JournalError(InputError):
    """A journal cannot be begun or resumed; the message names its folder and the reason."""


class JournalInUse(JournalError):
    """A living process uses the journal; the message has its id."""


class PoolError(SeerError):
    """The KV pool did not start; the message includes the end of a log."""


class HubError(SeerError):
    """The draft hub did not start; the message includes the end of its log."""


class EngineStartError(SeerError):
    """An engine did not become ready; the message includes the end of its log."""


class EngineDelayed(EngineStartError):
    """The cluster has no room for an engine, or lost its node while it was starting."""

    def __init__(self, engine_id: str, why: str) -> None:
        super().__init__(f"engine {engine_id}: {why}")
        self.engine_id = engine_id
        self.why = why


class EngineError(SeerError):
    """One chunk did not come back from its engine.

    `engine_id`: the engine that failed or had the chunk. `status`: the HTTP status, if there was a
    reply. `kind`: one word for logs and counters.
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


class EngineDied(EngineUnavailable):
    """The server died while it had the chunk: its process has exited, or the connection broke and
    no server, or another one, answers at its address."""

    kind = "died"


class EngineRestarted(EngineUnavailable):
    """Another server answers at the engine's URL."""


class EngineBroken(EngineUnavailable):
    """The engine reports that a part of it works no more; its chunks may still end well."""


class BadReply(EngineUnavailable):
    """The engine's reply is unreadable or impossible; none of its tokens are kept."""

    kind = "bad_reply"


class ChunkAborted(EngineUnavailable):
    """Another client aborted a chunk that cannot be continued."""

    kind = "aborted"


class ChunkInterrupted(EngineError):
    """The driver took the chunk back: its reply was lost, or its group was given up."""

    kind = "interrupted"


class EngineStalled(ChunkInterrupted):
    """The engine made no progress while it had the chunk: each of its chunks may be the cause."""

    kind = "stalled"


class ChunkRecalled(EngineError):
    """The driver took the chunk back before its first token: a pause, a leaving engine, an abort,
    or KV that was not read from the pool.

    It does not count as a failure of the engine or the request.
    """

    kind = "recalled"


class RequestRejected(EngineError):
    """SGLang refused the request itself. Another engine may accept it (scheduling/setbacks.py)."""

    kind = "rejected"


class RolloutError(SeerError):
    """The rollout ended without every sample; finished samples are kept."""


class AuditFailed(SeerError):
    """An audit exceeds a limit that its user has set."""


class SimulationError(SeerError):
    """A simulated rollout is stuck: requests are unfinished and no event is due."""


def first_error(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first error of a group, also of groups inside it."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
