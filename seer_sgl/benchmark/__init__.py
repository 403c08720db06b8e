"""`seer-sgl bench`: compares plain SGLang with seer-sgl, technique by technique, in one run."""
