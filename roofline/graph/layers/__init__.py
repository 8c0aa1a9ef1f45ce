"""The layers of a network, each a function from its description to a list of operators.

In: a part of a `Model` (`specs.sublayers`), the tensor that enters it, and the formats. Out: `Op`s with FLOPs and
tensors, in the order in which they run. `layer` puts the mixer and the feed-forward block of one layer together.
"""
