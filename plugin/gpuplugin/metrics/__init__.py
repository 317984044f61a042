"""Metrics: what NVML reads, in Prometheus's form, over HTTP."""
