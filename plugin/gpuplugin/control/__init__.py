"""The socket through which `gpushim device-plugin` asks plugin and DRA driver."""
