"""`seer-sgl bench` with what only our own studies measure: router, lanes, prediction and soak."""
