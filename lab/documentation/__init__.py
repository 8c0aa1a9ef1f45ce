"""The generated parts of the documentation: commands, options, the Python interface, formulas."""
