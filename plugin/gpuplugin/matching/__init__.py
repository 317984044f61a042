"""What Kubernetes' scheduler makes of a claim: which devices match its requests, and why others do not."""
