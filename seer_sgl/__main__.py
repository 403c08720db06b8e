"""`python -m seer_sgl` is `seer-sgl`."""

from .cli import main

main()
