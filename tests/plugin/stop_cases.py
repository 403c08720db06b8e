"""Runs random responses with random stop conditions through SGLang's `Req`.

`python -m tests.plugin.stop_cases COUNT MODELS` prints one JSON object of counts per model. MODELS:
the tokens of the responses by model; for none, the first words of the model's tokenizer.

The driver counts the tokens of stop strings wrongly here, so that it depends on SGLang's count.
"""

import json
import random
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from seer_sgl.driver.stop_strings import StopRecheck
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.plugin import cpu
from seer_sgl.plugin.stop_conditions import look_after_every_token
from seer_sgl.types import ChunkReply, WeightSpan, logprob_array, token_array

Update = Callable[[Any, int], None]
WORDS = 6  # different tokens in a response: few, so that conditions match often


class End(NamedTuple):
    """The end of a response: its tokens, finish reason and match; `None` while it runs."""

    ids: list[int]
    finish: str | None
    matched: int | str | None
    stop_tokens: int


class StopCase(NamedTuple):
    """The tokens a model would sample, the stop conditions, and the runs of speculation."""

    tokens: list[int]
    runs: list[int]
    sampling: dict[str, Any]
    longest: int


def draw(
    choice: random.Random, words: Sequence[int], eos: int, text: Callable[[Any], str]
) -> StopCase:
    tokens = choice.choices([*words, eos], [6] * len(words) + [1], k=40)
    runs: list[int] = []
    while sum(runs) < len(tokens):
        runs.append(choice.randint(1, 9))

    def piece() -> list[int]:
        return choice.choices(words, k=choice.randint(1, 3))

    sampling: dict[str, Any] = {
        "stop": [text(piece()) for _ in range(choice.randint(0, 3))],
        "stop_token_ids": choice.sample(list(words), choice.randint(0, 2)),
        "ignore_eos": choice.random() < 0.2,
    }
    if choice.random() < 0.3:
        sampling["stop_regex"] = [f"{text(piece())}.?{text(piece())}"]
    return StopCase(tokens, runs, sampling, choice.randint(1, 40))


class Engine:
    """Runs calls on SGLang's own request, without a model."""

    def __init__(self, tokenizer: Any, update: Update) -> None:
        self._tokenizer = tokenizer
        self._update = update

    def call(
        self, tokens: Sequence[int], runs: Sequence[int], sampling: dict[str, Any], budget: int
    ) -> End:
        """Returns the end of a call whose model samples `tokens`, in `runs` that may overshoot."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams(max_new_tokens=budget, **sampling)
        params.normalize(self._tokenizer)
        req = Req("r", "", array("q", [1]), params, vocab_size=1 << 16)
        req.tokenizer = self._tokenizer
        req.eos_token_ids = {max(self._tokenizer.all_special_ids)}
        taken = 0
        for size in runs:
            run = tokens[taken : taken + size]
            if not run or req.finished():
                break
            req.output_ids.extend(run)
            self._update(req, len(run))
            assert list(req.output_ids) == list(tokens[: taken + len(run)]), (
                "the run must stay undivided"
            )
            taken += size
        reason = None if req.finished_reason is None else req.finished_reason.to_json()
        ids = list(req.output_ids_through_stop)
        matched = reason and reason.get("matched")
        return End(ids, reason and reason["type"], matched, params.stop_str_max_len)


def divided(engine: Engine, case: StopCase, chunk: int, tokenizer: Tokenizer) -> End:
    """Runs the response in chunks of `chunk` tokens, with stop strings across boundaries."""
    recheck = StopRecheck(
        case.sampling["stop"],
        lambda text: 4 * len(text),
        tokenizer.decode,
        () if case.sampling["ignore_eos"] else case.sampling["stop_token_ids"],
    )
    response: list[int] = []
    while True:
        budget = min(chunk, case.longest - len(response))
        end = engine.call(case.tokens[len(response) :], case.runs, case.sampling, budget)
        assert end.finish in ("stop", "length")
        reply = ChunkReply(
            ids=token_array(end.ids),
            logprobs=logprob_array([0.0] * len(end.ids)),
            weight_spans=[WeightSpan("1", len(end.ids))],
            finish=end.finish,  # type: ignore[arg-type]
            matched=end.matched,
            stop_tokens=end.stop_tokens,
        )
        reply = recheck(response, reply)
        response += list(reply.ids)
        if reply.finish == "stop" or len(response) == case.longest:
            return End(response, reply.finish, reply.matched, end.stop_tokens)


def compared(count: int, model: str, words: list[int]) -> Counter[str]:
    """Compares runs with plain decoding, case by case, and returns counts of the outcomes."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.utils.hf_transformers.tokenizer import get_tokenizer

    sgl_tokenizer = get_tokenizer(model)
    tokenizer = Tokenizer(sgl_tokenizer)
    stock = Engine(sgl_tokenizer, Req.update_finish_state)
    hooked = Engine(
        sgl_tokenizer, lambda req, n: look_after_every_token(Req.update_finish_state, req, n)
    )
    choice = random.Random(0)
    special = sgl_tokenizer.all_special_ids
    words = words or [i for i in range(len(sgl_tokenizer)) if i not in special][:WORDS]
    eos = max(sgl_tokenizer.all_special_ids)
    seen: Counter[str] = Counter()
    for number in range(count):
        case = draw(choice, words, eos, tokenizer.decode)
        plain = stock.call(case.tokens, [1] * len(case.tokens), case.sampling, case.longest)
        runs = hooked.call(case.tokens, case.runs, case.sampling, case.longest)
        assert runs == plain, (number, case, plain, runs)
        whole_runs = stock.call(case.tokens, case.runs, case.sampling, case.longest)
        seen["stock differs"] += whole_runs != plain
        seen[f"{plain.finish} {type(plain.matched).__name__}"] += 1
        if "stop_regex" in case.sampling:
            continue  # such requests are not divided
        parts = divided(hooked, case, choice.randint(1, 9), tokenizer)
        expected = plain._replace(matched=None) if plain.finish == "length" else plain
        parts = parts._replace(matched=parts.matched if parts.finish == "stop" else None)
        assert parts == expected, (number, case, parts, expected)
        seen["divided"] += 1
    return seen


if __name__ == "__main__":
    cpu.prepare()
    given = json.loads(sys.argv[2]).items()
    print(json.dumps([compared(int(sys.argv[1]), model, words) for model, words in given]))
