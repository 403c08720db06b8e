"""SGLang's router as a child of a benchmark: `python -m seer_sgl.benchmark.router_process FLAGS`.

Its launcher imports SGLang, which a machine without a GPU has to be prepared for; nobody else
would end it if the benchmark were killed.
"""

from seer_sgl.plugin import cpu
from seer_sgl.processes import end_with_parent


def main() -> None:
    """Run the router until it is stopped."""
    end_with_parent()
    cpu.prepare()
    from sglang_router.launch_router import main as run_router

    run_router()


if __name__ == "__main__":
    main()
