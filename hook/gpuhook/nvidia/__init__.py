"""The hooks of NVIDIA's programs, by their names and command lines."""
