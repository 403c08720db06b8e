"""A stand-in of the program `seer-sgl`: python fake_seer_sgl.py serve --config MODE ...

The file that --config names has the mode: `ready`, `starting` (never ready) or `broken` (it ends).
What it was started with is written to the file `started` beside the config, as JSON.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def main() -> None:
    """Serves /health as the mode says."""
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

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if mode == "ready" and self.path == "/health" else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    HTTPServer((options["--host"], int(options["--port"])), Health).serve_forever()


if __name__ == "__main__":
    main()
