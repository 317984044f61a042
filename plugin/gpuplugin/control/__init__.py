"""What `gpushim device-plugin` asks of the plugin that runs."""
