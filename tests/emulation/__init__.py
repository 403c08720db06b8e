"""The code that only GPUs take, on a machine without one.

| file | what is emulated | what it cannot show |
|---|---|---|
| overlap.py | SGLang's overlapped event loop with drafting | streams, races |
| late.py | our copies to the host arrive when the host waits | SGLang's copies, pinned memory |
| graphs.py | SGLang's `DecodeCudaGraphRunner`, one per draft width | what a graph bakes in |
| turns.py | nothing: drafts of each width in turn, then some plain steps | the draft policy |
| waits.py | nothing: waits that leave a GPU without work are counted | how long they take |
| interpreter.py, kernels.py | SGLang's Triton kernels, interpreted | compiled kernels, bfloat16 |
| plugin.py, server.py | the plugin that loads all of it into a CPU engine | times, memory |

It finds faults of logic: batches, buffers, masks, padding, tokens that arrive a step later. It is
for tests alone; nothing in seer_sgl depends on it.
"""

from seer_sgl.plugin import cpu

cpu.prepare()  # before the first import of SGLang; does nothing but in a process of a CPU engine
