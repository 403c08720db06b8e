"""Samples in the form of slime's debug rollout data."""

from pathlib import Path
from typing import Any


def dumped(**changed: Any) -> dict[str, Any]:
    """Returns a sample as `Sample.to_dict` of slime writes it (slime/utils/types.py, 624b824)."""
    return {
        "group_index": 3,
        "index": 25,
        "rollout_id": None,
        "prompt": "p",
        "tokens": [5, 6, 7, 8, 9],
        "multimodal_inputs": None,
        "response": "r",
        "response_length": 3,
        "label": "42",
        "reward": 1.0,
        "loss_mask": [1, 1, 1],
        "weight_versions": ["7"],
        "rollout_log_probs": [-0.1, -0.2, -0.3],
        "remove_sample": False,
        "status": "completed",
        "metadata": {"a": 1},
        "spec_info": {"spec_verify_ct": 0, "completion_token_num": 0},
        "trace": {"events": []},
        **changed,
    }


def save(path: Path, *samples: Any) -> Path:
    """Writes a dump of the samples as slime does, and returns its path."""
    import torch

    torch.save({"rollout_id": 0, "samples": list(samples)}, path)
    return path
