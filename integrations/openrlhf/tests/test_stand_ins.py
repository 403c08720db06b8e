"""The stand-ins let OpenRLHF run on a CPU, and cannot take the place of an installed package."""

import subprocess
import sys
from pathlib import Path

import pytest
from ray import cloudpickle
from stand_ins import cpu

TESTS = Path(__file__).parent

of_each = pytest.mark.parametrize("name", ["vllm", "flash_attn"])


def run(program: str, *folders: str | Path) -> subprocess.CompletedProcess[str]:
    """Returns the end of a Python whose path has these folders before all others."""
    ahead = [str(folder) for folder in folders]
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:0] = {ahead!r}\n{program}"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def install_real(name: str, site: Path) -> None:
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text("real = True\n")


@of_each
def test_an_installed_package_is_imported_and_not_its_stand_in(name: str, tmp_path: Path) -> None:
    install_real(name, tmp_path / "site")
    done = run(
        f"import site; site.addsitedir({str(tmp_path / 'site')!r})\n"  # at the end
        "from stand_ins import cpu; cpu.add_stand_ins()\n"
        f"import {name}; print({name}.real)",
        TESTS,
    )
    assert done.stdout == "True\n", done.stderr


@of_each
def test_a_stand_in_put_before_the_real_package_refuses(name: str, tmp_path: Path) -> None:
    install_real(name, tmp_path)
    done = run(f"import {name}", cpu.FOLDER, tmp_path)
    assert f"ImportError: the stand-in of {name} is before the real one: " in done.stderr


def test_a_ray_worker_gets_the_hook_by_value_and_can_import_openrlhf(tmp_path: Path) -> None:
    options = cpu.ray_options({"env_vars": {"A": "1"}}, num_gpus=0)
    assert options["num_gpus"] == cpu.RESOURCES["num_gpus"]
    hook = options["runtime_env"].pop("worker_process_setup_hook")
    assert options["runtime_env"] == {"env_vars": {"A": "1"}}
    pickled = tmp_path / "hook"
    pickled.write_bytes(cloudpickle.dumps(hook))
    done = run(  # the tests are not on its path
        "import pickle, pathlib\n"
        f"pickle.loads(pathlib.Path({str(pickled)!r}).read_bytes())()\n"
        "import torch, openrlhf.cli.train_ppo_ray, openrlhf.trainer.ppo_trainer_async\n"
        "device = torch.cuda.current_device()\n"
        "print(torch.zeros(1).to(device).device, torch.device(f'cuda:{device}'))"
    )
    assert done.stdout.splitlines()[-1:] == ["cpu cuda:0"], done.stderr
