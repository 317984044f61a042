"""Write CDI specs of our own: what a device brings, where the spec goes, and how it is taken back."""
