"""Families that also read images, in the form of their released files.

SGLang reads their texts through a processor, which has a tokenizer of its own.
"""

import json
from pathlib import Path
from typing import Any

from .families import TINY, Family
from .writers import write_gemma, write_qwen

VISION = (
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
IMAGE = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}


# As released, without videos and without counting images.
QWEN2_VL_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_qwen2_vl(folder: Path) -> int:
    image: dict[str, Any] = {
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    special = ["<|im_start|>", "<|im_end|>", *VISION]
    return write_qwen(
        folder, more=VISION, additional_special_tokens=special, chat_template=QWEN2_VL_CHAT
    )


def write_gemma3(folder: Path) -> int:
    processor = {"image_seq_length": 256, "processor_class": "Gemma3Processor"}
    image: dict[str, Any] = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "Gemma3ImageProcessor",
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": 896, "width": 896},
        **processor,
    }
    (folder / "processor_config.json").write_text(json.dumps(processor))
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    tokens = {**IMAGE, "extra_special_tokens": IMAGE}
    return write_gemma(
        folder, more=tuple(IMAGE.values()), **tokens, processor_class="Gemma3Processor"
    )


_QWEN2_VL: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "vision_config": {
        "depth": 2,
        "embed_dim": 32,
        "mlp_ratio": 2,
        "num_heads": 2,
        "in_chans": 3,
        "hidden_size": TINY["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}
_GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {**TINY, "model_type": "gemma3_text"},
    "vision_config": {
        "hidden_size": 32,
        "image_size": 896,
        "intermediate_size": 64,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "patch_size": 14,
    },
}
MULTIMODAL = (
    Family("qwen2-vl", "Qwen2-VL", write_qwen2_vl, _QWEN2_VL),
    Family("gemma3", "Gemma 3", write_gemma3, _GEMMA3),
)
