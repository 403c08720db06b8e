"""One line about what ended a training."""

import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from seer_openrlhf.client import ServerError
from seer_openrlhf.failures import MOST_CHARACTERS, reason

DEAD = """The actor died unexpectedly before finishing this task.
\tclass_name: SeerFront
\tactor_id: e6ba2270a0ef6d93578a1d0b01000000
\tpid: 8320
\tnamespace: a0a96791-cb41-48ab-8b4b-5edb0ae29938
\tip: 192.0.2.2
The actor is dead because it was killed by `ray.kill`.
"""


def through_tasks(error: Exception) -> Exception:
    """Returns the error as Ray's driver gets it from a task of a task."""
    for function in ("SeerFront.generate_responses", "PPOTrainer.fit"):
        trace = "Traceback\n" * 200
        wrapped = RayTaskError(function, trace, error, proctitle="t", pid=1, ip="10.0.0.1")
        received = cloudpickle.loads(cloudpickle.dumps(wrapped))
        error = received.as_instanceof_cause()
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ServerError("/rollout: gone"), "ServerError: /rollout: gone"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (KeyError(), "KeyError"),
        (
            RayActorError(None, DEAD),
            "Ray's actor SeerFront (process 8320 on 192.0.2.2) has ended: The actor is dead "
            "because it was killed by `ray.kill`.",
        ),
    ],
)
def test_the_first_error_is_named_also_through_tasks_of_ray(error: Exception, line: str) -> None:
    assert reason(error) == line
    assert reason(through_tasks(error)) == line


def test_an_actor_that_cannot_start_is_named_with_its_error() -> None:
    in_task = RayTaskError("SeerFront.__init__", "trace\nKeyError: 'x'\n", KeyError("x"))
    assert reason(ActorDiedError(in_task)) == "an actor of Ray cannot start: KeyError: 'x'"


def test_a_long_text_is_cut() -> None:
    assert len(reason(ValueError("x" * 10_000))) == MOST_CHARACTERS + len("ValueError: ")
