"""A stand-in of the program `seer-sgl`: python fake_seer_sgl.py serve --config MODE ...

The file that --config names has the mode:

- `ready`: it answers, and its rollouts give every sample at once;
- `silent`: its rollouts give the first sample and then nothing;
- `mortal`: as `silent` until it is killed; the next one has journals and is `ready`;
- `plain`: as an SGLang server, it has no rollouts;
- `starting`: it is never ready; `broken`: it ends.

What it was started with is written to the file `started` beside the config, as JSON, and to the
file `rollouts` one line for each rollout that has begun, to `removed` one for each removed journal.
"""

import json
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMAND = shlex.join([sys.executable, str(Path(__file__).resolve())])
CONTROL = ("/workers", "/pause_generation", "/continue_generation")


def main() -> None:
    """Serves as the mode says."""
    options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    config = Path(options["--config"])
    mode = config.read_text()
    started = {
        "command": sys.argv[1],
        "options": options,
        "pid": os.getpid(),
        "environment": dict(os.environ),
    }
    partial = config.with_name("partial")
    partial.write_text(json.dumps(started))
    partial.rename(config.with_name("started"))
    if mode == "broken":
        sys.exit("a first line\nengines.count: 0 is below 1\n")
    print("starting", flush=True)
    rollouts = config.with_name("rollouts")
    again = mode == "mortal" and rollouts.exists()
    handler = handler_of("ready" if again else mode, rollouts)
    ThreadingHTTPServer((options["--host"], int(options["--port"])), handler).serve_forever()


def handler_of(mode: str, rollouts: Path) -> type[BaseHTTPRequestHandler]:
    """Returns the handler of a mode."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if mode == "starting":
                self.answer(503)
            elif self.path == "/health":
                self.answer(200)
            elif not self.allowed():
                self.answer(401)
            elif mode != "plain" and self.path in ("/rollouts", "/workers"):
                self.answer(200, b'{"journals": true}' if mode == "mortal" else b"{}")
            else:
                self.answer(404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/rollout":
                with rollouts.open("a") as file:
                    file.write(json.dumps(body) + "\n")
                self.close_connection = True  # it ends the answer
                self.send_response(200)
                self.end_headers()
                for line in lines_of(body):
                    self.wfile.write(json.dumps(line).encode() + b"\n")
                    if mode in ("silent", "mortal") and line["event"] == "sample":
                        threading.Event().wait()
            else:
                self.answer(200, b'{"success": true}')

        def do_DELETE(self) -> None:
            with rollouts.with_name("removed").open("a") as file:
                file.write(self.path + "\n")
            self.answer(200, b"{}")

        def allowed(self) -> bool:
            key = os.environ.get("SEER_SGL_SERVER_KEY")
            if self.path in CONTROL:
                key = os.environ.get("SEER_SGL_ADMIN_KEY", key)
            return key is None or self.headers["Authorization"] == f"Bearer {key}"

        def answer(self, status: int, content: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    return Handler


def lines_of(body: Any) -> Iterator[dict[str, Any]]:
    """Yields the lines of a rollout: responses of two tokens."""
    yield {"event": "start"}
    for group in body["groups"]:
        for index in range(group["n"]):
            yield {
                "event": "sample",
                "group_id": group["id"],
                "index": index,
                "response_ids": [index + 1, 0],
                "rollout_log_probs": [-0.5, -0.25],
                "finish_reason": "stop",
                "matched": 0,
                "accept_length": None,
                "engines": ["e0"],
                "weight_spans": [{"version": "default", "tokens": 2}],
            }
        yield {"event": "group", "group_id": group["id"]}
    yield {"event": "end", "error": None}


if __name__ == "__main__":
    main()
