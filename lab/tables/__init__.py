"""Public tables of kernels (ai-dynamo/aiconfigurator): their columns in the words of the measurement schema.

In: Parquet files of a collector. Out: checked measurements, with columns for what is timed beside the kernel
(`lab.observation`). `read` is the way in; the other modules each translate one thing.
"""
