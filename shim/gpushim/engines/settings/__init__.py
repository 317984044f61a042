"""Files of settings of any engine: read, edited byte for byte, recorded, taken back."""
