"""`make fuzz`: many mutated inputs for every reader, study, manifest and command line (docs/reliability.md)."""
