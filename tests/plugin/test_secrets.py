"""SGLang shows its arguments with masked keys."""

from seer_sgl.plugin.secrets import mask


def test_keys_are_not_shown_and_everything_else_is() -> None:
    shown = {"api_key": "k", "admin_api_key": "a", "ssl_keyfile_password": "p", "port": 1}
    masked = {"api_key": "***", "admin_api_key": "***", "ssl_keyfile_password": "***", "port": 1}
    assert mask(shown) == masked
    unset = {"api_key": None, "admin_api_key": ""}
    assert mask(unset) == unset
