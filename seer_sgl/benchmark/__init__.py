"""`seer-sgl bench`: plain SGLang against seer-sgl, one technique after the other, in one run."""
