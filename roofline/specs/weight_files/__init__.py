"""Checkpoints on disk: GGUF files, and folders of safetensors with a `config.json`. Only headers are read.

`gguf` and `safetensors` read the headers, `gguf_config` and `components` name what they hold, and `load` makes a model
spec with the formats of the tensors. The authors' readers are not used: that of `gguf` makes an array for each word of
the vocabulary and bounds neither time nor memory on a damaged header; that of `safetensors` maps
every file and tells shapes tensor by tensor.
"""
