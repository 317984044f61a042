"""The program gpushim-node: what an image of gpushim does to the node that it runs on."""
