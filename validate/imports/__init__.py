"""Result files of other benchmarks as rows of whole-model figures: `roofline validate import`."""
