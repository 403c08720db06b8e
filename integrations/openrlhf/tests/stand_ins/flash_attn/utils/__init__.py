"""flash-attn's helpers."""
