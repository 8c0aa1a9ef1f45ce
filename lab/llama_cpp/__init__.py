"""llama.cpp on this CPU, beside its prediction: models with random weights, timed passes, fitted constants."""
