"""The names of flash-attn that openrlhf 0.11.2 imports; calls need `--ds.packing_samples`."""

from stand_in import refuse_if_installed

refuse_if_installed("flash_attn", "flash-attn")
