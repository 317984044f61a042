"""kubelet's protocols: registration, the device plugin's service, pod-resources."""
