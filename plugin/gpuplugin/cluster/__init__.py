"""The container beside the plugin: labels, profiles, the API server."""
