"""OpenAI's endpoints, as SGLang serves them."""
