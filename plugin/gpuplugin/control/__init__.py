"""What `gpushim device-plugin` asks of the plugin, or the DRA driver, that runs."""
