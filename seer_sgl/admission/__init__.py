"""Whether a request may run, and how: divided into chunks, undivided, or not at all. Pure.

`sampling.py` judges sampling parameters: the same rules hold in a config, with a prompt and over
HTTP. `sglang_crashes.py` judges requests that pass through to SGLang. Each rule that a request
breaks yields a `Reason`, and the callers make their own error of it. Over HTTP a request is also
undivided if its body has a field that the server's structs of bodies do not have.
"""
