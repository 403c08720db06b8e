"""The benchmark for a machine with GPUs: its model, its workload and its script."""
