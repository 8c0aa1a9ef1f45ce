"""The layers of a network, each a function from its description to a list of operators."""
