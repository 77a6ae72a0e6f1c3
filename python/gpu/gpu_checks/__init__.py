"""The GPU checks: what HFReduce takes for granted of a CUDA GPU, its driver and its PyTorch, each shown by a program.

`runner` runs the checks, each in a process of its own; a check is a module with a function `check`.
"""
