"""Result files of other benchmarks as rows of whole-model figures: `roofline validate import`.

In: files of vLLM, SGLang, TensorRT-LLM, llama.cpp and others, recognised by their content. Out: rows in the columns of
`validate.tables`, with the reason for each that cannot be read, and the verdict on a prediction.
"""
