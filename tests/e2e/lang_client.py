"""A program of SGLang's front-end language: `lang_client.py URL` prints what it generated."""

import json
import sys
from typing import Any

import sglang
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint


@sglang.function  # type: ignore[untyped-decorator]
def program(s: Any) -> None:
    """Generates a text, and chooses what follows it."""
    s += "<bos> 4 6 2 , 3 7 ? <think>"
    s += sglang.gen("thought", max_tokens=150, temperature=0)
    s += " so" + sglang.select("answer", choices=[" 1 2", " 7"])


def main(url: str) -> None:
    """Runs the program whole, as a stream, and as a batch."""
    sglang.set_default_backend(RuntimeEndpoint(url))
    whole = program.run()
    streamed = program.run(stream=True)
    pieces = list(streamed.text_iter("thought"))
    batch = program.run_batch([{}] * 3)
    said = {
        "whole": whole["thought"],
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "answers": [state["answer"] for state in (whole, streamed, *batch)],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
