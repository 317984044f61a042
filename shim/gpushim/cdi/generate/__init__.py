"""Write CDI specs of our own, and take them back."""
