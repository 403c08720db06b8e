"""How long so many engines take to end the requests that are left, if nothing goes wrong. Pure.

Requests are dealt to the engines, the longest first, so that each engine has about as many tokens
to generate. An engine decodes the longest ones first, as many as its KV cache holds, and chooses
again every few hundred steps. KV moves for nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.steps import StepTime

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STRETCH = 512  # steps after which an engine chooses its batch again


class Left(NamedTuple):
    """What requests have left. `tokens`: to generate, scenarios x requests, not sorted; `kv`: the
    tokens of KV that each holds."""

    tokens: Ints
    kv: Ints


class Plan:
    """Plans for one kind of engine."""

    def __init__(self, engine: EngineConfig) -> None:
        step, self._engine = StepTime(engine), engine
        self._attention_s = step.attention()
        self._fixed_s = np.array([step.fixed(n) for n in range(engine.max_running_requests + 1)])

    def ends_in(self, left: Left, engines: int) -> float:
        """Returns the seconds until so many engines have ended the requests, in the mean of the
        scenarios. 0 if nothing is left."""
        if not left.kv.size:
            return 0.0
        scenarios = len(left.tokens)
        tokens, kv = self._dealt(left, engines)
        seconds = np.zeros(len(tokens))
        running = np.arange(len(tokens))  # engines that are not empty yet
        while len(running):
            tokens, kv, took_s = self._stretch(tokens, kv)
            seconds[running] += took_s
            busy = tokens[:, 0] > 0
            running, tokens, kv = running[busy], tokens[busy], kv[busy]
            width = int((tokens > 0).sum(axis=1).max(initial=0))
            tokens, kv = tokens[:, :width], kv[:, :width]
        return float(seconds.reshape(scenarios, engines).max(axis=1).mean())

    def _dealt(self, left: Left, engines: int) -> tuple[Ints, Ints]:
        """Returns tokens and KV, (scenarios x engines) x requests of an engine, the longest first;
        without a request both are 0. Engines take one in turn, back and forth."""
        scenarios, requests = left.tokens.shape
        rounds = -(-requests // engines)
        order = np.argsort(-left.tokens, axis=1)
        dealt = []
        for values in (left.tokens, np.broadcast_to(left.kv, left.tokens.shape)):
            padded = np.zeros((scenarios, rounds * engines), dtype=np.int64)
            padded[:, :requests] = np.take_along_axis(values, order, axis=1)
            table = padded.reshape(scenarios, rounds, engines)
            table[:, 1::2] = table[:, 1::2, ::-1].copy()
            dealt.append(table.transpose(0, 2, 1).reshape(-1, rounds))
        return dealt[0], dealt[1]

    def _stretch(self, tokens: Ints, kv: Ints) -> tuple[Ints, Ints, Floats]:
        """Returns tokens and KV, the longest first, after a stretch of steps, and its seconds."""
        steps = np.minimum(tokens, STRETCH)
        held = np.cumsum(kv + steps, axis=1)
        fits = held <= self._engine.kv_tokens
        fits[:, 0] = True
        fits[:, self._engine.max_running_requests :] = False
        steps = np.where(fits, steps, 0)
        longest = np.maximum(steps.max(axis=1), 1)
        batch = np.rint(steps.sum(axis=1) / longest).astype(np.int64)
        read = (steps * (kv + steps / 2)).sum(axis=1)
        seconds = longest * self._fixed_s[batch] + read * self._attention_s
        tokens, kv = tokens - steps, kv + steps
        kv[tokens == 0] = 0
        order = np.argsort(-tokens, axis=1, kind="stable")
        return np.take_along_axis(tokens, order, 1), np.take_along_axis(kv, order, 1), seconds


def fewest(ends_in: Callable[[int], float], engines: int, within_s: float) -> int:
    """Returns the fewest engines, at most so many, with which the work ends within the seconds."""
    least, most = 1, engines
    while least < most:
        middle = (least + most) // 2
        if ends_in(middle) <= within_s:
            most = middle
        else:
            least = middle + 1
    return least
