"""`seer-openrlhf` on a machine without a GPU: python cpu_command.py, then its own arguments."""

from typing import Any

import ray
from stand_ins import cpu


def use_cpu() -> None:
    """Installs the stand-ins here, and in every worker of the Ray that this process starts."""
    cpu.install()
    original = ray.init

    def init(*args: Any, **options: Any) -> Any:
        return original(*args, **cpu.ray_options(**options))

    ray.init = init


if __name__ == "__main__":
    use_cpu()
    from seer_openrlhf.command import main

    main()
