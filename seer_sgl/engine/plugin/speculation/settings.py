import os, msgspec
class Settings(msgspec.Struct):
    scope: str = "engine"
    paths: int = 1
    max_tokens: int = 1 << 26
def settings():
    return msgspec.json.decode(os.environ.get("SEER_SGL_DRAFT", "{}"), type=Settings)
