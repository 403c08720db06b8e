"""Scripts that use seer-sgl: `python -m examples.NAME`."""
