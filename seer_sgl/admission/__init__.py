"""Whether a request may run, and how: divided into chunks, undivided, or not at all. Pure.

`sampling.py` judges sampling parameters: the same rules hold in a config, with a prompt and over
HTTP. The callers turn a `Refusal` into their own error, and send an `Undivided` request as one
chunk; the server passes it through to one engine.
"""
