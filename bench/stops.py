"""Measures the cost of a stop check after every token of an accepted run (stop_conditions.py).

`python -m bench.stops [--json]` reports microseconds per token of SGLang's
`Req.update_finish_state`, on runs of RUN tokens without a stop. The arms are stock (one check per
run), ours (one check per token) and plain decoding.
"""

import argparse
import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.attention import alternate
from seer_sgl.link import contract
from seer_sgl.plugin import cpu

MODEL = Path(__file__).parent / "reasoner" / "model"
RUN = 4  # tokens that a verification typically accepts
TOKENS = 4000  # per measurement
STOPS: dict[str, dict[str, Any]] = {
    "stop token ids": {"stop_token_ids": [1 << 20]},
    "one stop string": {"stop": ["\n\nHuman: this never appears"]},
    "four stop strings": {"stop": [f"this never appears {i}" for i in range(4)]},
}


def arms(stops: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """Returns the calls to compare."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.utils.hf_transformers.tokenizer import get_tokenizer

    from seer_sgl.plugin.stop_conditions import look_after_every_token

    tokenizer = get_tokenizer(str(MODEL))
    stock = Req.update_finish_state
    tokens = array("q", [5 + i % 50 for i in range(RUN)])

    def decode(update: Callable[[Any, int], None], run: int) -> None:
        params = SamplingParams(max_new_tokens=2 * TOKENS, ignore_eos=False, **stops)
        params.normalize(tokenizer)
        req = Req("r", "", array("q", [1]), params, vocab_size=1 << 16)
        req.tokenizer = tokenizer
        for _ in range(TOKENS // run):
            req.output_ids.extend(tokens[:run])
            update(req, run)
        assert not req.finished()

    return {
        "stock, per run": lambda: decode(stock, RUN),
        "ours, per token": lambda: decode(
            lambda req, new: look_after_every_token(stock, req, new), RUN
        ),
        "plain decoding": lambda: decode(stock, 1),
    }


def main() -> None:
    """Times every kind of stop; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    os.environ[contract.CPU_SWITCH] = "1"
    cpu.prepare()
    figures: dict[str, dict[str, float]] = {}
    for name, stops in STOPS.items():
        medians = alternate(arms(stops), options.rounds)
        figures[name] = {arm: round(us / TOKENS, 2) for arm, us in medians.items()}
        if not options.json:
            print(f"{name:18} us per token: {figures[name]}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
