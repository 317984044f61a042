"""Put edits into a container that has been created: mounts, device nodes, links, device rules."""
