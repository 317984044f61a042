"""Settings of NVIDIA's tools, translated to ours."""
