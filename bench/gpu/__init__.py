"""The benchmark for a machine with GPUs: its model, its workload, and the script that runs it."""
