"""Small builders that the unit tests share."""

import itertools
from array import array

from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.driver.samples import SampleMaker
from seer_sgl.sampling import NEUTRAL, Sampling
from seer_sgl.types import (
    ChunkReply,
    ChunkResult,
    Failure,
    FailureKind,
    FinishReason,
    Group,
    Prompt,
    Request,
    Sample,
    WeightSpan,
)

UNDIVIDABLE = Sampling(regex="a+")
LEFT = Failure(FailureKind.LEFT, "its caller left")
_orders = itertools.count()


def make_group(
    group_id: str = "g",
    *,
    n: int = 2,
    prompt_len: int = 10,
    max_response_len: int = 100,
    sampling: Sampling = NEUTRAL,
) -> Group:
    """Returns a group of pending requests with consecutive orders."""
    prompt = Prompt(prompt_id=group_id, prompt_ids=array("i", range(prompt_len)), n=n)
    group = Group(group_id=group_id, uid=group_id, prompt=prompt, sampling=sampling)
    group.requests = [
        Request(
            uid=f"{group_id}.{i}",
            order=next(_orders),
            group=group,
            index=i,
            seed=i,
            max_response_len=max_response_len,
        )
        for i in range(n)
    ]
    return group


def make_reply(
    tokens: int, finish: FinishReason = "length", *, version: str = "v1", first: int = 1
) -> ChunkReply:
    """Returns a reply of consecutive token ids."""
    return ChunkReply(
        ids=array("i", range(first, first + tokens)),
        logprobs=array("f", [-0.5] * tokens),
        weight_spans=[WeightSpan(version, tokens)],
        finish=finish,
    )


class Returns(Observer):
    """Receives every chunk that comes back, with a reply or an error."""

    def returned(self, result: ChunkResult) -> None:
        """A chunk came back."""

    @override
    def grown(self, result: ChunkResult) -> None:
        self.returned(result)

    @override
    def lost(self, result: ChunkResult) -> None:
        self.returned(result)


def made_sample(request: Request) -> Sample:
    return SampleMaker("r1")(request)


def why_given_up(group: Group) -> str | None:
    """Returns the reason why a group was given up; None if it was not."""
    return None if group.failure is None else group.failure.message
