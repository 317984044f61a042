"""The socket through which `gpushim device-plugin` asks the running plugin, or the DRA driver."""
