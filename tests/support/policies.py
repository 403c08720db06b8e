"""Steps of a policy."""

from seer_sgl.scheduling.policy import Policy
from seer_sgl.types import Group, Request
from tests.helpers import make_reply

UNGUARDED = 1 << 30


def pushed(policy: Policy, *groups: Group) -> None:
    for group in groups:
        for request in group.requests:
            policy.push(request)


def taken(policy: Policy, count: int = 1000) -> list[str]:
    """Returns the uids of the next requests, in order."""
    uids: list[str] = []
    while len(uids) < count and (seen := policy.peek()) is not None:
        assert policy.peek() is seen, "looking changes nothing"
        assert policy.pop() is seen
        uids.append(seen.uid)
    return uids


def grow(request: Request, tokens: int) -> Request:
    request.append(make_reply(tokens))
    return request


def end(policy: Policy, request: Request, length: int) -> None:
    grow(request, length - request.generated).finish("stop", None, 1.0)
    policy.finished(request)
