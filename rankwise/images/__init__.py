"""Reading, resizing and padding images, shared by data, models and export."""
