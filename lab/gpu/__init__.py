"""What maintainers add to a visit of `roofline validate gpu`: correctness of kernels, and what the library chooses."""
