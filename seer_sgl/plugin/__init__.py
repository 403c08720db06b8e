"""The code that runs inside SGLang: the plugin of entry point group `sglang.srt.plugins`.

`load` creates the Plugin (plugin.py), which owns the parts (a file each) and their hooks
(hook.py). The members of SGLang's objects that the hooks use are listed in sglang_types.py.
"""

from .plugin import load

__all__ = ["load"]
