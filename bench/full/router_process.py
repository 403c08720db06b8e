"""SGLang's router as a child of a benchmark: `python -m bench.full.router_process FLAGS`.

The router's launcher imports SGLang, which needs preparation on a machine without a GPU. The router
also has to end if the benchmark is killed.
"""

from seer_sgl.plugin import cpu
from seer_sgl.processes.child import end_with_parent


def main() -> None:
    """Runs the router until it is stopped."""
    end_with_parent()
    cpu.prepare()
    from sglang_router.launch_router import main as run_router

    run_router()


if __name__ == "__main__":
    main()
