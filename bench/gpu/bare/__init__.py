"""SGLang and its packages on a GPU machine without a package index."""
