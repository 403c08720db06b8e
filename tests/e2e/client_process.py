"""Runs a client of SGLang's, unchanged: `python -m tests.e2e.client_process MODULE ARGUMENTS`.

Its imports need preparation on a machine without a GPU, and it must end with the test.
"""

import runpy
import sys

from seer_sgl.plugin import cpu
from seer_sgl.processes.child import end_with_parent


def main() -> None:
    """Runs a module as a program."""
    end_with_parent()
    cpu.prepare()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
