"""Adds random weights to a family's folder: `python -m tests.tokenizers.weights FOLDER`.

It is a program of its own, because a test does not import torch and a model's code.
"""

import sys
from pathlib import Path

from seer_sgl.torchvision_schemas import define_missing_schemas


def main(folder: str) -> None:
    """Writes `model.safetensors` for the `config.json` of the folder."""
    define_missing_schemas()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    model = kind.from_config(config)
    file = Path(folder) / "config.json"
    released = file.read_bytes()
    model.to(torch.float32).save_pretrained(folder)
    file.write_bytes(released)  # transformers writes another form of it, without some keys


if __name__ == "__main__":
    main(sys.argv[1])
