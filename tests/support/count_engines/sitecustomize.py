"""Python imports this at its start if the folder is on its path: an engine adds a line to a file.

So an engine is counted wherever it was started: by a test, a driver or a command.
"""

import os
import sys

SERVER_MODULE = "seer_sgl.plugin.server"

if (_name := os.environ.get("SEER_SGL_ENGINE_STARTS")) and SERVER_MODULE in sys.orig_argv:
    _file = os.open(_name, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(_file, (os.environ.get("PYTEST_CURRENT_TEST", "?") + "\n").encode())
    os.close(_file)
